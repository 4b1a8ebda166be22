"""What strangers and accidents can do at an address without keys: each line of docs/security.md's table."""

import contextlib
import resource
import subprocess
import threading
import time

import pytest

import fd_postproc as fp
from tests.lib.children import python
from tests.lib.roads import Road, arriving, numbered, token
from tests.lib.sending import in_thread
from tests.lib.strangers import GREETING, NOT_LATER_S, PING, READY, Flood, connected, greeted, message

STEP = fp.encode(numbered(5), "compact")


@pytest.fixture(params=["ipc", "tcp"])
def road(request, queue_keys):
    road = Road(request.param, queue_keys)
    yield road
    road.close()


@pytest.fixture
def receiver(road):
    return road.receiver()


@pytest.fixture
def strangers():
    with contextlib.ExitStack() as stack:
        yield lambda one: stack.enter_context(one)


def refusals(receiver, count):
    """What the next messages are refused for."""
    fields = []
    for _ in range(count):
        with pytest.raises(fp.MalformedMessage) as caught:
            receiver.receive(20)
        fields.append((caught.value.field, caught.value.value))
    return fields


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.resident_memory  # a sanitizer build needs far more
def test_parts_that_never_end_are_told_once_and_take_no_memory(road, receiver, strangers):
    sender = road.sender()
    sender.send(numbered(1))
    assert arriving(receiver, 1) == [1]
    stranger = strangers(greeted(receiver.address, message(b"", more=True)))
    assert refusals(receiver, 1) == [("parts", 2)]
    before, sent = resident(), 0
    part = message(bytes(1 << 16), more=True) + 1000 * message(b"x", more=True)
    flood = Flood(stranger, part)
    while sent < 32 << 20:
        sent += flood.pour()
        assert receiver.receive(0.001) is None
    assert resident() - before < 8 << 20
    sender.send(numbered(2))
    assert arriving(receiver, 1) == [2]
    assert receiver.stats["malformed"] == 1


def test_after_the_last_part_comes_the_next_message(receiver, strangers):
    parts = message(b"a", True) + message(bytes(1 << 22), True) + message(b"c")
    with in_thread(lambda: strangers(greeted_whole(receiver.address, parts + message(STEP)))):
        assert refusals(receiver, 1) == [("parts", 2)]
        assert arriving(receiver, 1) == [5]


def greeted_whole(address, data):
    one = greeted(address)
    one.setblocking(True)
    one.sendall(data)
    return one


def test_a_message_of_any_length_is_passed_over(receiver, strangers):
    with in_thread(
        lambda: strangers(greeted_whole(receiver.address, message(bytes(9 << 20)) + message(STEP)))
    ):
        assert refusals(receiver, 1) == [("length", 9 << 20)]
        assert arriving(receiver, 1) == [5]
    assert (receiver.stats["oversized"], receiver.stats["malformed"]) == (1, 0)
    strangers(greeted(receiver.address, b"\x02" + b"\xff" * 8, b"x" * 1000))
    assert refusals(receiver, 1) == [("length", (1 << 63) - 1)]
    assert receiver.receive(0.05) is None


def test_a_ping_behind_much_and_a_hang_up(road, receiver):
    """libzmq's PULL aborts here."""
    for _ in range(20):
        with greeted(receiver.address) as stranger:
            Flood(stranger, message(STEP) * 50 + PING).pour()
            assert receiver.receive(5) is not None
    road.sender().send(numbered(9))
    came = None
    while came != 9:
        with contextlib.suppress(fp.MalformedMessage):  # the last message of some was cut off
            came = token(receiver.receive(20))


def test_a_ping_is_answered(receiver, strangers):
    stranger = strangers(greeted(receiver.address, PING, message(STEP)))
    assert arriving(receiver, 1) == [5]
    stranger.setblocking(True)
    heard = b""
    while b"\4\5\4PONG" not in heard:
        more = stranger.recv(1000)
        assert more
        heard += more


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff",
        b"GET / HTTP/1.1\r\n\r\n" * 10,
        bytes(100),
        b"\xff" * 100,
        GREETING.replace(b"NULL", b"CURV"),
        GREETING + b"\x06" + b"\xff" * 8,
        GREETING + READY.replace(b"PUSH", b"PULL"),
        GREETING + READY + b"\x02",
        GREETING + READY + b"\x04\x00" * 50,
    ],
)
def test_words_that_no_sender_says(road, receiver, strangers, said):
    strangers(connected(receiver.address, said))
    began = time.thread_time()
    assert receiver.receive(0.1) is None
    assert time.thread_time() - began < 0.1 + NOT_LATER_S
    road.sender().send(numbered(3))
    assert arriving(receiver, 1) == [3]
    assert receiver.stats["messages"] == 1


def test_an_endless_command_ends_its_connection(receiver, strangers):
    stranger = strangers(connected(receiver.address, GREETING, b"\x06" + b"\xff" * 8))
    stranger.settimeout(60)
    assert receiver.receive(0.1) is None
    while stranger.recv(1000):
        pass


def test_who_is_refused_is_logged(receiver, strangers, caplog):
    strangers(connected(receiver.address, GREETING.replace(b"NULL", b"CURVE")[:64]))
    assert receiver.receive(0.1) is None
    assert "a sender with keys, at an address without" in caplog.text


def test_a_flood_of_no_frames_from_two_connections(road, receiver, strangers):
    """Each call returns in its time, and honest steps come through."""
    sender = road.sender()
    sender.send(numbered(0))
    assert arriving(receiver, 1) == [0]
    over = threading.Event()
    floods = [Flood(strangers(greeted(receiver.address)), message(b"x") * 1000) for _ in range(2)]

    def pour(flood):
        while not over.wait(0.001):
            flood.pour()

    threads = [threading.Thread(target=pour, args=(one,)) for one in floods]
    for thread in threads:
        thread.start()
    try:
        came, end = [], time.monotonic() + 120  # on a busy machine
        for k in range(1, 51):
            sender.send(numbered(k))
        while len(came) < 50 and time.monotonic() < end:
            began = time.thread_time()
            with contextlib.suppress(fp.MalformedMessage):
                if (step := receiver.receive(0.2)) is not None:
                    came.append(step.token_ids(0)[0])
            assert time.thread_time() - began < 0.2 + NOT_LATER_S
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert came == list(range(1, 51))
    assert receiver.stats["malformed"] > 50
    assert receiver.stats["missing"] == 0


def test_pieces_without_end_return_in_time(receiver, strangers):
    """Pieces of frames are no step: the time is over all the same."""
    head = bytearray(STEP[:64])
    head[56:60] = bytes((0, 0, 2, 0))
    piece = message(bytes(head) + STEP[64:65])
    flood = Flood(strangers(greeted(receiver.address)), piece * 500)
    over = threading.Event()

    def pour():
        while not over.wait(0.001):
            flood.pour()

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        for _ in range(5):
            began = time.thread_time()
            with contextlib.suppress(fp.MalformedMessage):
                receiver.receive(0.2)
            assert time.thread_time() - began < 0.2 + NOT_LATER_S
    finally:
        over.set()
        thread.join()


@pytest.mark.resident_memory  # a sanitizer build needs far more
def test_beginnings_of_large_messages_are_bounded(road, receiver, strangers, monkeypatch):
    from fd_postproc.transport import plain_inlet

    monkeypatch.setattr(plain_inlet, "_ROOM", 8 << 20)
    sender = road.sender()
    sender.send(numbered(1))
    assert arriving(receiver, 1) == [1]
    before = resident()
    begun = b"\x02" + (1 << 20).to_bytes(8, "big") + bytes((1 << 20) - 1)
    for _ in range(60):
        stranger, at = strangers(greeted(receiver.address)), 0
        while at < len(begun):
            with contextlib.suppress(BlockingIOError, OSError):
                at += stranger.send(begun[at:])
            assert receiver.receive(0.001) is None
    assert resident() - before < 24 << 20
    sender.send(numbered(2))
    assert arriving(receiver, 1) == [2]


IDLE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import fd_postproc as fp
with fp.Receiver("plain", address=sys.argv[1]) as receiver:
    print(receiver.address, flush=True)
    for k in range(3):
        print(receiver.receive(60).token_ids(0)[0], flush=True)
    open("/dev/null").close()
"""


def test_idle_connections_leave_room_for_honest_ones(road, strangers):
    """400 of them, and 256 descriptors."""
    address = road.end["address"]
    with subprocess.Popen(python(IDLE, address), stdout=subprocess.PIPE, text=True) as child:
        address = child.stdout.readline().strip()
        first = fp.Sender("plain", address=address)
        first.send(numbered(1))
        assert child.stdout.readline() == "1\n"
        idle = [strangers(connected(address)) for _ in range(400)]
        with fp.Sender("plain", address=address) as second:
            second.send(numbered(2))
            assert child.stdout.readline() == "2\n"
        first.send(numbered(3))
        assert child.stdout.readline() == "3\n"
        first.close()
        assert idle
        assert child.wait(60) == 0


def test_eleven_hundred_senders_with_a_backlog(receiver, strangers):
    """None of them has to wait for another, and all steps come."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft < 3000:
        pytest.skip(f"needs 3,000 descriptors; ulimit -n is {soft}")

    def send():
        for k in range(1100):
            strangers(greeted(receiver.address, message(fp.encode(numbered(k), "compact")) * 3))

    with in_thread(send):
        came = [receiver.receive(30).token_ids(0)[0] for _ in range(3300)]
    assert sorted(came) == sorted(list(range(1100)) * 3)


def test_numbers_at_the_end_of_their_range(road, receiver):
    """A stranger's number 2^64 - 1: counted, and the Receiver goes on."""
    frame = bytearray(STEP)
    for begin in range(8, 56, 8):
        changed = bytearray(frame)
        changed[begin : begin + 8] = b"\xff" * 8
        road.inject(bytes(changed))
    for _ in range(6):
        with contextlib.suppress(fp.MalformedMessage):
            assert receiver.receive(20) is not None
    sender = road.sender()
    for k in range(3):
        sender.send(numbered(k))
    assert arriving(receiver, 3) == [0, 1, 2]
    receiver.close()


KILLED = """
import fd_postproc as fp
with fp.Sender("plain", address=sys.argv[1], hwm=4000) as sender:
    for k in range(4500):
        sender.send_arrays([1], [k], timeout=5)
"""


def test_an_honest_sender_is_killed_with_much_on_its_way(road, receiver):
    """At the high-water mark, with a heartbeat, libzmq aborted."""
    for _ in range(3):
        with subprocess.Popen(python(KILLED, receiver.address)) as child:
            assert receiver.receive(30) is not None
            time.sleep(0.1)
            child.kill()
    came = 0
    while receiver.receive(0.2) is not None:
        came += 1
    assert came
    assert receiver.stats["malformed"] == 0
