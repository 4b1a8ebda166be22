"""FastDeploy's loop that fetches results and sends them, for results of ours.

FastDeploy's own text goes through each result: it looks for a text to decode, sorts results by the process of
the API server that they are for, and asks the environment about each.  Here a round is done at once if all of
its results are ours and no text is made in the engine; any other round is FastDeploy's own text, called with
the results that were fetched.
"""

from __future__ import annotations

import functools
import sys
import time
import traceback
import types
from typing import Any

from ._results import Collection, Plan, Rounds
from .apart import Notes, apart, names_of
from .deliveries import collection_of
from .messages import BATCH, method_in_use

MODULE = "fastdeploy.engine.common_engine"
METHOD = "_zmq_send_generated_tokens"

PAUSE = 0.005
"""Seconds that FastDeploy's loop sleeps when there was nothing; here a wait that was as long is enough."""

KNOWN_NAMES = frozenset(
    {
        "running", "scheduler", "get_results", "len", "time", "sleep",
        "envs", "FD_ENABLE_INTERNAL_ADAPTER", "ZMQ_SEND_BATCH_DATA", "isinstance", "RequestOutput", "outputs",
        "decode_type", "_decode_token", "token_ids", "request_id", "finished", "text", "append",
        "llm_logger", "warning", "error", "send_response_server", "send_response",
        "collections", "defaultdict", "list", "items", "request_worker_map", "get", "pop", "any", "getattr",
        "Exception", "traceback", "format_exc",
    }
)  # fmt: skip
"""What the loop has been seen to look at; one that looks at more may mean more."""


class _OneRound:
    """An engine whose loop ends after one round, with the results that are given."""

    def __init__(self, engine: Any, results: Any) -> None:
        self.__dict__.update(_engine=engine, _results=results, _rounds=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._engine, name, value)

    @property
    def running(self) -> bool:
        self.__dict__["_rounds"] += 1
        return bool(self._rounds == 1)

    @property
    def scheduler(self) -> Any:
        return self

    def get_results(self) -> Any:
        return self._results


class SendLoop:
    """The loop that `begin` puts into FastDeploy's class, and `end` takes out again.

    Parameters
    ----------
    plan : Plan
    service : type, optional
        Default: FastDeploy's EngineService, if it has been imported.

    Attributes
    ----------
    stock : function or None
        FastDeploy's own; None: it is of another kind, and left alone.
    rounds, others : int
        Rounds so far, and those among them that FastDeploy's own text has done.
    """

    def __init__(self, plan: Plan, service: Any = None) -> None:
        if service is None:
            service = getattr(sys.modules.get(MODULE), "EngineService", None)
        self.plan, self.service = plan, service
        self.stock = None if service is None else served_loop(service, plan)
        self.rounds = self.others = 0
        self._sort: Rounds | None = None if self.stock is None else Rounds(plan)
        self._put: Any = None
        self._collection: tuple[Any, Collection | None] = (None, None)

    def begin(self) -> None:
        """Put ours in.  Threads that have begun are not reached."""
        if self.stock is None or self._put is not None:
            return

        @functools.wraps(self.stock)
        def send(engine: Any) -> None:
            self.run(engine)

        self._put = send
        setattr(self.service, METHOD, send)

    def end(self) -> None:
        """Put FastDeploy's own back, where ours still is; a thread in ours goes on in FastDeploy's own."""
        if self._put is not None and vars(self.service).get(METHOD) is self._put:
            setattr(self.service, METHOD, self.stock)
        self._put = None

    def run(self, engine: Any) -> None:
        """What the sender's thread does.  If it cannot even fetch, FastDeploy's own loop goes on."""
        while engine.running and self._put is not None:
            before = self.rounds
            try:
                self.round(engine)
            except Exception as error:
                engine.llm_logger.error(f"fd_postproc: sending failed: {error!r}, {traceback.format_exc()}")
                if self.rounds == before:
                    break
        if engine.running:
            self.stock(engine)  # type: ignore[misc]

    def round(self, engine: Any) -> None:
        """Wait for results and send them."""
        began = time.monotonic()
        envs = self.stock.__globals__["envs"]  # type: ignore[union-attr]
        in_batches = method_in_use(envs) == BATCH
        results = self._fetch(engine.scheduler, in_batches)
        if len(results) == 0:
            if time.monotonic() - began < PAUSE:
                time.sleep(PAUSE)
            return
        self.rounds += 1
        if not (in_batches and self._send(engine, envs, results)):
            self.others += 1
            self.stock(_OneRound(engine, results))  # type: ignore[misc]

    def _fetch(self, scheduler: Any, in_batches: bool) -> Any:
        if self._collection[0] is not scheduler:
            self._collection = scheduler, collection_of(scheduler, self.plan)
        collection = self._collection[1]
        results = collection.get(scheduler) if collection is not None and in_batches else None
        return scheduler.get_results() if results is None else results

    def _send(self, engine: Any, envs: Any, results: Any) -> bool:
        """Whether results were sent; if not, nothing was done with them."""
        decode = getattr(engine._decode_token, "__func__", None)
        if envs.FD_ENABLE_RETURN_TEXT or decode is not self._decodes_by():
            return False
        batches = self._sort.batches(results, engine.request_worker_map)  # type: ignore[union-attr]
        if batches is None:
            return False
        for worker, batch in batches.items():
            engine.send_response_server.send_response(None, batch, worker_pid=worker)
        return True

    def _decodes_by(self) -> Any:
        return vars(self.service).get("_decode_token")


def served_loop(service: Any, plan: Plan) -> Any:
    """FastDeploy's own loop, if a round of it does what a round of ours does; None otherwise.

    Parameters
    ----------
    service : type
        ``EngineService``.
    plan : Plan
    """
    try:
        stock = vars(service).get(METHOD)
        if getattr(stock, "__globals__", None) is globals():
            stock = stock.__wrapped__
        decode = vars(service).get("_decode_token")
        if not isinstance(stock, types.FunctionType) or not isinstance(decode, types.FunctionType):
            return None
        if not names_of(stock.__code__) <= KNOWN_NAMES:
            return None
        if Rounds(plan).batches(_samples(plan)[0], {}) is None:
            return None
        theirs, ours = (_outcome(stock, decode, plan, side) for side in (False, True))
    except Exception:  # another service, whatever it is
        return None
    return stock if theirs == ours else None


# ---- The trial ---------------------------------------------------------------------------------------------


class _Server:
    """Notes what it is to send."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_response(self, req_id: Any, data: Any, worker_pid: Any = None) -> None:
        shown = [[_shown(one) for one in contents] for contents in data]
        self.sent.append((req_id, shown, worker_pid))


def _shown(result: Any) -> Any:
    outputs = result.outputs
    own = None if outputs is None else (outputs.index, outputs.token_ids, outputs.text)
    return type(result), result.request_id, result.finished, own


def _outcome(stock: Any, decode: Any, plan: Plan, quick: bool) -> list[Any]:
    """What rounds send and leave behind."""
    switches = types.SimpleNamespace(
        FD_ENABLE_INTERNAL_ADAPTER=0, ZMQ_SEND_BATCH_DATA=1, FD_ENABLE_RETURN_TEXT=False
    )
    stock, log, seen = apart(stock, envs=switches), Notes(), []
    sort = Rounds(plan)
    for results in _samples(plan):
        server = _Server()
        engine = types.SimpleNamespace(
            request_worker_map={"one": 7, "two": 8, "three": 7}, send_response_server=server, llm_logger=log
        )
        engine._decode_token = types.MethodType(apart(decode, envs=switches), engine)
        batches = sort.batches(results, engine.request_worker_map) if quick else None
        if batches is None:
            stock(_OneRound(engine, results))
        else:
            for worker, batch in batches.items():
                server.send_response(None, batch, worker_pid=worker)
        seen.append([server.sent, engine.request_worker_map, results.keys(), sorted(vars(engine))])
    return [*seen, log.lines]


def _samples(plan: Plan) -> list[dict[str, list[Any]]]:
    """Results of some rounds, by request."""

    def result(name: str, tokens: list[int], **values: Any) -> Any:
        made = plan.new_result(0, 1, name, 3, None)
        made.outputs.token_ids = tokens
        for key, value in values.items():
            setattr(made.outputs if key == "decode_type" else made, key, value)
        return made

    def ours() -> dict[str, list[Any]]:
        return {
            "one": [result("one", [5]), result("one", [6, 7], decode_type=2)],
            "two": [result("two", [8]), result("two", [], finished=True)],
            "three": [result("three", [9], finished=True)],
            "four": [result("four", [10])],
        }

    theirs = plan.fd.RequestOutput(request_id="two", finished=True, error_code=500, error_msg="an error")
    return [
        ours(),
        {**ours(), "two": [theirs]},
        {"one": [result("one", [])], "two": [result("two", [3])]},
        {"one": [], "two": [result("two", [4])]},
        {},
    ]
