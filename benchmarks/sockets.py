"""FastDeploy's other road (``FD_USE_GET_SAVE_OUTPUT_V1``): what a step costs on it, at each of its places.

The model runner's thread makes something of the step's tensors, another one pickles and sends it, and the
engine's token thread receives it and makes results.  Builder, pickler and token processor are FastDeploy's
own or its double's, tensors are Paddle's, in host memory, and the socket is a real one.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fd_postproc.environment import PEER, STREAMS
from tests.restated.workload import Load

from .cases import Case, Comparison, Ready, Unavailable, check, timed
from .processors import OURS, load_case, processor_class, token_processor_module

if TYPE_CHECKING:
    from .runner import Compared

ABOUT = (
    "a step over FastDeploy's ZeroMQ road: the model runner's thread, the thread that sends, and the engine "
    "from the socket to results; files made in /dev/shm"
)
STOCK = "FastDeploy's classes"
REFERENCE = OURS
BASELINE = STOCK
SHARED = Path("/dev/shm")
TOPK = Case("topk", 256, 1, 21)

load = token_processor_module


def comparisons(quick: bool) -> Iterator[Comparison]:
    others = Case("topk", 32, 1, 21), Case("topk", 256, 1, 1), Case("plain", 256, 1, 1)
    for case in (TOPK, *(() if quick else others)):
        for place, make in (("model runner", _runner), ("sender", _sender)):
            ways = {name: partial(make, name, case) for name in (STOCK, OURS)}
            yield Comparison(f"{case}, {place}", ways, rounds=3)
        ways = {name: partial(_engine, name, case) for name in (STOCK, OURS)}
        yield Comparison(f"{case}, engine", ways, rounds=3)


def notes(compared: list[Compared]) -> list[str]:
    return [
        "FastDeploy's way makes three files in /dev/shm for each request with log-probabilities, ours none"
    ]


class Road:
    """Both ends of the road, with a full batch of running requests.

    Parameters
    ----------
    name : {STOCK, OURS}
    case : Case
    """

    def __init__(self, name: str, case: Case) -> None:
        os.environ["FD_USE_GET_SAVE_OUTPUT_V1"] = "1"
        os.environ[PEER.name] = STREAMS if name == OURS else ""
        self.name, self.case, self.module = name, case, token_processor_module()
        importlib.import_module("paddle.incubate.multiprocessing")  # how tensors are pickled
        try:
            builders = importlib.import_module("fastdeploy.model_executor.pre_and_post_process")
        except ImportError as error:  # without a GPU its own ops are not there
            raise Unavailable(
                f"FastDeploy's model runner cannot be imported: {error}; on a machine without a GPU put "
                "harness/service/shim first on PYTHONPATH"
            ) from None
        build: Callable[..., Any] = builders._build_stream_transfer_data
        if name == OURS:
            from fd_postproc.fastdeploy.worker.streams import StreamBuilder

            build = StreamBuilder(build)
        self.tokens, rows = self._tensors()
        self.build = partial(build, self.tokens, logprobs=rows)

    def _tensors(self) -> tuple[Any, Any]:
        paddle: Any = importlib.import_module("paddle")
        kind = importlib.import_module("fastdeploy.worker.output").LogprobsTensors
        inputs = self.case.inputs()
        on_host = partial(paddle.to_tensor, place="cpu")
        rows = None
        if "ids" in inputs:
            inputs["ids"][:, 0] = inputs["tokens"].ravel()
            rows = kind(*(on_host(inputs[part]) for part in ("ids", "scores", "ranks")))
        self.inputs = inputs
        return on_host(inputs["tokens"].reshape(-1, 1)), rows

    def message(self) -> bytes:
        """What FastDeploy's thread sends for what the builder has made."""
        return pickled(self.build())


def pickled(built: Any) -> bytes:
    """FastDeploy's envelope."""
    return bytes(ForkingPickler.dumps({"__meta": {"send_ts": time.perf_counter()}, "data": built}))


def files() -> int:
    """Paddle's in /dev/shm, of this process."""
    begins = f"paddle_{os.getpid()}_"
    return sum(name.startswith(begins) for name in os.listdir(SHARED))


def _runner(name: str, case: Case) -> Ready:
    road = Road(name, case)
    check(isinstance(road.build(), list if name == STOCK else bytes), "something else was built")
    return Ready(timed(road.build))


def _sender(name: str, case: Case) -> Ready:
    road = Road(name, case)
    built, before = road.build(), files()
    content = pickled(built)
    made = files() - before
    check(made == (3 * case.batch if name == STOCK and case.channel == "topk" else 0), f"{made} files made")
    _let_go(content)

    def run(loops: int) -> float:
        total = 0.0
        for _ in range(loops):
            began = time.perf_counter()
            content = pickled(built)
            total += time.perf_counter() - began
            _let_go(content)
        return total

    return Ready(run, len(content))


def _let_go(content: bytes) -> None:
    """Read a message as FastDeploy does, so that its files are removed."""
    ForkingPickler.loads(content)


class Server:
    """The engine's end of a socket, as FastDeploy binds and reads it."""

    def __init__(self) -> None:
        try:
            zmq: Any = importlib.import_module("zmq")
        except ImportError as error:
            raise Unavailable(f"needs pyzmq: {error}") from None
        self._folder = tempfile.TemporaryDirectory(prefix="fd_postproc-")
        self.address = f"ipc://{self._folder.name}/steps"
        self.context = zmq.Context()
        self.socket, self.sender = self.context.socket(zmq.PULL), self.context.socket(zmq.PUSH)
        self.socket.bind(self.address)
        self.sender.connect(self.address)

    def recv_pyobj(self) -> Any:
        return ForkingPickler.loads(self.socket.recv())["data"]

    def close(self) -> None:
        self.socket.close()
        self.sender.close()
        self.context.term()
        self._folder.cleanup()


def _engine(name: str, case: Case) -> Ready:
    road = Road(name, case)
    cls = road.module.TokenProcessor if name == STOCK else processor_class(OURS, road.module)
    work = Load(road.module, cls, load_case(case))
    processor = work.processor
    if processor.zmq_server is not None:
        processor.zmq_server.close()
    server = processor.zmq_server = Server()
    if name == STOCK:

        def take() -> None:
            datas = server.recv_pyobj()
            processor._reschedule_preempt_task_use_zmq(datas)
            processor.postprocess(processor._process_batch_output_use_zmq(datas))

    else:
        check(
            hasattr(processor, "_take_message"),
            "the plug-in fell back: FastDeploy's own class would be timed",
        )

        def take() -> None:
            processor._take_message(processor._received())

    def run(loops: int) -> float:
        total = 0.0
        for _ in range(loops):
            work.reset()
            server.sender.send(road.message())
            server.socket.poll(1000)
            began = time.perf_counter()
            take()
            total += time.perf_counter() - began
        return total

    run(2)
    results, inputs = work.sink.last, road.inputs
    check([r.outputs.token_ids for r in results] == inputs["tokens"].reshape(-1, 1).tolist(), "other tokens")
    if "ids" in inputs:
        told = [r.outputs.top_logprobs.logprobs[0] for r in results]
        check(np.array_equal(np.array(told, np.float32), inputs["scores"]), "other log-probabilities")
    check(files() == 0, "files are left in /dev/shm")
    return Ready(run, len(road.message()) if name == OURS else 0, close=server.close)
