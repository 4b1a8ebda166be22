"""Results that come before their request is registered."""

import asyncio
import gc
import tracemalloc
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api import connections
from fd_postproc.fastdeploy.api.chunks._chunks import unpack
from fd_postproc.fastdeploy.api.connections import RequestMap
from fd_postproc.fastdeploy.events.counters import forget, noted
from fd_postproc.fastdeploy.gate.judgements import gate
from fd_postproc.fastdeploy.gate.seams import SEAMS
from tests.lib.fakes import TwoOfThree
from tests.lib.rows import each


class Queue(list):
    put_nowait = list.append


def group(send_idx, **more):
    return [{"request_id": "chatcmpl-a_0", "outputs": {"send_idx": send_idx}, **more}]


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def requests(clock):
    forget()
    return RequestMap({}, lambda: clock.now)


def give(requests, name, *groups):
    for one in groups:
        queue = requests.get(name)
        if queue is not None:
            queue.put_nowait(one)


ERROR = [{"error_code": 500, "outputs": None}]


@each(
    "scene, queues",
    [  # numbers: results; +: registered; -: ended; !: another request of the id is sent
        ("0 1 + 2", ["012"]),
        ("0 0 E +", ["00E"]),  # every choice may begin,
        ("E +", ["E"]),  # also with an error instead of an answer
        ("+ 0 -", ["0"]),
        ("+ 0 + 1", ["0", "1"]),  # as FastDeploy's map has it (docs/upstream, 09)
        ("3 +", [""]),
        ("+ - 0 1 + 0", ["", "0"]),  # what comes after the end is nobody's; a client may use an id again
        ("+ 0 - 3 0 1 +", ["0", "01"]),  # the ended request had begun: an answer that begins is another one's
        ("+ - 0 1 0 2 +", ["", "02"]),  # the first beginning is the ended request's, the second is not
        ("+ - 3 ! 0 1 +", ["", "01"]),
    ],
)
def test_results_wait_for_their_registration(clock, scene, queues):
    requests, made = RequestMap({}, lambda: clock.now), []
    for action in scene.split():
        if action == "+":
            requests["a"] = Queue()
            made.append(requests["a"])
        elif action == "-":
            requests.pop("a", None)
        elif action == "!":
            requests.expect("a_0")
        else:
            give(requests, "a", ERROR if action == "E" else group(int(action)))
    shown = ["".join("E" if one is ERROR else str(one[0]["outputs"]["send_idx"]) for one in q) for q in made]
    assert shown == queues
    assert (requests.groups, requests.size) == (0, 0)
    assert requests.begun <= {*map(hash, requests)}


@each("late", [[], [{}], [{"outputs": None}], "x", None, [SimpleNamespace()]])
def test_what_does_not_begin_an_answer_is_nobodys(requests, late):
    give(requests, "a", late)
    requests["a"] = queue = Queue()
    assert queue == []
    assert noted() == {}


def test_what_nobody_comes_for_is_dropped_in_time(requests, clock):
    for name in "ac":
        give(requests, name, group(0))
    clock.now = connections.KEEP_EARLY_S
    give(requests, "b", group(0))
    assert list(requests.held) == ["b"]
    assert requests.groups == 1
    assert noted()[connections.TOO_OLD] == 2
    assert sorted(noted().values()) == [2, 3]  # all three were held
    requests["a"] = queue = Queue()  # a new one of the same id
    assert queue == []


def test_a_wait_is_silent_at_its_second_look():
    """The first may come at once."""

    async def run():
        inbox, silent = connections.Inbox(), []
        for results in True, False, True:
            wait = asyncio.ensure_future(inbox.wait())
            await asyncio.sleep(0)
            inbox.look()
            await asyncio.sleep(0)
            assert not wait.done()
            inbox.put_nowait([5]) if results else inbox.look()
            silent.append(await wait)
        return silent

    assert asyncio.run(run()) == [False, True, False]


def test_no_more_is_kept_than_there_is_room_for(requests, monkeypatch):
    monkeypatch.setattr(connections, "MOST_HELD", 10)
    monkeypatch.setattr(connections, "MOST_GONE", 5)
    for number in range(100):
        give(requests, f"id {number}", group(0))
        requests.pop(f"other {number}", None)
    assert list(requests.held) == [f"id {number}" for number in range(90, 100)]
    assert (requests.groups, len(requests.dropped)) == (10, 5)
    assert list(requests.gone) == [hash(f"other {number}") for number in range(95, 100)]
    assert noted()[connections.TOO_MANY] == 90


LONG, MANY = 1 << 16, 2 * connections.MOST_GONE  # letters of an id that a client has chosen; requests


def long_id(number):
    """An id that no other request has: one text, as the API server and each message have one of their own."""
    return f"{number:0{LONG}}"


def ended(requests, number):
    """A request that had its answer."""
    requests[long_id(number)] = Queue()
    give(requests, long_id(number), group(0))
    requests.pop(long_id(number))


def aborted(requests, number):
    """One whose client has left, before its answer began."""
    requests.expect(long_id(number))
    requests[long_id(number)] = Queue()
    requests.pop(long_id(number))
    give(requests, long_id(number), group(0), group(1))


def unclaimed(requests, number):
    """Early results that nobody comes for."""
    give(requests, long_id(number), group(0))


def running(requests, number):
    """A request whose answer has begun: FastDeploy's own entry has its id, and no other one."""
    name = long_id(0)
    if not number:
        requests[name] = Queue()
    give(requests, long_id(0), group(1))
    requests[name].clear()


@each(
    "scene, bound",
    [
        (ended, 2 << 20),
        (aborted, 2 << 20),
        (unclaimed, connections.MOST_BYTES + (4 << 20)),
        (running, 1 << 20),
    ],
)
def test_no_table_grows_with_the_length_of_ids(scene, bound):
    """Half a gigabyte of ids: what is left of them is in docs/security.md."""
    requests = RequestMap({}, lambda: 0.0)
    tracemalloc.start()
    try:
        for number in range(MANY):
            scene(requests, number)
        assert tracemalloc.get_traced_memory()[0] < bound
    finally:
        tracemalloc.stop()


def large(results, rows, kind):
    """A group as the dispatcher unpacks it, with log-probabilities of so many rows."""
    msgpack = pytest.importorskip("msgpack")
    made = {
        "request_id": "a_0",
        "outputs": {"send_idx": 0, kind: [[[5] * 20] * rows, [[0.5] * 20] * rows, [1] * rows]},
    }
    return unpack(msgpack.packb([made] * results))


@each("kind", ["top_logprobs", "prompt_logprobs"])
def test_the_memory_of_a_group_is_what_it_takes(kind):
    """Packed rows and lists; numbers that Python has once are counted at each place."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = large(3, 500, kind)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / 2 < connections._memory_of(made, 1 << 30) < 3 * taken


def test_the_largest_loses_its_early_results_and_is_told(requests, clock, monkeypatch):
    monkeypatch.setattr(connections, "MOST_BYTES", 1 << 20)
    give(requests, "small", group(0))
    for number in range(40):
        give(requests, "large", large(1, 300, "top_logprobs"))
        assert requests.size <= 1 << 20
        assert number < 20 or hash("large") in requests.dropped
    assert noted()[connections.TOO_LARGE] == 1
    requests["small"] = small = Queue()
    assert small == [group(0)]
    requests["large"] = queue = Queue()
    (only,) = queue
    for read in (lambda: only[-1], lambda: list(only)):
        with pytest.raises(connections.ResultsDropped, match=r"more than 64 MiB.* send it again"):
            read()
    assert (requests.size, requests.groups, requests.dropped) == (0, 0, {})


def test_one_group_above_the_limit_costs_no_other_request(requests, clock, monkeypatch):
    monkeypatch.setattr(connections, "MOST_BYTES", 1 << 16)
    for number in range(5):
        give(requests, f"small {number}", group(0))
    give(requests, "large", large(4, 1000, "prompt_logprobs"))
    assert (list(requests.dropped), len(requests.held)) == ([hash("large")], 5)
    clock.now = connections.KEEP_EARLY_S
    requests["large"] = queue = Queue()  # a later one of the same id
    assert queue == []


def test_an_id_that_has_lost_results_long_ago_loses_none_of_a_later_request(requests, clock, monkeypatch):
    monkeypatch.setattr(connections, "MOST_HELD", 0)
    give(requests, "a", group(0))
    monkeypatch.undo()
    clock.now = connections.KEEP_EARLY_S
    give(requests, "a", group(0), group(1))
    requests["a"] = queue = Queue()
    assert queue == [group(0), group(1)]
    assert not requests.dropped


class Manager:
    """Restates what of FastDeploy's connection manager matters here."""

    def __init__(self, pid, max_connections=10):
        self.request_map, self.initialised = {}, False

    async def initialize(self):
        self.initialised = True

    async def get_connection(self, request_id, dealer=None):
        self.request_map[request_id] = queue = asyncio.Queue()
        return dealer, queue

    async def _dispatch_batch_responses(self, batches):
        for batch in batches:
            for outputs in batch:
                queue = self.request_map.get(outputs[-1]["request_id"].rsplit("_", 1)[0])
                if queue is not None:
                    queue.put_nowait(outputs)


@pytest.fixture
def utils(monkeypatch):
    module = SimpleNamespace(DealerConnectionManager=type("Copy", (Manager,), dict(vars(Manager))))
    restore = connections.install(module)
    yield module
    restore()
    assert type(module.DealerConnectionManager(0).request_map) is dict


def test_the_managers_map_is_ours_and_its_dispatcher_its_own(utils):
    async def run():
        manager = utils.DealerConnectionManager(0)
        await manager._dispatch_batch_responses([[group(0)], [group(1)]])
        manager.request_map["chatcmpl-a"] = queue = asyncio.Queue()
        await manager._dispatch_batch_responses([[group(2)]])
        return [queue.get_nowait()[0]["outputs"]["send_idx"] for _ in range(queue.qsize())]

    assert asyncio.run(run()) == [0, 1, 2]


@each(
    "value, before, after",
    [
        *(("", (700, 10, 10), (5 * connections.RESULTS_A_COLLECTION, 10, 10)), ("off", (700, 10, 10), None)),
        *(("", (0, 10, 10), None), ("", (50000, 5, 5), None)),  # thresholds that somebody chose
    ],
)
def test_what_lives_long_is_frozen_before_the_server_serves(utils, monkeypatch, value, before, after):
    monkeypatch.setenv("FD_POSTPROC_GC", value)
    frozen, threshold = gc.get_freeze_count(), gc.get_threshold()
    try:
        gc.set_threshold(*before)
        manager = utils.DealerConnectionManager(0)
        asyncio.run(manager.initialize())
        assert manager.initialised
        assert (gc.get_freeze_count() > frozen) is (value == "")
        assert gc.get_threshold() == (after or before)
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()


def test_where_results_come_one_by_one_a_stream_waits_in_place_of_its_queue():
    parts = {name: value for name, value in vars(Manager).items() if name != "_dispatch_batch_responses"}
    cls = type("OneByOne", (), parts)

    async def run():
        manager, feed = cls(0), SimpleNamespace(name="a", choices={1}, source=None)
        connections.registering.set(feed)
        given = await manager.get_connection("a", dealer="one of fifty")
        await manager.request_map["a"].put(group(0))
        return given == ("one of fifty", feed), type(manager.request_map), await feed.source.get()

    restore = connections.install(SimpleNamespace(DealerConnectionManager=cls))
    assert asyncio.run(run()) == (True, dict, group(0))
    restore()
    assert cls.get_connection is Manager.get_connection


def test_another_dispatcher_is_left_alone():
    class Other(Manager):
        async def _dispatch_batch_responses(self):
            pass

    told = gate.put_in(SEAMS["api connections"], SimpleNamespace(DealerConnectionManager=Other))
    assert "_dispatch_batch_responses" in told


def test_a_stream_that_registers_gets_an_inbox_with_what_came_early(utils):
    """Streams without a lane, of another way of transport or name, and the task's next one get a queue."""

    async def registered(is_fed, choices=(1,), name="a", **way):
        manager = utils.DealerConnectionManager(0)
        feed = SimpleNamespace(name=name, choices={*choices}, source=None)
        give(manager.request_map, "a", group(0), group(1))
        connections.registering.set(feed if is_fed else None)
        _, waits_at = await manager.get_connection("a", **way)
        give(manager.request_map, "a", group(2))
        given = manager.request_map["a"]
        for other in "ab":
            _, queue = await manager.get_connection(other)
            assert type(queue) is asyncio.Queue
        assert (feed.source if waits_at is feed else waits_at) is given
        assert (type(given) is connections.Inbox) is (waits_at is feed and bool(feed.choices))
        return waits_at is feed, [await given.get() for _ in range(3)]

    groups = [group(step) for step in range(3)]
    assert asyncio.run(registered(True)) == (True, groups)
    assert asyncio.run(registered(True, choices=())) == (True, groups)
    assert asyncio.run(registered(True, dealer="one of fifty")) == (True, groups)
    assert asyncio.run(registered(False)) == (False, groups)
    assert asyncio.run(registered(True, name="another")) == (False, groups)


@pytest.mark.falls_back
def test_a_failure_to_make_an_inbox_leaves_the_queue(utils, monkeypatch):
    async def registered():
        manager, feed = utils.DealerConnectionManager(0), SimpleNamespace(name="a", choices={1})
        monkeypatch.setattr(connections, "Inbox", None)
        connections.registering.set(feed)
        _, queue = await manager.get_connection("a")
        give(manager.request_map, "a", group(0))
        return queue.get_nowait()

    assert asyncio.run(registered()) == group(0)


@pytest.mark.falls_back
def test_a_failure_of_ours_loses_no_dispatcher_and_is_told_to_the_client(requests, monkeypatch):
    monkeypatch.setattr(connections, "_memory_of", None)
    give(requests, "a", group(0))
    requests["a"] = queue = Queue()
    with pytest.raises(connections.ResultsDropped, match="holding them failed"):
        list(queue[0])
    for _ in range(3):
        give(requests, "b", group(0))
    assert requests.get("c") is None  # FastDeploy's own way from now on
    give(requests, "a", group(1))
    assert queue[1] == group(1)


@pytest.mark.falls_back
def test_failures_that_are_not_in_a_row_switch_it_not_off(requests, monkeypatch):
    memory_of = TwoOfThree(connections._memory_of)
    monkeypatch.setattr(connections, "_memory_of", memory_of)
    for number in range(12):
        give(requests, f"id {number}", group(0))
    assert memory_of.calls == 12
