"""Checks of Receivers' addresses: pyzmq is there, and the address can be bound or reached."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import stat

from ..transport import Address
from .findings import Finding, Scope

_ANSWER_S = 2.0


def check_addresses(scope: Scope) -> list[Finding]:
    """Check pyzmq, if an address was named, and each address."""
    if not scope.addresses:
        return []
    return [_check_library(), *(_check(address) for address in scope.addresses)]


def _check_library() -> Finding:
    try:
        import zmq
    except ImportError as error:
        return Finding(
            "error",
            "addresses",
            "pyzmq-missing",
            "pyzmq",
            f"cannot be imported, and an address needs it: {error}",
            ("pip install 'fd_postproc[zmq]'",),
        )
    version = importlib.metadata.version("pyzmq")
    keys = "with CURVE" if zmq.has("curve") else "without CURVE: no keys"
    return Finding(
        "ok",
        "addresses",
        "pyzmq",
        "pyzmq",
        f"{version}, libzmq {zmq.zmq_version()}, {keys}",
        data={"version": version},
    )


def _check(address: Address) -> Finding:
    name = address.text
    if _answers(address):
        return Finding("ok", "addresses", "address-answers", name, "a receiver is there")
    if why := _why_not_bound(address):
        return Finding(
            "error",
            "addresses",
            "address-unusable",
            name,
            f"nobody answers there, and no Receiver of this host can use it: {why}",
            ("start the receiver on that host, or correct the address; mind firewalls",),
        )
    if not address.is_local:
        return Finding(
            "warning",
            "addresses",
            "address-open",
            name,
            "a Receiver can use it, and other hosts reach it: without keys, whoever does can forge tokens",
            ("bind 127.0.0.1, or the address of a private network, and give both ends curve=",),
        )
    return Finding("ok", "addresses", "address-free", name, "nobody is there yet; a Receiver can use it")


def _answers(address: Address) -> bool:
    """Whether a process accepts connections; nothing is sent to it."""
    try:
        if address.kind == "ipc":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
                one.connect(address.path)
        elif address.host == "*" or address.port == 0:
            return False
        else:
            socket.create_connection((address.host, address.port), _ANSWER_S).close()
    except OSError:
        return False
    return True


def _why_not_bound(address: Address) -> str:
    """Reason why a Receiver of this user cannot listen there; empty if it can."""
    if address.kind == "ipc":
        if os.path.lexists(address.path) and not stat.S_ISSOCK(os.lstat(address.path).st_mode):
            return f"{address.path} is no socket, and is left alone"
        folder = os.path.dirname(address.path)
        if not os.path.isdir(folder):
            return f"there is no directory {folder}"
        return "" if os.access(folder, os.W_OK | os.X_OK) else f"this user may not write to {folder}"
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            None if address.host == "*" else address.host,
            address.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        with socket.socket(family, kind, protocol) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(where)
    except OSError as error:
        return error.strerror or str(error)
    return ""
