"""The trial of the way out: FastDeploy's code and ours send the same steps to a recording socket.

Compared are the bytes on the socket, the tables left behind, log lines and metrics.
"""

from __future__ import annotations

import itertools
import random
import threading
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from fd_postproc.fastdeploy.engine.delivery.sending import SEND, Sending, Stock
from fd_postproc.fastdeploy.engine.results._results import Handover, Plan
from fd_postproc.fastdeploy.gate.replacements import with_globals

from .private_globals import Notes

NAMES = ("one", "two", "three", "four")
MANY_NAMES = tuple(f"request {number}" for number in range(80))
"""Requests of a large step."""

_RANDOM_STEPS = 200


class Served(NamedTuple):
    """Which half of the way may be ours: the hand-over in the scheduler, and what sends."""

    hands_over: bool
    sends: bool


def try_out(plan: Plan, stock: Stock) -> Served:
    """Compare both halves with FastDeploy's; what cannot be tried is not ours."""
    hands_over = sends = False
    try:
        theirs = _outcome(plan, stock, False, False)
        if stock.put is not None:
            hands_over = _outcome(plan, stock, True, False) == theirs
        if stock.loop is not None:
            sends = _outcome(plan, stock, hands_over, True) == theirs
    except Exception:  # classes of another kind, whatever they are
        pass
    return Served(hands_over, sends)


class Bell:
    """Condition that never waits; it records each notification and whether the lock was held."""

    def __init__(self, mutex: Any) -> None:
        self.mutex = mutex
        self.rung: list[Any] = []
        self._waits = 0

    def __enter__(self) -> Any:
        return self.mutex.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.mutex.__exit__(*error)

    def notify_all(self) -> None:
        self.rung.append(self.mutex.locked())
        self._waits = 0

    def wait_for(self, predicate: Any, timeout: Any = None) -> Any:
        self._waits += 1
        if self._waits > 100:
            raise RuntimeError("this scheduler waits again and again")
        self.rung.append(timeout)
        return predicate()


def fake_scheduler(cls: type, attributes: dict[str, Any] | None = None) -> Any:
    """A scheduler of FastDeploy's class with empty tables, whose condition is a `Bell`."""
    scheduler: Any = object.__new__(cls)
    mutex = threading.Lock()
    vars(scheduler).update(
        attributes or {},
        mutex=mutex,
        responses_not_empty=Bell(mutex),
        requests=dict.fromkeys((*NAMES, *MANY_NAMES), object()),
        responses={},
        batch_responses_per_step=[],
        wait_response_timeout=12.5,
    )
    return scheduler


class _OtherScheduler:
    """What stands for a scheduler that is not FastDeploy's local one."""

    def __init__(self) -> None:
        self.responses: dict[str, list[Any]] = {}

    def put_results(self, results: list[Any]) -> None:
        for result in results:
            self.responses.setdefault(result.request_id, []).append(result)

    def get_results(self) -> dict[str, list[Any]]:
        results, self.responses = self.responses, {}
        return results


class _Socket:
    """Socket that records what is sent to a process."""

    def __init__(self, sent: list[Any], process: int | None = None) -> None:
        self.sent, self.process = sent, process

    def send(self, data: bytes, *arguments: Any, **named: Any) -> None:
        self.sent.append((self.process, bytes(data), arguments, named))


class _Engine:
    """Engine whose loop ends after each round."""

    def __init__(self, scheduler: Any, server: Any, log: Notes, decode: Any) -> None:
        self.scheduler, self.send_response_server, self.llm_logger = scheduler, server, log
        self._decode_token = types.MethodType(decode, self)
        self.request_worker_map = {"one": 7, "two": 8, "three": 7}
        self._asked = itertools.cycle([True, False])

    @property
    def running(self) -> bool:
        return next(self._asked)


class _Failing:
    """A result that cannot be packed."""

    request_id, finished, outputs = "two", False, None

    def to_dict(self) -> None:
        raise ValueError("in a trial")


def _outcome(plan: Plan, stock: Stock, hands_over: bool, sends: bool) -> list[Any]:
    """What is sent, logged and left behind by each step."""
    log, metrics, sent = Notes(), Notes(), []  # type: Notes, Notes, list[Any]
    switches = types.SimpleNamespace(
        FD_ENABLE_INTERNAL_ADAPTER=0, ZMQ_SEND_BATCH_DATA=1, FD_ENABLE_RETURN_TEXT=False
    )
    recycled: list[Any] = []
    scheduler: Any = _OtherScheduler()
    handover: Any = None
    engine: Any = None
    if stock.put is not None:
        scheduler = fake_scheduler(stock.scheduler)
        recording = {"scheduler_logger": log, "log_request": log, "envs": switches}
        put, get = (with_globals(one, **recording) for one in (stock.put, stock.get))
        scheduler.put_results = types.MethodType(put, scheduler)
        scheduler.get_results = types.MethodType(get, scheduler)
        scheduler._recycle = lambda *names: recycled.append((names, scheduler.mutex.locked()))
        handover = Handover(scheduler, put, get, log, plan.result) if hands_over else None
    if stock.loop is not None:
        stock = stock._replace(
            loop=with_globals(stock.loop, envs=switches),
            decode=with_globals(stock.decode, envs=switches),
            respond=with_globals(stock.respond, envs=switches),
            send=with_globals(stock.send, llm_logger=log, main_process_metrics=metrics),
        )
        engine = _Engine(scheduler, _server(stock, sent), log, stock.decode)
    sending = Sending(plan, stock) if sends else None
    seen: list[Any] = []
    for results, is_ours, is_last in _steps(plan):
        if handover is None or not is_ours:
            scheduler.put_results(results)
        elif not handover.put(results):
            raise RuntimeError("a step of ours is not handed over")
        seen.append(_tables(scheduler))
        if not is_last:
            continue
        got = None
        if sending is not None:
            got = scheduler.get_results() if handover is None else handover.take()
            sending.send(engine, got)
            got = None
        elif engine is not None:
            stock.loop(engine)
        else:
            got = scheduler.get_results() if handover is None else handover.take()
            got = [(name, list(map(_shown, some))) for name, some in got.items()]
        seen.append([got, _tables(scheduler), recycled[:], sent[:], metrics.lines])
        seen.append([line for line in log.lines if line[0] != "debug"])
        if engine is not None:
            seen.append([dict(engine.request_worker_map), sorted(vars(engine))])
            seen.append(_plain(vars(engine.send_response_server)))
        del sent[:]
        metrics.lines, log.lines = [], []
    return seen


def _server(stock: Stock, sent: list[Any]) -> Any:
    """A server of FastDeploy's class, whose methods record what they log."""
    cls = type("Server", (stock.server,), {SEND: stock.send, "send_response": stock.respond})
    server: Any = object.__new__(cls)
    vars(server).update(
        response_token_lock=threading.Lock(),
        socket=_Socket(sent),
        address="trial",
        worker_push_addresses={7: "another"},
        _get_worker_push_socket=lambda process: _Socket(sent, process),
    )
    return server


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in attributes.items() if isinstance(one, (int, str, dict, list))}


def _tables(scheduler: Any) -> Any:
    """What a scheduler holds; a response is what it wraps."""
    if isinstance(scheduler, _OtherScheduler):
        return list(scheduler.responses)
    return {
        **_plain(vars(scheduler)),
        "mutex": scheduler.mutex.locked(),
        "responses_not_empty": scheduler.responses_not_empty.rung[-9:],
        "requests": list(scheduler.requests),
        "responses": [
            (name, [(_shown(response.raw), response.request_id, response.finished) for response in waiting])
            for name, waiting in scheduler.responses.items()
        ],
        "batch_responses_per_step": [list(map(_shown, step)) for step in scheduler.batch_responses_per_step],
    }


def _shown(result: Any) -> Any:
    outputs = result.outputs
    own = None if outputs is None else (outputs.index, outputs.send_idx, outputs.token_ids, outputs.text)
    return type(result), result.request_id, result.finished, own


def _of_many(plan: Plan, slot: int, number: int = 1) -> Any:
    made = plan.new_result(slot, number, MANY_NAMES[slot], 3, None)
    made.outputs.token_ids = [slot + 3]
    return made


def _random_steps(plan: Plan) -> Iterator[tuple[list[Any], bool, bool]]:
    """Steps of up to twelve requests, some of them twice; the last of some, and some of an unknown one."""
    rng = random.Random(7)
    for number in range(_RANDOM_STEPS):
        slots = rng.sample(range(12), rng.randint(1, 11)) * rng.choice((1, 1, 1, 1, 2))
        results = [_of_many(plan, slot, number) for slot in slots]
        is_known = rng.random() < 0.9
        if not is_known:
            results[rng.randrange(len(results))].request_id = "unknown"
        rng.choice(results).finished = rng.random() < 0.1
        yield results, is_known, rng.random() < 0.3


def _steps(plan: Plan) -> Iterator[tuple[list[Any], bool, bool]]:
    """Results of a step, whether all are ours, and whether they are sent before the next step."""
    fd = plan.fd
    metrics = plan.copy_metrics(fd.RequestMetrics(arrival_time=1.5, inference_start_time=2.5))

    def result(slot: int, tokens: list[int], **values: Any) -> Any:
        made = plan.new_result(slot, 300 * slot, NAMES[slot], 3, metrics)
        made.outputs.token_ids = tokens
        for key, value in values.items():
            setattr(made.outputs if hasattr(type(made.outputs), key) else made, key, value)
        return made

    def theirs(slot: int) -> Any:
        return fd.RequestOutput(request_id=NAMES[slot], finished=True, error_code=500, error_msg="an error")

    rows = fd.LogprobsLists([[5, 6]], [[-0.25, -1.5]], [1])
    yield [result(0, [5, 70_000], logprob=-0.25, top_logprobs=rows, prompt="a text \u4e2d")], True, False
    yield [result(0, [6], decode_type=2), result(1, [7]), result(3, [8])], True, True
    yield [result(1, [9]), result(0, [1], finished=True), result(2, [], finished=True)], True, True
    yield [result(1, [2], finished=True, error_code=500, error_msg="an error"), theirs(0)], False, True
    yield [result(0, []), result(1, [3], trace_carrier={"a": "b"})], True, True
    yield [result(0, [4], finished=True)], True, False
    yield [result(0, [5]), result(0, [])], True, True
    yield [_of_many(plan, slot) for slot in range(len(MANY_NAMES))], True, True
    unknown = result(1, [6])
    unknown.request_id = "unknown"
    yield [unknown, result(2, [7])], False, True
    yield [result(1, [8]), _Failing()], False, True
    yield [result(1, [9], finished=True)], True, True
    yield from _random_steps(plan)


def is_woken(cls: type, plan: Plan) -> bool:
    """Whether a scheduler's class waits as long as its attribute says, and a put ends the wait."""
    scheduler = fake_scheduler(cls)
    before = len(scheduler.get_results())
    scheduler.put_results([plan.new_result(0, 1, NAMES[0], 3, None)])
    after = len(scheduler.get_results())
    wait = scheduler.wait_response_timeout
    return (before, after, scheduler.responses_not_empty.rung) == (0, 1, [wait, True, wait])
