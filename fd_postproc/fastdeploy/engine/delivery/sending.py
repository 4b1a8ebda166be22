"""Sends the results of a round: sorted by process of the API server, packed, put into a socket.

FastDeploy's own method of the server does the sending, its lock, metrics and log lines.  It gets the message
instead of results, and another ``msgpack`` (`_Packed`), which packs nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ...array_readers import reads_arrays
from ...events.guard import Guard
from ...gate.called import bound_function, is_code_of, is_ours
from ...gate.judgements import gate
from ...gate.replacements import with_globals
from ..results._results import Messages, Plan, by_process

ENGINE, SERVER = "fastdeploy.engine.common_engine", "fastdeploy.inter_communicator.zmq_server"
SCHEDULER = "fastdeploy.scheduler.local_scheduler"
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
        decode, respond = _known(service, "_decode_token"), _known(base, "send_response")
        if loop is None or send is None or decode is None or respond is None:
            return cls(scheduler, put, get)
        return cls(scheduler, put, get, loop, decode, server.ZmqIpcServer, send, respond)


def _known(holder: Any, name: str) -> Any:
    """FastDeploy's own function, also where ours is installed; None if another program has wrapped it."""
    function = getattr(holder, name, None)
    if is_ours(function):
        function = getattr(function, "__wrapped__", None)
    owner = next((one for one in getattr(holder, "__mro__", ()) if name in vars(one)), None)
    return function if is_code_of(function, owner) else None


def why_left(stock: Stock, service: Any) -> str:
    """Why FastDeploy's loop sends the results; empty: ours does."""
    reason = gate.judge("sending", service).reason or ""
    if stock.loop is None and not reason:
        return "its loop is not where this release looks for it"
    return reason


def sends_batches(envs: Any) -> bool:
    """Whether FastDeploy sends the results of several requests in one message, by ``fastdeploy.envs``."""
    return bool(getattr(envs, "ZMQ_SEND_BATCH_DATA", 0)) and not envs.FD_ENABLE_INTERNAL_ADAPTER


REFUSED = 500
"""Error code of a request whose results cannot be sent."""

LARGEST_ARRAY = 1 << 28
"""Bytes of an array above which FastDeploy is not asked to make lists of it."""


def error_of(plan: Plan, log: Any, name: str, what: str) -> Any:
    """The error that ends a request whose results cannot be sent."""
    text = f"The results of request {name} {what}"
    log.error(f"fd_postproc: {text}")
    return plan.fd.RequestOutput(request_id=name, finished=True, error_code=REFUSED, error_msg=text)


class _Packed:
    """A message in the place of its results, and of ``msgpack`` in FastDeploy's method that packs them.

    Attributes
    ----------
    is_taken : bool
        Whether it was asked for: it may have been sent.
    """

    is_taken = False

    def __init__(self, content: bytes) -> None:
        self._content = content

    def to_dict(self) -> bytes:
        self.is_taken = True
        return self._content

    @staticmethod
    def packb(batch: list[list[bytes]], **_: Any) -> bytes:
        return batch[0][0]


def _is_large(result: Any) -> bool:
    """Whether a result has an array of which FastDeploy's lists would take all memory."""
    values = getattr(result, "__dict__", {}).values()
    return any(getattr(value, "nbytes", 0) > LARGEST_ARRAY for value in values)


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
    sent, unsent : int
        Messages that were given to the server, and those that could not be.
    """

    sent = unsent = 0

    def __init__(self, plan: Plan, stock: Stock, gone: Collection[int] = ()) -> None:
        self.plan, self.stock, self.others, self._gone = plan, stock, 0, gone
        # FastDeploy's own modules: a function that stands in one's place has other names.
        self.names, names = vars(sys.modules[ENGINE]), vars(sys.modules[SERVER])
        default = names.get("_msgpack_default")
        self.messages = Messages(plan, default)
        self._packb = functools.partial(names["msgpack"].packb, default=default)
        self._log, self.guard = names["llm_logger"], Guard("sending")
        self._send = with_globals(stock.send, msgpack=_Packed)

    def serves(self, engine: Any) -> bool:
        """Whether an engine sends batches now, and has a dictionary of its requests' processes."""
        return sends_batches(self.names["envs"]) and type(getattr(engine, "request_worker_map", None)) is dict

    def send(self, engine: Any, results: dict[str, list[Any]]) -> None:
        """Send results by request; if ours cannot sort them, by FastDeploy's rules, and it raises."""
        try:
            decode = bound_function(engine._decode_token)
            is_usual = decode is self.stock.decode and not self.names["envs"].FD_ENABLE_RETURN_TEXT
            prepare = functools.partial(self._prepared, engine)
            batches = by_process(self.plan, results, engine.request_worker_map, prepare, is_usual)
        except Exception:
            for name, contents in results.items():
                self._send_by_rules(engine, name, contents)
            raise
        for process, batch in batches.items():
            if process not in self._gone:
                self._deliver(engine, batch, process)

    def _send_by_rules(self, engine: Any, name: str, contents: list[Any]) -> None:
        """Send a request's results by FastDeploy's rules and method."""
        kept = contents
        try:
            kept = self._prepared(engine, name, contents)
        except Exception as error:  # as they are
            self.guard.failed(error)
        if kept:
            self._send_plainly(engine, [kept], engine.request_worker_map.get(name))
        if any(getattr(one, "finished", False) for one in kept):
            engine.request_worker_map.pop(name, None)

    def _deliver(self, engine: Any, batch: list[list[Any]], process: int | None) -> None:
        """Send a batch by ours, or by FastDeploy's own method if ours fails before a message was taken.

        FastDeploy's method sends after it has asked for the message, and what it calls then does not raise.
        """
        server, message = engine.send_response_server, None
        if self.guard.is_on:
            try:
                reads = functools.partial(_reads_arrays, server, process)
                packed = self._packed(batch, reads) if self._knows(server) else None
                if packed is not None:
                    message = _Packed(packed)
                    self._send(server, [[message]], worker_pid=process)
                    self.sent += 1
                    self.guard.worked()
                    return
            except Exception as error:
                self.guard.failed(error)
                if message is not None and message.is_taken:
                    self.unsent += 1
                    return
        self._send_plainly(engine, batch, process)

    def _send_plainly(self, engine: Any, batch: list[list[Any]], process: int | None) -> None:
        try:
            engine.send_response_server.send_response(None, batch, worker_pid=process)
            self.sent += 1
        except Exception as error:
            self.unsent += 1
            names = ", ".join(str(getattr(one[0], "request_id", "")) for one in batch if one)
            engine.llm_logger.error(
                f"fd_postproc: results of {len(batch)} requests for process {process} were lost ({names}): "
                f"FastDeploy's own way of sending failed, too: {type(error).__name__}: {error}"
            )

    def _prepared(self, engine: Any, name: str, contents: Any) -> list[Any]:
        """The results that are sent, with their texts, by the rules of FastDeploy's loop."""
        self.others += 1
        kept: list[Any] = []
        for content in contents:
            outputs = content.outputs if isinstance(content, self.names["RequestOutput"]) else None
            if outputs is not None:
                text, tokens = "", outputs.token_ids
                if outputs.decode_type == 0:
                    try:
                        text, tokens = engine._decode_token(
                            token_ids=tokens, req_id=name, is_end=content.finished
                        )
                    except Exception as error:  # FastDeploy loses the whole round then
                        return [*kept, error_of(self.plan, self._log, name, f"cannot be decoded: {error!r}")]
                if len(tokens):
                    outputs.token_ids, outputs.text = tokens, text
                elif not content.finished:
                    tokens = outputs.token_ids
                    engine.llm_logger.warning(f"current tokens need to accumulate, req_id: {name} {tokens}")
                    continue
            kept.append(content)
        return kept

    def _knows(self, server: Any) -> bool:
        """Whether a server's methods are known, and its line for debugging is not shown, which counts."""
        return (
            bound_function(server.send_response) is self.stock.respond
            and bound_function(server._send_batch_response) is self.stock.send
            and not self._log.isEnabledFor(10)  # logging.DEBUG
        )

    def _packed(self, batch: list[list[Any]], reads_arrays: Callable[[], bool]) -> bytes | None:
        """A message; None if FastDeploy's method has to say what cannot be packed.

        A request whose results cannot be packed (too large, or of an unknown type) ends with an error that
        says so.  FastDeploy loses the whole message then, with the results of all other requests.
        """
        try:
            return self.messages.pack(batch, reads_arrays)
        except Exception:
            sound = [self._sound(results, reads_arrays) for results in batch]
            kept = [results for results in sound if results is not None]
            if len(kept) < len(sound):
                return None
            if all(one is other for one, other in zip(sound, batch, strict=True)):  # ours fails now and then
                raise
            return self.messages.pack(kept, reads_arrays)

    def _sound(self, results: list[Any], reads_arrays: Callable[[], bool]) -> list[Any] | None:
        """A request's results, or what ends it if they cannot be packed; None if they are not ours to end.

        Raises if ours alone cannot pack them.
        """
        try:
            self.messages.pack([results], reads_arrays)
            return results
        except Exception as error:
            failure = error
        if not any(map(_is_large, results)):  # lists of such numbers take all memory
            try:
                self._packb([one.to_dict() for one in results])
            except Exception as error:
                failure = error
            else:
                raise failure
        if not all(isinstance(one, self.plan.fd.RequestOutput) for one in results):
            return None
        what = f"cannot be sent to the API server: {type(failure).__name__}: {failure}"
        name = getattr(results[-1], "request_id", "")
        text = f"{what}. Ask for fewer tokens, or fewer log-probabilities."
        return [error_of(self.plan, self._log, name, text)]


def _reads_arrays(server: Any, process: int | None) -> bool:
    """Whether an API process reads arrays as one value."""
    address = server.worker_push_addresses.get(process)
    return isinstance(address, str) and reads_arrays(address)
