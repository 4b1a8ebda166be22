"""Peers of an address that speak ZMTP by hand, and need not be honest."""

import contextlib
import os
import socket

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"
PING = b"\x04\x07\x04PING\x00\x64"

NOT_LATER_S = 3.0 if "san" in os.environ.get("LD_PRELOAD", "") else 0.3
"""What a call may take of its thread's time beyond its timeout: a busy machine adds none to it, a pass of the
garbage collector over pytest's heap does, and a sanitizer build is ten times as slow."""


def connected(address, *said):
    """A socket that is connected to an address, and has said something; it does not wait later."""
    kind, _, rest = address.partition("://")
    if kind == "ipc":
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.connect(rest)
    else:
        host, _, port = rest.rpartition(":")
        one = socket.create_connection((host, int(port)))
    one.sendall(b"".join(said))
    one.setblocking(False)
    return one


def greeted(address, *said):
    """The same, and it is taken for a PUSH socket."""
    return connected(address, GREETING, READY, *said)


def message(payload, more=False):
    """A ZMTP frame."""
    return bytes((2 | more,)) + len(payload).to_bytes(8, "big") + payload


class Flood:
    """Sends the same again and again through a socket, as fast as that goes."""

    def __init__(self, one, data):
        self.one, self.data, self.rest = one, data, b""

    def pour(self):
        """Send as much as goes without waiting; bytes."""
        sent = 0
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while True:
                self.rest = self.rest or self.data
                count = self.one.send(self.rest)
                self.rest = self.rest[count:]
                sent += count
        return sent
