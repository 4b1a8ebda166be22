"""FastDeploy's messages to the API server's processes, packed without dictionaries.

FastDeploy's server has methods that turn results into dictionaries, pack these, and send the bytes::

    result = msgpack.packb([[output.to_dict() for output in outputs] for outputs in batch_data], ...)

They stay as they are.  What they are given holds the results together, and is its own dictionary; and the
module's name ``msgpack`` is another one's, which packs that (`Messages`) and hands on everything else.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from ._results import Messages, Plan
from .apart import Notes, apart, names_of

MODULE = "fastdeploy.inter_communicator.zmq_server"
BATCH, STEP = "_send_batch_response", "_send_response_per_step"
"""Methods of ``ZmqServerBase``: a message of requests' results; one of steps', for the internal adapter."""

KNOWN_NAMES = frozenset(
    {
        "msgpack", "packb", "to_dict", "_msgpack_default", "len", "extend", "cached_results", "mutex",
        "socket", "_get_worker_push_socket", "address", "worker_push_addresses", "get", "_ensure_socket",
        "response_token_lock", "send", "send_multipart", "time", "RuntimeError", "Exception",
        "response_handle_per_step", "batch_id_per_step",
        "llm_logger", "info", "debug", "error", "traceback", "format_exc",
        "ZMQMetricsStats", "msg_bytes_send_total", "msg_send_total", "msg_send_failed_total",
        "main_process_metrics", "record_zmq_stats",
    }
)  # fmt: skip
"""What the two methods have been seen to look at; one that looks at more may mean more."""


def method_in_use(envs: Any) -> str | None:
    """Which of the two methods FastDeploy sends results by; None if by another one, with pickle.

    Parameters
    ----------
    envs : module
        ``fastdeploy.envs``.
    """
    if getattr(envs, "FD_ENABLE_INTERNAL_ADAPTER", 0):
        return STEP
    return BATCH if getattr(envs, "ZMQ_SEND_BATCH_DATA", 0) else None


class _Held(list[Any]):
    """Results for FastDeploy's methods: the list that it is made of, but for a loop over it.

    A loop finds one thing that is its own dictionary: itself.  It finds the results as ever where
    FastDeploy's own msgpack would be asked to pack that.

    Parameters
    ----------
    results : list
        Of results; or of lists of them, the whole message, if `whole`.
    names : dict
        The module's names, of which ``msgpack`` is the one that packs.
    """

    __slots__ = ("names", "whole")

    def __init__(self, results: list[Any], names: dict[str, Any], whole: bool) -> None:
        super().__init__(results)
        self.names, self.whole = names, whole

    def __iter__(self) -> Iterator[Any]:
        if type(self.names.get("msgpack")) is not Msgpack:
            return super().__iter__()
        return iter([[self] if self.whole else self])

    def to_dict(self) -> _Held:
        return self


class Msgpack(types.ModuleType):
    """Stands for the module msgpack where FastDeploy sends results.

    Parameters
    ----------
    real : module
    messages : Messages
    """

    def __init__(self, real: Any, messages: Messages) -> None:
        super().__init__("msgpack", real.__doc__)
        self.real, self.messages = real, messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)

    def packb(self, o: Any, **options: Any) -> bytes:
        """``msgpack.packb``, also of what holds results together."""
        pack = functools.partial(self.real.packb, **options) if options else self.real.packb
        if type(o) is not list or not any(map(_is_held, o)):
            packed: bytes = pack(o)
            return packed
        if len(o) == 1 and o[0][0].whole:
            return self.messages.pack(o[0][0][:], pack)
        parts = [_head(len(o))]
        for one in o:
            parts.append(self.messages.pack_step(one[0][:], pack) if _is_held(one) else pack(one))
        return b"".join(parts)


def _is_held(one: Any) -> bool:
    return type(one) is list and len(one) == 1 and type(one[0]) is _Held


def _head(length: int) -> bytes:
    """Of an array."""
    if length < 16:
        return bytes([0x90 | length])
    return b"\xdc" + length.to_bytes(2, "big") if length < 1 << 16 else b"\xdd" + length.to_bytes(4, "big")


# ---- FastDeploy's methods, with other arguments --------------------------------------------------------


def _of_batch(stock: Any, names: dict[str, Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def send(server: Any, batch_data: Any, *arguments: Any, **named: Any) -> Any:
        if type(batch_data) is list and type(names.get("msgpack")) is Msgpack:
            batch_data = _Held(batch_data, names, whole=True)
        return stock(server, batch_data, *arguments, **named)

    return send


def _of_steps(stock: Any, names: dict[str, Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def send(server: Any, batch_id: Any, data: Any) -> Any:
        if type(data) is list and type(names.get("msgpack")) is Msgpack:
            data = [_Held(step, names, whole=False) if type(step) is list else step for step in data]
        return stock(server, batch_id, data)

    return send


_METHODS = {BATCH: _of_batch, STEP: _of_steps}


class Packing:
    """What `begin` puts into FastDeploy's module, and `end` takes out again.

    Parameters
    ----------
    plan : Plan
    module : module, optional
        Default: FastDeploy's, if it has been imported.

    Attributes
    ----------
    methods : dict of str to function
        FastDeploy's methods that are served, by their names.
    """

    def __init__(self, plan: Plan, module: Any = None) -> None:
        self.module: Any = sys.modules.get(MODULE) if module is None else module
        self.messages = Messages(plan)
        self.methods = {} if self.module is None else served_methods(self.module, plan)
        self._put: dict[str, Any] = {}
        self._msgpack: Msgpack | None = None

    def begin(self) -> None:
        """Put ours in, where FastDeploy's own is."""
        if not self.methods or self._msgpack is not None:
            return
        module = self.module
        self._msgpack = Msgpack(_real(module.msgpack), self.messages)
        module.msgpack = self._msgpack
        for name, stock in self.methods.items():
            made = _METHODS[name](stock, vars(module))
            setattr(module.ZmqServerBase, name, made)
            self._put[name] = made

    def end(self) -> None:
        """Put FastDeploy's own back, where ours still is."""
        if self._msgpack is None:
            return
        base = self.module.ZmqServerBase
        for name, made in self._put.items():
            if vars(base).get(name) is made:
                setattr(base, name, self.methods[name])
        self._put.clear()
        if self.module.msgpack is self._msgpack:
            self.module.msgpack = self._msgpack.real
        self._msgpack = None


def served_methods(module: Any, plan: Plan) -> dict[str, Any]:
    """FastDeploy's methods that do with results held together what they do with results.

    Parameters
    ----------
    module : module
        ``fastdeploy.inter_communicator.zmq_server``.
    plan : Plan

    Returns
    -------
    dict of str to function
        By their names; empty if the module is of another kind.
    """
    return {name: stock for name in _METHODS if (stock := _served(module, plan, name)) is not None}


def _served(module: Any, plan: Plan, name: str) -> Any:
    try:
        stock = _stock_of(module, name)
        if stock is None or not names_of(stock.__code__) <= KNOWN_NAMES:
            return None
        theirs, ours = (_outcome(module, plan, name, stock, side) for side in (False, True))
    except Exception:  # another module, whatever it is
        return None
    return stock if theirs == ours else None


def _stock_of(module: Any, name: str) -> Any:
    """FastDeploy's own method, also where ours is; None where somebody else's is, or none."""
    method = vars(module.ZmqServerBase).get(name)
    if getattr(method, "__globals__", None) is globals():
        method = method.__wrapped__
    if not isinstance(method, types.FunctionType) or method.__globals__ is not vars(module):
        return None
    return method


def _real(msgpack: Any) -> Any:
    """The module itself, also where ours stands for it."""
    return msgpack.real if type(msgpack) is Msgpack else msgpack


# ---- The trial ---------------------------------------------------------------------------------------------


class _Socket:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, data: bytes, *arguments: Any, **named: Any) -> None:
        self.sent.append((bytes(data), arguments, named))

    def send_multipart(self, parts: list[bytes], *arguments: Any, **named: Any) -> None:
        self.sent.append((list(map(bytes, parts)), arguments, named))


class _Failing:
    def to_dict(self) -> None:
        raise ValueError("in a trial")


def _outcome(module: Any, plan: Plan, name: str, stock: Any, ours: bool) -> list[Any]:
    """What comes of a method: bytes, log lines, metrics and what is kept, call by call."""
    log, metrics, socket = Notes(), Notes(), _Socket()
    real = _real(module.msgpack)
    method = apart(stock, llm_logger=log, main_process_metrics=metrics, msgpack=real)
    names = method.__globals__
    if ours:
        names["msgpack"] = Msgpack(real, Messages(plan))
        method = _METHODS[name](method, names)
    server: Any = object.__new__(module.ZmqIpcServer)
    vars(server).update(
        response_token_lock=threading.Lock(),
        mutex=threading.Lock(),
        socket=socket,
        address="trial",
        worker_push_addresses={7: "another"},
        cached_results=defaultdict(list),
        response_handle_per_step=None,
        response_handle_name_per_step=None,
        batch_id_per_step=3,
        _get_worker_push_socket=lambda pid: socket,
    )
    batch = _samples(plan)
    seen: list[Any] = []
    for data in (batch, batch[:1], [], [[_Failing()]], batch[1:]):
        if name == BATCH:
            for pid in (7, None):
                seen.append(repr(method(server, list(data), worker_pid=pid)))
        else:
            seen.append(repr(method(server, None, list(data))))
            server.response_handle_per_step = b"client"  # before that it keeps what it is given
        seen.append([log.lines, metrics.lines, socket.sent, server.batch_id_per_step])
        log.lines, metrics.lines, socket.sent = [], [], []
    return seen


def _samples(plan: Plan) -> list[list[Any]]:
    """Results of ours and of FastDeploy's, in three lists."""
    fd = plan.fd
    metrics = plan.copy_metrics(fd.RequestMetrics(arrival_time=1.5, inference_start_time=2.5))
    first = plan.new_result(0, 0, "one", 3, metrics)
    first.outputs.token_ids, first.outputs.logprob = [5, 70_000, -1], -0.25
    first.outputs.top_logprobs = fd.LogprobsLists([[5, 6]], [[-0.25, -1.5]], [1])
    first.prompt = "a text \u4e2d"
    last = plan.new_result(1, 300, "two", 4, metrics)
    last.finished, last.error_code, last.error_msg = True, 500, "an error"
    last.trace_carrier = {"a": "b"}
    theirs = fd.RequestOutput(request_id="two", finished=True, error_code=500, error_msg="another")
    return [[first], [last, theirs], [plan.new_result(2, 1, "three", 3, None)]]
