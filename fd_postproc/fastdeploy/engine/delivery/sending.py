"""Sends the results of a round: sorted by process of the API server, packed, put into a socket.

FastDeploy's own method of the server does the sending, its lock, metrics and log lines.  It finds another
``msgpack`` (`_Packer`), which packs the results themselves and no dictionaries of them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ... import gate
from ...array_readers import reads_arrays
from ...introspection import with_globals
from ..results._results import Messages, Plan, by_process

ENGINE, SERVER = "fastdeploy.engine.common_engine", "fastdeploy.inter_communicator.zmq_server"
LOOP, SEND = "_zmq_send_generated_tokens", "_send_batch_response"


class Stock(NamedTuple):
    """FastDeploy's own functions on the way; those of another kind are None."""

    scheduler: Any = None  # the class of `put` and `get`
    put: Any = None
    get: Any = None
    loop: Any = None
    decode: Any = None
    server: Any = None  # the class of `send` and `respond`
    send: Any = None
    respond: Any = None

    @classmethod
    def of(cls, scheduler: Any, service: Any, server: Any) -> Stock:
        """Functions of a scheduler's class, of ``EngineService``, and of the module of servers."""
        put, get = _known(scheduler, "put_results"), _known(scheduler, "get_results")
        if put is None or get is None:
            scheduler = put = get = None
        base = getattr(server, "ZmqServerBase", None)
        loop, send = _known(service, LOOP), _known(base, SEND)
        decode, respond = getattr(service, "_decode_token", None), getattr(base, "send_response", None)
        if loop is None or send is None or decode is None or respond is None:
            return cls(scheduler, put, get)
        return cls(scheduler, put, get, loop, decode, server.ZmqIpcServer, send, respond)


def _known(holder: Any, name: str) -> Any:
    """FastDeploy's own function, also where ours is installed; None if it is none."""
    function = getattr(holder, name, None)
    if getattr(function, "__globals__", {}).get("__name__", "").startswith("fd_postproc."):
        function = getattr(function, "__wrapped__", None)
    return function if isinstance(function, types.FunctionType) else None


def why_left(stock: Stock, service: Any) -> str:
    """Why FastDeploy's loop sends the results; empty: ours does."""
    if stock.loop is None:
        return "its loop is not where this release looks for it"
    return gate.judge("sending", service).reason or ""


def sends_batches(envs: Any) -> bool:
    """Whether FastDeploy sends the results of several requests in one message, by ``fastdeploy.envs``."""
    return bool(getattr(envs, "ZMQ_SEND_BATCH_DATA", 0)) and not envs.FD_ENABLE_INTERNAL_ADAPTER


REFUSED = 500
"""Error code of a request whose results cannot be sent."""


class _Packer:
    """Stand-in that FastDeploy's method finds as ``msgpack``; it packs `results`.

    A request whose results msgpack refuses (too large for it, or of an unknown type) ends with an error that
    says so.  FastDeploy loses the whole message then, with the results of all other requests.
    """

    def __init__(self, real: Any, plan: Plan, messages: Messages, log: Any) -> None:
        self._real, self._plan, self._messages, self._log = real, plan, messages, log
        self.results: list[list[Any]] = []
        self.reads_arrays: Callable[[], bool] | None = None

    def packb(self, _: Any, **options: Any) -> bytes:
        pack = functools.partial(self._real.packb, **options) if options else self._real.packb
        try:
            return self._messages.pack(self.results, pack, self.reads_arrays)
        except Exception:
            kind = self._plan.fd.RequestOutput
            if not all(isinstance(one, kind) for results in self.results for one in results):
                raise
            kept = [self._or_an_error(one, pack) for one in self.results]
            return self._messages.pack(kept, pack, self.reads_arrays)

    def _or_an_error(self, results: list[Any], pack: Any) -> list[Any]:
        """A request's results, or the error that ends it if they cannot be packed."""
        try:
            self._messages.pack([results], pack, self.reads_arrays)
        except Exception as error:
            name = getattr(results[-1], "request_id", "")
            text = (
                f"The results of request {name} cannot be sent to the API server: "
                f"{type(error).__name__}: {error}. Ask for fewer tokens, or fewer log-probabilities."
            )
            self._log.error(f"fd_postproc: {text}")
            return [
                self._plan.fd.RequestOutput(
                    request_id=name, finished=True, error_code=REFUSED, error_msg=text
                )
            ]
        return results


class Sending:
    """Sends rounds of results, in the one thread that does so.

    Parameters
    ----------
    plan : Plan
    stock : Stock
        With `loop` and what follows it.
    gone : collection of int, optional
        API processes to which nothing is sent, at any time.

    Attributes
    ----------
    messages : Messages
    others : int
        Requests whose results were sorted by FastDeploy's rules, one by one.
    """

    def __init__(self, plan: Plan, stock: Stock, gone: Collection[int] = ()) -> None:
        self.plan, self.stock, self.messages, self.others = plan, stock, Messages(plan), 0
        self._gone = gone
        self.names = stock.loop.__globals__
        names = stock.send.__globals__
        self._log = names["llm_logger"]
        self._packer = _Packer(names["msgpack"], plan, self.messages, self._log)
        self._send = with_globals(stock.send, msgpack=self._packer)

    def serves(self, engine: Any) -> bool:
        """Whether an engine sends batches now, and has a dictionary of its requests' processes."""
        return sends_batches(self.names["envs"]) and type(getattr(engine, "request_worker_map", None)) is dict

    def send(self, engine: Any, results: dict[str, list[Any]]) -> None:
        """Send results by request."""
        decode = getattr(engine._decode_token, "__func__", None)
        is_usual = decode is self.stock.decode and not self.names["envs"].FD_ENABLE_RETURN_TEXT
        prepare = functools.partial(self._prepared, engine)
        batches = by_process(self.plan, dict(results), engine.request_worker_map, prepare, is_usual)
        for process, batch in batches.items():
            if process in self._gone:
                continue
            self._send_batch(engine.send_response_server, batch, process)

    def _prepared(self, engine: Any, name: str, contents: Any) -> list[Any]:
        """The results that are sent, with their texts, by the rules of FastDeploy's loop."""
        self.others += 1
        kept = []
        for content in contents:
            outputs = content.outputs if isinstance(content, self.names["RequestOutput"]) else None
            if outputs is not None:
                text, tokens = "", outputs.token_ids
                if outputs.decode_type == 0:
                    text, tokens = engine._decode_token(
                        token_ids=tokens, req_id=name, is_end=content.finished
                    )
                if len(tokens):
                    outputs.token_ids, outputs.text = tokens, text
                elif not content.finished:
                    tokens = outputs.token_ids
                    engine.llm_logger.warning(f"current tokens need to accumulate, req_id: {name} {tokens}")
                    continue
            kept.append(content)
        return kept

    def _send_batch(self, server: Any, batch: list[list[Any]], process: int | None) -> None:
        if (
            getattr(server.send_response, "__func__", None) is not self.stock.respond
            or type(server)._send_batch_response is not self.stock.send
            or self._log.isEnabledFor(10)  # logging.DEBUG: its line has the number of requests
        ):
            server.send_response(None, batch, worker_pid=process)
            return
        self._packer.results = batch
        self._packer.reads_arrays = functools.partial(_reads_arrays, server, process)
        try:
            self._send(server, [()], worker_pid=process)
        finally:
            self._packer.results, self._packer.reads_arrays = [], None


def _reads_arrays(server: Any, process: int | None) -> bool:
    """Whether an API process reads arrays as one value."""
    address = server.worker_push_addresses.get(process)
    return isinstance(address, str) and reads_arrays(address)
