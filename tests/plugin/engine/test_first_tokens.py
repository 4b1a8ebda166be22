"""Requests of a decode node that wait for their first token, and a prefill node that dies meanwhile."""

import contextlib
import math
import os
import signal
import socket
import subprocess
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from fd_postproc.fastdeploy.engine.health import first_tokens
from fd_postproc.fastdeploy.engine.health.first_tokens import FirstTokens, refuses
from tests.lib.children import python
from tests.lib.rig import Rig
from tests.lib.rows import each
from tests.lib.waiting import until

pytestmark = pytest.mark.framework
DEAD, ALIVE = ("127.0.0.1", 1001), ("127.0.0.1", 1002)


@pytest.fixture
def rig():
    """A decode node: "a" and "b" have their tokens, "c" and "d" a slot, "e" is in the scheduler only."""
    one = Rig("topk", ["a", "b", "c", "d"], splitwise_role="decode")
    places = {"a": DEAD, "b": ALIVE, "c": DEAD, "d": ALIVE, "e": DEAD}
    infos = {
        name: {"prefill_ip": host, "prefill_connector_port": str(port)}
        for name, (host, port) in places.items()
    }
    for name, request in one.manager.requests.items():
        request.disaggregate_info = infos[name]
    for slot in 2, 3:  # as FastDeploy's manager reserves it
        one.manager.tasks_list[slot] = None
    raw = {name: SimpleNamespace(disaggregate_info=info) for name, info in infos.items()}
    one.sink.requests = {name: SimpleNamespace(raw=value) for name, value in raw.items()}
    return one


def looks(rig, watch, seconds):
    """The ids of what ends, one look a half second."""
    for tick in range(int(2 * seconds) + 1):
        watch.look(rig.processor, 100.0 + tick / 2)
    return [result.request_id for put in rig.sink.puts for result in put]


def gauge():
    return REGISTRY.get_sample_value("fd_postproc_waiting_first_tokens", {"side": "engine"})


class Nodes:
    """Prefill nodes of which `dead` are dead from a time on."""

    def __init__(self, dead, act=lambda: None):
        self._dead, self._act, self.named = dead, act, set()

    def dead(self, named, now):
        self.named |= set(named)
        self._act()
        return {address for address, since in self._dead.items() if now >= since}


def test_those_of_a_dead_prefill_node_end_and_no_others(rig):
    nodes = Nodes({DEAD: 101})
    watch = FirstTokens(nodes)
    assert looks(rig, watch, 1) == []
    assert (gauge(), nodes.named) == (3, {DEAD, ALIVE})
    assert sorted(looks(rig, watch, 8)) == ["c", "e"]
    results = [result for put in rig.sink.puts for result in put]
    assert {(one.error_code, one.finished) for one in results} == {(502, True)}
    assert all(one.error_msg.startswith("PD Error") for one in results)  # the router asks another pair then
    assert rig.manager.stop_flags[:4] == [False, False, True, False]
    assert [call for call in rig.manager.calls if "recycle" in call[0]] == [["pre_recycle_resource", "c"]]
    assert rig.processor.counters.failed_requests == 2
    entry = rig.sink.requests.pop("e")
    watch.look(rig.processor, 110.0)
    rig.sink.requests["e"] = entry  # its id is used again
    for now in 111.0, 114.0:
        watch.look(rig.processor, now)
    assert rig.processor.counters.failed_requests == 3


def test_a_first_token_that_comes_meanwhile(rig):
    """The request goes on."""
    request = rig.manager.requests["c"]
    nodes = Nodes({DEAD: 105}, lambda: rig.manager.tasks_list.__setitem__(2, request))
    assert looks(rig, FirstTokens(nodes), 20) == ["e"]
    assert rig.manager.stop_flags[2] is False


@pytest.mark.parametrize("role", ["mixed", "prefill"])
def test_other_nodes_ask_nobody(rig, role):
    rig.processor.cfg.scheduler_config.splitwise_role = role
    assert looks(rig, FirstTokens(Nodes({DEAD: 0, ALIVE: 0})), 20) == []


PREFILL = """
import ctypes, os, signal, socket, struct, sys, time, zmq
router = zmq.Context().socket(zmq.ROUTER)
port = router.bind_to_random_port("tcp://127.0.0.1")
if sys.argv[1] == "heir" and os.fork() == 0:  # as an API process, which has the listening socket, too
    time.sleep(600)

def fork(*_):
    if os.fork() == 0:
        time.sleep(600)
    os.write(1, b"forked\\n")

def vanish(*_):
    # The kernel drops all that comes to these sockets, as if the host were off: no answer, no end.
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family == socket.AF_INET:
                    SO_ATTACH_FILTER = 26
                    one.setsockopt(
                        socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(nothing))
                    )
        except OSError:
            pass  # no socket
    os.write(1, b"vanished\\n")  # print would be called inside itself, where it has just written the port

signal.signal(signal.SIGUSR1, vanish)
signal.signal(signal.SIGUSR2, fork)
print(port, flush=True)
while True:
    router.poll(1000)
"""


@contextlib.contextmanager
def prefill_node(nodes=None, heir="alone"):
    """A process that listens as a prefill node's connector does, once `nodes` see it; its address."""
    with subprocess.Popen(
        python(PREFILL, heir), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as node:
        try:
            address = ("127.0.0.1", int(node.stdout.readline()))
            if nodes is not None:
                until(lambda: is_up(nodes, address))
            yield node, address
        finally:
            os.killpg(node.pid, signal.SIGKILL)


@pytest.fixture
def nodes(request):
    """Prefill nodes, with the limit that a test's parameter says."""
    nodes = first_tokens.PrefillNodes(getattr(request, "param", math.inf))
    yield nodes
    nodes.close()


def vanish(node):
    node.send_signal(signal.SIGUSR1)
    assert node.stdout.readline() == "vanished\n"


def is_up(nodes, address):
    nodes.dead([address], 0.0)
    return nodes._connections[address].is_up


@pytest.mark.parametrize("heir", ["heir", "alone"])
def test_a_killed_engine_is_dead_also_while_its_children_have_the_port(nodes, heir):
    with prefill_node(nodes, heir) as (node, address):
        node.kill()
        until(lambda: not is_up(nodes, address))
        assert nodes.dead([address], 1.0) == set()
        if heir == "alone":
            until(lambda: refuses(address))
        else:
            assert not refuses(address)
        assert nodes.dead([address], 1.0 + first_tokens.GONE_S) == {address}


def test_a_killed_engine_whose_children_have_the_connection(nodes):
    """It forked them after it had been connected to, as one that is restarted does."""
    with prefill_node(nodes) as (node, address):
        node.send_signal(signal.SIGUSR2)
        assert node.stdout.readline() == "forked\n"
        first = nodes._connections[address]
        until(
            lambda: (
                not nodes.dead([address], first_tokens.RENEW_S) and first is not nodes._connections[address]
            )
        )
        assert nodes._connections[address].named == first_tokens.RENEW_S
        node.kill()
        until(lambda: nodes.dead([address], first_tokens.RENEW_S) or not nodes._connections[address].is_up)
        assert nodes.dead([address], 100.0) == {address}


def test_a_request_whose_transfer_failed_does_not_wait(rig):
    """FastDeploy's scheduler goes on knowing it."""
    watch = FirstTokens(Nodes({}))
    looks(rig, watch, 0)
    assert gauge() == 3
    del rig.manager.requests["c"]
    looks(rig, watch, 0)
    assert gauge() == 2


@pytest.mark.parametrize("killed", [False, True])
def test_a_stopped_engine_is_not_dead(nodes, killed):
    """A connection that was to take the first one's place does not while nobody greets there."""
    with prefill_node(nodes, "heir") as (node, address):
        os.kill(node.pid, signal.SIGSTOP)
        assert not any(nodes.dead([address], float(second)) for second in range(0, 120, 10))
        if killed:
            node.kill()
            until(lambda: nodes.dead([address], 120.0) or not nodes._connections[address].is_up)
            assert nodes.dead([address], 130.0) == {address}
        os.kill(node.pid, signal.SIGCONT)


def test_one_that_is_there_again_is_not_dead(nodes):
    with prefill_node(nodes) as (_, address):
        pass
    until(lambda: not is_up(nodes, address))
    anew = PREFILL.replace('bind_to_random_port("tcp://127.0.0.1")', f'bind("tcp://127.0.0.1:{address[1]}")')
    with subprocess.Popen(python(anew, "alone"), stdout=subprocess.PIPE) as node:
        until(lambda: is_up(nodes, address))
        assert nodes.dead([address], 100.0) == set()
        node.kill()


def test_one_that_was_never_there(nodes):
    """A refused connection is proof, and no answer is none."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as server:
        address = server.getsockname()
        # The first connections fill the backlog; each look after them waits half a second.
        assert not any(nodes.dead([address], second) for second in (0.0, 1.0, 2.0, 10.0, 19.0))
    assert nodes.dead([address], 20.0) == set()
    assert nodes.dead([address], 20.0 + first_tokens.GONE_S) == {address}
    for late in 1.5, 3.0:  # as long as requests name it
        assert nodes.dead([address], late * first_tokens.FORGET_S) == {address}
    assert not refuses(("name.invalid", 1))


def test_no_more_are_watched_than_there_is_room_for(nodes, monkeypatch):
    """A client may name any; those that no request names any more go first."""
    monkeypatch.setattr(first_tokens, "MOST_NODES", 3)
    watched = nodes._connections
    names = [("127.0.0.1", port) for port in range(1, 6)]
    nodes.dead(names[:2], 0.0)
    nodes.dead(names[1:3], 1.0)
    nodes.dead(names[2:4], 2.0)
    assert set(watched) == {*names[1:4]}
    nodes.dead([names[0], *names[2:]], 3.0)
    assert len(watched) == 3
    assert {*names[2:4]} < set(watched)


@each("host", ["", "a b", "x" * 300, "ü" * 70, "a\0b"])
@pytest.mark.parametrize("port", [0, -1, 1 << 40])
def test_what_is_no_address_disturbs_no_other_node(nodes, host, port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    nodes.dead([(host, port), address], 0.0)
    assert address in nodes.dead([(host, port), address], first_tokens.GONE_S)


def test_a_host_that_is_longer_than_any_name_is_none():
    info = {"prefill_ip": "x" * 254, "prefill_connector_port": 1}
    assert first_tokens._address_of(SimpleNamespace(disaggregate_info=info)) is None


def was_closed(nodes, address):
    nodes.dead([address], 0.0)
    return nodes._connections[address]._was_closed


@each(
    "events, closed",
    [("reached closed", False), ("reached up closed", True), ("reached ungreeted", True),
     ("reached ungreeted closed", True), ("up closed reached up", False), ("up closed reached closed", True)],
)  # fmt: skip
def test_what_is_a_connection_that_was_closed(events, closed):
    """Not one that nobody greets yet."""
    one = object.__new__(first_tokens.Connection)
    one.is_up = one._was_closed = False
    for number, name in enumerate(("reached", "up", "closed", "ungreeted")):
        setattr(one, f"_{name}", number)
    for name in events.split():
        one._note(getattr(one, f"_{name}"))
    assert one._was_closed is closed


def test_one_that_died_before_it_was_named(nodes, monkeypatch):
    """Its children have the port: the kernel accepts connections, and nobody greets."""
    monkeypatch.setattr(first_tokens, "GREET_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        until(lambda: was_closed(nodes, address))
        assert nodes.dead([address], 1.0) == set()
        assert nodes.dead([address], 1.0 + first_tokens.GONE_S) == {address}


def test_one_that_was_stopped_when_it_was_named(nodes, monkeypatch):
    monkeypatch.setattr(first_tokens, "GREET_S", 0.2)
    with prefill_node() as (node, address):
        os.kill(node.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, node.pid, os.WSTOPPED)  # until then it may greet yet
        until(lambda: was_closed(nodes, address))
        monkeypatch.setattr(first_tokens, "GREET_S", 60.0)
        os.kill(node.pid, signal.SIGCONT)
        until(lambda: is_up(nodes, address))
        assert not any(nodes.dead([address], float(second)) for second in range(20))


@pytest.mark.parametrize("nodes", [1.0], indirect=True)
def test_a_host_that_vanishes_is_dead_after_the_limit(nodes):
    with prefill_node(nodes) as (node, address):
        vanish(node)
        until(lambda: was_closed(nodes, address))
        assert nodes.dead([address], 1.0) == set()
        assert nodes.dead([address], 1.0 + first_tokens.GONE_S) == {address}


@pytest.mark.parametrize(("nodes", "is_dead"), [(7.0, True), (math.inf, False)], indirect=["nodes"])
def test_a_host_that_never_answered(nodes, is_dead):
    with prefill_node() as (node, address):
        vanish(node)
        assert nodes.dead([address], 1.0) == nodes.dead([address], 7.9) == set()
        assert nodes.dead([address], 8.0) == ({address} if is_dead else set())


@pytest.mark.parametrize(("limit", "told"), [("60", False), ("off", False), ("soon", True), ("1", True)])
def test_the_limit_is_a_variable(rig, monkeypatch, log, limit, told):
    monkeypatch.setenv("FD_POSTPROC_UNREACHABLE", limit)
    watch = FirstTokens()
    watch.look(rig.processor)
    watch.close()
    assert watch._nodes._limit == (60 if limit == "60" else math.inf)
    assert (f"FD_POSTPROC_UNREACHABLE={limit!r} is not a number of seconds" in log.text) is told
