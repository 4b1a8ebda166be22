"""The server's object for a response, and what is written to its connection."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from .chunks.model_fields import NotPlain

WRAPPERS = {
    ("starlette._exception_handler", "sender"): ("response_started", "send"),
    ("starlette.middleware.exceptions", "sender"): ("response_started", "send"),
    ("starlette.middleware.errors", "_send"): ("response_started", "send"),
}
"""Functions around the server's ``send`` that leave a body as it is, and their free variables."""

SERVERS = ("uvicorn.protocols.http.h11_impl", "uvicorn.protocols.http.httptools_impl")


def cycle_of(send: Any) -> Any:
    """The server's object for a response, by the function that sends its parts.

    Raises
    ------
    NotPlain
        If something in between may change a body, or the server is not known.
    """
    while isinstance(send, types.FunctionType):
        code = send.__code__
        if WRAPPERS.get((send.__module__, code.co_name)) != code.co_freevars or code.co_names:
            raise NotPlain(f"{send.__module__} is between it and the connection")
        send = dict(zip(code.co_freevars, send.__closure__ or (), strict=True))["send"].cell_contents
    cycle: Any = getattr(send, "__self__", None)
    if type(cycle).__module__ not in SERVERS or getattr(type(cycle), "send", None) is not send.__func__:
        raise NotPlain(f"the server's {type(cycle).__module__} is not known")
    if not all(hasattr(cycle, name) for name in ("transport", "disconnected")) or not hasattr(
        cycle.flow, "write_paused"
    ):
        raise NotPlain("the server's object is of another kind")
    return cycle


def framed(body: bytes) -> bytes:
    """A chunk of an HTTP body as it is on the wire."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class HeldTransport:
    """Transport of a response that collects what is written.

    Parameters
    ----------
    cycle : RequestResponseCycle
        Its attribute is this object until `release`.
    soon : callable, optional
        An event loop's ``call_soon``: what is collected is written in the loop's next turn at the latest.
    """

    def __init__(self, cycle: Any, soon: Callable[..., Any] | None = None) -> None:
        self.cycle, self.soon, self.transport = cycle, soon, cycle.transport
        self.parts: list[bytes] = []
        self.is_last = False
        cycle.transport = self

    def write(self, data: Any) -> None:
        """Collect; the last part of a response is written at once with all before it."""
        if not data:
            return
        if not self.parts and self.soon is not None:
            self.soon(self.flush)
        self.parts.append(bytes(data))
        if self.is_last:
            self.flush()

    def flush(self) -> None:
        """Write what is collected, in one call."""
        if self.parts:
            parts, self.parts = self.parts, []
            self.transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        self.flush()
        return getattr(self.transport, name)

    def release(self) -> None:
        """Write what is collected, and put the transport back."""
        self.flush()
        if self.cycle.transport is self:
            self.cycle.transport = self.transport
