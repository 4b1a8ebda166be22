"""FastDeploy's dispatcher and ours after bad messages, full disks, lack of memory and a closed stream."""

import asyncio
import contextlib
import inspect
import logging
from types import SimpleNamespace
from unittest import mock

import pytest

from fd_postproc.fastdeploy.api import connections, dispatcher, watchdog
from fd_postproc.fastdeploy.gate import judgements
from fd_postproc.fastdeploy.gate.seams import SEAMS
from tests.lib.rows import each
from tools.accept import virtual_time

msgpack = pytest.importorskip("msgpack")
prometheus_client = pytest.importorskip("prometheus_client")


def value(name, **labels):
    return prometheus_client.REGISTRY.get_sample_value(f"fd_postproc_{name}", labels) or 0


def faults(kind):
    return value("api_dispatcher_faults_total", kind=kind)


def message(*names):
    return msgpack.packb([[{"request_id": f"chatcmpl-{name}_0"}] for name in names])


class Stream:
    """Restates aiozmq's stream: items are messages, seconds of silence, or errors that reading raises."""

    def __init__(self, items):
        self.items = list(items)

    async def read(self):
        await asyncio.sleep(0)
        while not self.items:
            await asyncio.sleep(3600)
        item = self.items.pop(0)
        if isinstance(item, float):  # seconds in which nothing comes
            await asyncio.sleep(item)
            return await self.read()
        if isinstance(item, Exception):
            raise item
        return [item]

    def close(self):
        raise AttributeError("a transport that was lost")


class Manager:
    """Restates FastDeploy's connection manager, with the ends of its dispatcher and listener."""

    def __init__(self, module, items):
        self.module, self.running, self.request_map = module, True, {}
        self.pull_client, self.pull_metrics_address = Stream(items), "ipc"

    async def _dispatch_batch_responses(self):
        errors = 0
        while self.running:
            try:
                batch = self.module.msgpack.unpackb((await self.pull_client.read())[-1])
                self.module.main_process_metrics.record_zmq_stats(None, self.pull_metrics_address)
                for outputs in batch:
                    queue = self.request_map.get(outputs[-1]["request_id"].rsplit("_", 1)[0])
                    if queue is not None:
                        queue.put_nowait(outputs)
                errors = 0
            except OSError:
                break
            except Exception:
                errors += 1
                if errors == 5:
                    break

    async def _listen_connection(self, dealer, index):
        while self.running:
            try:
                group = msgpack.unpackb((await dealer.read())[-1])[0]
                self.module.main_process_metrics.record_zmq_stats(None, "ipc")
                await self.request_map[group[-1]["request_id"].rsplit("_", 1)[0]].put(group)
            except Exception:
                break


@pytest.fixture
def utils(monkeypatch, tmp_path):
    """A module like ``openai.utils``, whose dispatcher is ours where `known` says so."""
    made = SimpleNamespace(
        msgpack=SimpleNamespace(unpackb=msgpack.unpackb), zmq=SimpleNamespace(PULL=7), recorded=[], streams=[]
    )
    made.ZMQMetricsStats = lambda: SimpleNamespace(msg_recv_total=0)
    made.main_process_metrics = SimpleNamespace(
        record_zmq_stats=lambda stats, address: made.recorded.append(address), other=5
    )
    made.path = tmp_path / "pull"

    async def create_zmq_stream(kind, bind):
        made.path.touch()
        made.streams.append((kind, bind))
        return made.next

    made.aiozmq = SimpleNamespace(create_zmq_stream=create_zmq_stream)
    made.DealerConnectionManager = type("DealerConnectionManager", (Manager,), dict(vars(Manager)))
    restores = []

    def install(known):
        verdict = SimpleNamespace(reason=None if known else "new code")
        monkeypatch.setattr(dispatcher.gate, "judge", lambda *_: verdict)
        while restores:  # of the row before
            restores.pop()()
        restores.append(dispatcher.install(made))
        return made

    made.install = install
    yield made
    stock = vars(Manager)
    for restore in restores:
        restore()
    for name in dispatcher.COROUTINES:
        assert vars(made.DealerConnectionManager)[name] is stock[name]


def received(utils, items, names=("a",), method="_dispatch_batch_responses"):
    """Whether the dispatcher is alive once all items have been read, and the groups by request."""

    async def run():
        manager = utils.DealerConnectionManager(utils, items)
        manager.pull_ipc_path = str(utils.path)
        manager.request_map.update({name: asyncio.Queue() for name in names})
        queues = dict(manager.request_map)
        more = () if method == "_dispatch_batch_responses" else (manager.pull_client, 0)
        task = asyncio.ensure_future(getattr(manager, method)(*more))
        ended, _ = await asyncio.wait([task], timeout=100)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        got = {name: [queue.get_nowait() for _ in range(queue.qsize())] for name, queue in queues.items()}
        return not ended, got

    with virtual_time.Loop() as loop:
        return loop.run_until_complete(run())


def client(manager):
    return SimpleNamespace(connection_manager=manager)


A = "chatcmpl-a"
UNREADABLE = b"\xc1 no message", msgpack.packb(5), b""
GOOD = [{"request_id": f"{A}_0"}]
BATCHES = dispatcher.COROUTINES[0]


@each(
    "known, method, items, groups, counted",
    [
        *((True, BATCHES, [bad] * 5, 0, {"message": 5}) for bad in UNREADABLE),
        (True, BATCHES, [msgpack.packb([[], GOOD])] * 5, 5, {"group": 5}),
        (True, BATCHES, [msgpack.packb([7, [{"request_id": 7}], GOOD])] * 5, 5, {"group": 10}),
        # FastDeploy's own loses neighbours, ends after five in a row or an OSError, and is started again.
        *((False, BATCHES, [bad] * 5, 0, {"restart": 1}) for bad in UNREADABLE),
        (False, BATCHES, [msgpack.packb([[], GOOD])] * 5, 0, {"restart": 1}),
        *(
            (False, method, [OSError("planted"), message("a"), OSError("planted")], 1, {"restart": 2})
            for method in dispatcher.COROUTINES
        ),
    ],
)
def test_it_goes_on_after_what_is_bad(known, method, items, groups, counted, utils):
    utils.install(known)
    before = {kind: faults(kind) for kind in ("message", "group", "restart")}
    alive, got = received(utils, [*items, message("a")], (A,), method)
    assert alive
    assert got == {A: [GOOD] * (groups + 1)}
    assert {kind: faults(kind) - old for kind, old in before.items() if faults(kind) != old} == counted


def test_streams_get_their_turn_between_two_messages(utils):
    """aiozmq's stream takes none while messages come faster than they are read."""
    seen = []

    async def run():
        manager = utils.install(True).DealerConnectionManager(utils, [])
        manager.request_map[A], left = SimpleNamespace(put_nowait=lambda group: seen.append("group")), [1, 2]

        async def read():
            manager.running = bool(left and left.pop())
            return [message("a")]

        async def stream():
            while manager.running:
                seen.append("chunk")
                await asyncio.sleep(0)

        manager.pull_client = SimpleNamespace(read=read)
        await asyncio.gather(getattr(manager, BATCHES)(), stream())

    asyncio.run(run())
    assert seen == ["chunk", "group"] * 3


def test_what_is_skipped_is_said_without_its_content(utils, caplog, monkeypatch):
    monkeypatch.setattr(dispatcher, "_complaints", dispatcher.Complaints(logging.getLogger("x").error))
    received(utils.install(True), [b"\xc1secret", message("a")], (A,))
    assert "a message is skipped" in caplog.text
    assert "secret" not in caplog.text


@each("known", [True, False])
@each("method", dispatcher.COROUTINES)
def test_a_full_disk_behind_the_metrics_costs_no_result(known, method, utils):
    def fails(stats, address):
        raise OSError(28, "No space left on device")

    utils.main_process_metrics.record_zmq_stats = fails
    utils.install(known)
    before = faults("metrics")
    alive, got = received(utils, [message("a")] * 6, (A,), method)
    assert alive
    assert len(got[A]) == 6
    assert faults("metrics") - before == 6
    assert utils.main_process_metrics.other == 5


def ended(group):
    with pytest.raises(dispatcher.DispatcherDown, match="cannot receive results"):
        group[-1]
    return isinstance(group, connections.NoResults)


def test_one_that_ends_at_once_ends_its_streams(utils):
    utils.install(False)
    alive, got = received(
        utils, [OSError("planted")] * dispatcher.SHORT_RUNS + [message("b")], (A, "chatcmpl-b")
    )
    assert alive
    assert ended(*got[A])
    assert [ended(got["chatcmpl-b"][0]), len(got["chatcmpl-b"])] == [True, 2]


def test_a_run_that_works_ends_a_row_of_short_ones(utils):
    utils.install(False)
    short, works = (
        [OSError("planted")] * (dispatcher.SHORT_RUNS - 1),
        [dispatcher.SHORT_S, OSError("planted")],
    )
    assert received(utils, (works + short[1:]) * 3) == (True, {"a": []})
    _, got = received(utils, works + short)
    assert ended(*got["a"])


@each("failures, ends", [(dispatcher.TRIES - 1, False), (dispatcher.TRIES, True)])
def test_a_message_without_memory_is_tried_again_and_then_its_streams_end(failures, ends, utils):
    utils.install(True)
    left = [failures]

    def unpackb(content):
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError
        return msgpack.unpackb(content)

    utils.msgpack.unpackb = unpackb
    before = faults("memory"), value("dispatcher_down_requests_total", outcome="ended")
    alive, got = received(utils, [message("a")], (A,))
    assert alive
    assert faults("memory") - before[0] == failures
    assert value("dispatcher_down_requests_total", outcome="ended") - before[1] == ends
    assert ended(*got[A]) if ends else got[A] == [GOOD]


def test_a_closed_stream_ends_its_streams_and_is_opened_anew(utils):
    utils.install(True)
    utils.next = Stream([message("a")])
    alive, got = received(utils, [message("a"), ConnectionError("closed")], (A,))
    assert alive
    assert [got[A][0], ended(got[A][1]), got[A][2]] == [GOOD, True, GOOD]
    assert utils.streams == [(7, f"ipc://{utils.path}")]


class Closable(Stream):
    def close(self):
        self.items = [ConnectionError("closed")]


def test_a_stream_whose_file_is_gone_is_opened_once_more(utils):
    """The end of the socket before may remove the new one's file, by which the engine finds it."""
    utils.install(True)
    streams = [Closable([]), Stream([message("a")])]

    async def create_zmq_stream(kind, bind):
        utils.path.touch() if len(streams) == 1 else utils.path.unlink(missing_ok=True)
        return streams.pop(0)

    utils.aiozmq.create_zmq_stream = create_zmq_stream
    alive, got = received(utils, [ConnectionError("closed")], (A,))
    assert (alive, got[A][-1], streams) == (True, GOOD, [])


def test_a_manager_that_has_any_attribute_has_no_dispatcher():
    """As in FastDeploy's own unit tests of its engine client, whose requests are not refused."""
    assert watchdog._gone_watchdog(client(mock.MagicMock())) is None


def test_while_it_is_down_the_gauge_says_so_and_requests_are_refused(utils):
    async def run():
        manager = Manager(utils, ())
        made = dispatcher.Dispatcher(manager, utils)
        setattr(manager, dispatcher._DISPATCHER, made)
        made._loop = SimpleNamespace(
            time=lambda: clock.now, call_later=lambda *call: clock.calls.append(call)
        )
        clock = SimpleNamespace(now=100.0, calls=[])
        manager.request_map["a"] = asyncio.Queue()
        gauge = [value("unhealthy", reason="dispatcher")]
        assert watchdog._gone_watchdog(client(manager)) is None
        made.go_down("planted")
        gauge.append(value("unhealthy", reason="dispatcher"))
        assert "planted" in watchdog._gone_watchdog(client(manager)).text
        clock.now += 3
        made.go_down("again")
        assert manager.request_map["a"].qsize() == 1  # each stream is told once
        manager.request_map["a"] = asyncio.Queue()  # another request of the id
        made.go_down("once more")
        assert manager.request_map["a"].qsize() == 1
        clock.now += 2
        clock.calls.pop()[1]()  # the first one's: a later fault goes on
        gauge.append(value("unhealthy", reason="dispatcher"))
        clock.now += 3
        clock.calls.pop()[1]()
        gauge.append(value("unhealthy", reason="dispatcher"))
        assert watchdog._gone_watchdog(client(manager)) is None
        made.go_down("a second time")
        gauge.append(value("unhealthy", reason="dispatcher"))
        assert manager.request_map["a"].qsize() == 2
        clock.now += dispatcher.DOWN_S
        clock.calls[-1][1]()
        gauge.append(value("unhealthy", reason="dispatcher"))
        return gauge

    assert asyncio.run(run()) == [0, 1, 1, 0, 1, 0]


@each("known", [True, False])
def test_closing_ends_it(known, utils):
    """Its stream is closed with it, which is no fault then."""
    utils.install(known)
    before = [faults(kind) for kind in ("stream", "restart")]

    async def run():
        manager = utils.DealerConnectionManager(utils, [OSError("planted")])
        manager.pull_ipc_path = str(utils.path)
        task = asyncio.create_task(manager._dispatch_batch_responses())
        await asyncio.sleep(0)
        manager.running = False
        await asyncio.wait_for(task, 60)

    asyncio.run(run())
    assert [faults(kind) for kind in ("stream", "restart")] == before


def test_the_gate_knows_the_dispatcher_behind_ours(utils):
    """Ours is no reason for the other parts to fall back."""
    utils.install(True)
    ours = vars(utils.DealerConnectionManager)[dispatcher.COROUTINES[0]]
    assert inspect.unwrap(ours) is Manager._dispatch_batch_responses
    name = f"DealerConnectionManager.{dispatcher.COROUTINES[0]}"
    called = [one for said, one in judgements.functions_of(SEAMS["api connections"], utils) if said == name]
    assert called == [inspect.unwrap(ours)]
