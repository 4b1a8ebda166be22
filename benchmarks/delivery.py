"""From a message to the bytes on the API server's socket: token processor, scheduler, send loop, ZeroMQ.

Everything but the token processor and what the plug-in puts into FastDeploy is FastDeploy's own code, or its
double's.  The socket is a real one, and another process reads it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import sysv_ipc

from fd_postproc.fastdeploy.engine.delivery.delivery import Delivery
from fd_postproc.fastdeploy.engine.delivery.wake_up import WakeUp
from fd_postproc.support.subprocess_json import python_command
from tests.restated.workload import Case as LoadCase

from .cases import HEADLINE, Case, Comparison, Ready, Unavailable, check, timed
from .processors import OURS, RESTATED, cases, load_case, loaded, names, step_call, token_processor_module

if TYPE_CHECKING:
    from .runner import Compared

ABOUT = (
    "a received message -> bytes on a ZeroMQ socket: results, scheduler, send loop, msgpack; in one thread; "
    "and in two, with a pause before each step, from a word in a queue until the socket's other end has it"
)
REFERENCE = OURS
BASELINE = RESTATED
TAIL = True

PAUSE = 0.025
"""Seconds from the end of a step to the next in two threads: a model's forward pass."""

SHORT_PAUSE = 0.0025
"""The same, too short for a rented core's neighbours to take its caches."""

load = token_processor_module


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in cases(True) if quick else (Case(batch=32, columns=1), *HEADLINE):
        yield Comparison(
            str(case), {name: partial(_in_one, name, load_case(case)) for name in names()}, rounds=3
        )
    few = Case(batch=32, columns=1)
    for case in (few,) if quick else (few, HEADLINE[0], HEADLINE[-1]):
        yield _two_threads(case, names(), PAUSE)
    for case in () if quick else (HEADLINE[0], HEADLINE[-1]):
        yield _two_threads(case, [RESTATED, OURS], SHORT_PAUSE)


def _two_threads(case: Case, contenders: Iterable[str], pause: float) -> Comparison:
    made = {name: partial(_in_two, name, load_case(case), pause) for name in contenders}
    return Comparison(f"{case}, two threads, {1000 * pause:g} ms pause", made, rounds=1)


class Engine:
    """A token processor with a full batch, and FastDeploy's engine around it as far as results go.

    Parameters
    ----------
    name : str
        The token processor; with ours comes all that the plug-in puts into FastDeploy.
    case : Case
    socket : zmq.Socket
        What results are sent by.
    """

    def __init__(self, name: str, case: LoadCase, socket: Any) -> None:
        module = token_processor_module()
        service = importlib.import_module("fastdeploy.engine.common_engine").EngineService
        server = importlib.import_module("fastdeploy.inter_communicator.zmq_server")
        scheduler = importlib.import_module("fastdeploy.scheduler.local_scheduler").LocalScheduler
        self.work = loaded(name, module, case)
        few = scheduler.__init__.__code__.co_argcount <= 3
        self.scheduler: Any = scheduler() if few else scheduler(0, 900, False, 1, 1, 1)
        self.scheduler.requests = {task.request_id: SimpleNamespace() for task in self.work.tasks}
        self.work.processor.cached_generated_tokens = self.scheduler
        self.step = step_call(self.work)
        sends: Any = object.__new__(server.ZmqIpcServer)
        vars(sends).update(
            socket=socket, address="benchmark", response_token_lock=threading.Lock(), worker_push_addresses={}
        )
        self.engine: Any = object.__new__(service)
        vars(self.engine).update(
            running=True,
            scheduler=self.scheduler,
            send_response_server=sends,
            request_worker_map={},
            llm_logger=server.llm_logger,
        )
        self._stock = inspect.unwrap(vars(service)["_zmq_send_generated_tokens"])
        self.delivery: Delivery | None = None
        self._changes: list[Any] = []
        if name == OURS:
            plan = self.work.processor.plan
            self.delivery = Delivery(plan, self.scheduler, service, server)
            self.work.processor.parts.pairing.delivery = self.delivery
            self._changes = [WakeUp(self.scheduler), self.delivery]
            check(self.delivery.sending is not None, "FastDeploy's way is timed")
        for change in self._changes:
            change.begin()

    def send(self) -> None:
        """A round of the loop."""
        if self.delivery is None:
            self._stock(_OneRound(self.engine))
        else:
            self.delivery.round(self.engine)

    def run(self) -> None:
        """The sender's thread."""
        if self.delivery is None:
            self._stock(self.engine)
        else:
            self.delivery.run(self.engine)

    def close(self) -> None:
        for change in self._changes:
            change.end()


class _OneRound:
    """Engine whose loop ends after a round."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._asked = engine, iter((True, False))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def running(self) -> bool:
        return next(self._asked)


def _zmq() -> Any:
    try:
        return importlib.import_module("zmq")
    except ModuleNotFoundError:
        raise Unavailable("needs pyzmq: pip install pyzmq") from None


def _without_times(packed: bytes) -> list[Any]:
    """What a client unpacks, without the times in the metrics, and without what grows from step to step."""
    requests: list[Any] = importlib.import_module("msgpack").unpackb(packed)
    for results in requests:
        for one in results:
            one["metrics"], one["outputs"]["send_idx"] = list(one["metrics"]), None
    return requests


def _right(packed: bytes, case: LoadCase) -> None:
    """Refuse a message that is not what FastDeploy's own way makes."""
    zmq = _zmq()
    context = zmq.Context()
    ends = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    ends[1].bind("inproc://reference")
    ends[0].connect("inproc://reference")
    other = Engine(RESTATED, case, ends[0])
    try:
        other.step()
        other.send()
        check(_without_times(packed) == _without_times(ends[1].recv()), "a client would see something else")
    finally:
        other.close()
        for end in ends:
            end.close()
        context.term()


# ---- One thread: what it costs -----------------------------------------------------------------------------


def _in_one(name: str, case: LoadCase) -> Ready:
    """Steps and rounds in turn; another process throws away what it receives."""
    zmq = _zmq()
    context = zmq.Context()
    folder = tempfile.TemporaryDirectory()
    path = f"ipc://{folder.name}/socket"
    first, socket = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, 50)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(path)
    first.connect(path)
    engine = Engine(name, case, socket)
    engine.step()
    engine.send()
    packed = first.recv()
    first.close()
    _right(packed, case)
    reader = subprocess.Popen(python_command(__name__, path), stdin=subprocess.PIPE)

    def call() -> None:
        engine.step()
        engine.send()

    run = timed(call)

    def young(loops: int) -> float:
        engine.work.reset()
        call()
        return run(loops)

    def close() -> None:
        engine.close()
        assert reader.stdin is not None
        reader.stdin.close()
        reader.wait()
        socket.close()
        context.term()
        folder.cleanup()

    return Ready(young, len(packed), close=close)


# ---- Two threads: how long it takes ------------------------------------------------------------------------


def _in_two(name: str, case: LoadCase, pause: float) -> Ready:
    """The token thread waits for a word in a queue, the sender's thread in FastDeploy's loop."""
    zmq = _zmq()
    sent: list[float] = []

    class Noting(zmq.Socket):  # type: ignore[misc, name-defined]
        """Notes when it has taken the bytes."""

        def send(self, *arguments: Any, **named: Any) -> Any:
            done = super().send(*arguments, **named)
            sent.append(time.perf_counter())
            return done

    context = zmq.Context()
    socket, other = context.socket(zmq.PUSH, socket_class=Noting), context.socket(zmq.PULL)
    folder = tempfile.TemporaryDirectory()
    other.bind(f"ipc://{folder.name}/socket")
    socket.connect(f"ipc://{folder.name}/socket")
    engine = Engine(name, case, socket)
    words = sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX, mode=0o600)
    threads = [
        threading.Thread(target=_token_thread, args=(words, engine.step), daemon=True),
        threading.Thread(target=engine.run, daemon=True),
    ]
    for thread in threads:
        thread.start()
    spent: list[float] = []
    taken: list[float] = []

    def call() -> float:
        engine.work.reset()
        time.sleep(pause)
        before, began = time.process_time(), time.perf_counter()
        words.send(b"a step")
        received = other.recv()
        took = time.perf_counter() - began
        spent.append(time.process_time() - before)
        taken.append(1000 * (sent[-1] - began))
        assert received
        return took

    words.send(b"a step")
    packed = other.recv()
    _right(packed, case)

    def run(loops: int) -> float:
        return sum(call() for _ in range(loops))

    def facts() -> dict[str, Any]:
        ordered = sorted(taken)
        return {
            "cpu_ms": 1000 * sum(spent) / len(spent),
            "socket_p50_ms": ordered[len(ordered) // 2],
            "socket_p99_ms": ordered[int(0.99 * len(ordered))],
        }

    def close() -> None:
        engine.engine.running = False
        words.remove()
        for thread in threads:
            thread.join(10)
        engine.close()
        for end in (socket, other):
            end.close()
        context.term()
        folder.cleanup()

    return Ready(run, len(packed), close=close, single=True, facts=facts)


def _token_thread(words: Any, step: Callable[[], Any]) -> None:
    while True:
        try:
            words.receive()
        except sysv_ipc.ExistentialError:  # it was removed
            return
        step()


def notes(compared: list[Compared]) -> list[str]:
    """Of a step in two threads: its CPU, all threads of the process together; and when the socket has it."""
    lines = []
    for one in compared:
        facts = {name: result.facts for name, result in one.results.items()}
        if all("cpu_ms" in of for of in facts.values()):
            cpu = [f"{name} {of['cpu_ms']:.2f} ms" for name, of in facts.items()]
            until = [
                f"{name} {of['socket_p50_ms']:.2f}, {of['socket_p99_ms']:.2f} ms"
                for name, of in facts.items()
            ]
            lines.append(f"{one.case}, CPU of the process a step: {', '.join(cpu)}")
            lines.append(f"{one.case}, until the socket has the bytes, median, p99: {'; '.join(until)}")
    return lines


def main() -> None:
    """Throw away what comes, until the process that asked for it goes."""
    zmq = _zmq()
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.connect(sys.argv[1])
    threading.Thread(target=_discard, args=(socket,), daemon=True).start()
    sys.stdin.buffer.read()
    os._exit(0)


def _discard(socket: Any) -> None:
    while True:
        socket.recv(copy=False)


if __name__ == "__main__":
    main()
