"""The loop that receives FastDeploy's objects: a real socket, damaged messages."""

import os
import pickle
import time
from types import SimpleNamespace

import numpy as np
import pytest

from fd_postproc.explain.findings import findings
from fd_postproc.explain.timeline import Picture
from fd_postproc.flight import reading
from fd_postproc.flight.codes import Kind
from tests.lib.plugged import plugin_class
from tests.lib.quiet import imported
from tests.lib.waiting import until

pytestmark = pytest.mark.framework

SHARED = "/dev/shm"


class Server:
    """The engine's end, as FastDeploy binds it."""

    def __init__(self, path):
        import zmq

        self.context, self.address, self.closed = zmq.Context(), f"ipc://{path}", False
        self.socket = self.context.socket(zmq.PULL)
        self.socket.bind(self.address)

    def recv_pyobj(self):
        raise AssertionError("the plug-in receives itself")

    def close(self):
        self.closed = True
        self.socket.close()
        self.context.term()


def request(name, slot):
    module = imported("fastdeploy.engine.request")
    now = time.time()
    task = module.Request(
        request_id=name,
        eos_token_ids=[2],
        prompt_token_ids_len=3,
        metrics=module.RequestMetrics(
            arrival_time=now, inference_start_time=now, preprocess_start_time=now, preprocess_end_time=now
        ),
    )
    task.output_token_ids, task.block_tables, task.num_cached_tokens, task.idx = [], [], 0, slot
    return task


@pytest.fixture
def running(monkeypatch, tmp_path):
    """A processor that receives from a real socket; send(bytes), put, and the processor."""
    import zmq

    monkeypatch.setenv("FD_USE_GET_SAVE_OUTPUT_V1", "1")
    replay, stubs, config = (
        imported("tests.lib.stream_replay"),
        imported("tests.lib.step_replay.stubs"),
        imported("fastdeploy.config"),
    )
    cfg = config.FDConfig()
    cfg.model_config.enable_logprob = True
    scheduler, manager = stubs.Scheduler(), stubs.ResourceManager(8)
    processor = plugin_class()(cfg, scheduler, stubs.EngineWorkerQueue(), stubs.SplitConnector())
    assert type(processor).__module__.startswith("fd_postproc")
    server = processor.zmq_server = Server(tmp_path / "steps")
    processor.set_resource_manager(manager)
    for slot in range(4):
        manager.insert(request(f"r{slot}", slot), slot)
    sender = zmq.Context.instance().socket(zmq.PUSH)
    sender.setsockopt(zmq.LINGER, 0)
    sender.connect(server.address)
    processor.run()

    def steps(number):
        until(lambda: len(scheduler.put) >= number)
        assert len(scheduler.put) == number
        return scheduler.put[-1]

    def told():
        """The first results that are not none."""
        return until(lambda: next(filter(None, scheduler.put), None))

    yield SimpleNamespace(
        processor=processor, server=server, send=sender.send, steps=steps, told=told, replay=replay
    )
    processor.stop(60)
    sender.close()
    assert not processor.worker.is_alive()
    assert server.closed
    processor._finalizer()


def rows(replay, tokens, columns):
    ids = [[token, *range(100, 99 + columns)] for token in tokens]
    scores = [[-0.5 * k for k in range(columns)] for _ in tokens]
    return replay.tensors({"ids": ids, "scores": scores, "ranks": [1] * len(tokens)})


def step(replay, tokens, columns=3):
    tensor = imported("paddle").to_tensor(np.array(tokens, "int64"))
    return replay.build(tensor, logprobs=rows(replay, tokens, columns))


def shared_files():
    return {name for name in os.listdir(SHARED) if name.startswith(f"paddle_{os.getpid()}_")}


def test_steps_through_a_real_socket(running):
    before = shared_files()
    for number, columns in enumerate((3, 21, 50), 1):
        tokens = [10 * number + slot for slot in range(4)]
        running.send(running.replay.message(step(running.replay, tokens, columns)))
        results = running.steps(number)
        assert [result["outputs"]["token_ids"] for result in results] == [[token] for token in tokens]
        assert [len(result["outputs"]["top_logprobs"][0][0]) for result in results] == [columns] * 4
    assert running.processor.counters.steps == 3
    assert shared_files() <= before


def test_the_flight_recorder_tells_of_them(running):
    """Steps, first tokens and ends, what is refused; no step is in hand afterwards."""
    for tokens in ([5, 6, 7, 8], [5, 6, 7, 2]):
        running.send(running.replay.message(step(running.replay, tokens)))
    running.steps(2)
    running.send(b"not a pickle")
    running.send(running.replay.message(step(running.replay, [9, 10, 11])))
    running.steps(3)
    path = running.processor.recorder.path
    until(lambda: reading.read(path).busy_since is None)
    entries = reading.read(path).entries
    assert [entry.live for entry in entries if isinstance(entry, reading.StepEntry)] == [4, 4, 3]
    events = [entry.kind for entry in entries if isinstance(entry, reading.Event)]
    assert [events.count(kind) for kind in (Kind.BEGAN, Kind.ENDED, Kind.REFUSED)] == [4, 1, 1]
    running.processor.stop(60)
    flight = reading.read(path)
    assert [one.code for one in findings(Picture(flight, reading.now() + 60.0))] == ["malformed"]


def hostile():
    return [
        b"\x80",
        b"not a pickle",
        b"\x80\x04.",
        pickle.dumps(None),
        pickle.dumps({"__meta": 3, "data": []}),
        pickle.dumps({"__meta": {"send_ts": "noon"}, "data": []}),
        pickle.dumps([1, None, "a"]),
        pickle.dumps([SimpleNamespace(batch_id=7)]),
        pickle.dumps({"data": []}),
        b"cnowhere\nnothing\n.",
        b"\x80\x04\x8c\x28paddle.incubate.multiprocessing.reductions\x94.",
        b"(" * 100_000,
        pickle.dumps([])[:-1],
    ]


def test_damaged_messages_never_end_the_thread(running):
    """Each is counted, and the next step comes through."""
    for content in hostile():
        running.send(content)
    good = running.replay.message(step(running.replay, [5, 6, 7, 8]))
    for cut in range(1, len(good), 97):
        running.send(good[:cut])
    running.send(running.replay.message(step(running.replay, [5, 6, 7, 8])))
    results = running.told()
    assert [result["request_id"] for result in results] == ["r0", "r1", "r2", "r3"]
    counters = running.processor.counters
    assert counters.malformed + counters.lost_steps >= len(hostile()) + len(good) // 97 - 2


def test_a_message_whose_tensors_are_gone_is_refused(running):
    """FastDeploy's unpickling raises; the next step comes through."""
    before = shared_files()
    content = running.replay.message(step(running.replay, [5, 6, 7, 8]))
    for name in shared_files() - before:
        os.unlink(f"{SHARED}/{name}")
    running.send(content)
    running.send(running.replay.message(step(running.replay, [9, 10, 11, 12])))
    results = running.steps(1)
    assert [result["outputs"]["token_ids"] for result in results] == [[9], [10], [11], [12]]
    assert running.processor.counters.malformed == 1
