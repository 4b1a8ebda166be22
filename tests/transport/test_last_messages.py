"""What is in ZeroMQ's own buffer when a Sender is closed: waited for, and otherwise told as not sent."""

import socket
import threading
import time

import pytest

from fd_postproc.transport import open_outlet
from fd_postproc.transport.plain_inlet import _HELLO
from tests.lib.strangers import GREETING, READY

BUFFER = 8192  # ZeroMQ's own: shorter messages are copied into it, and let go of at once
HEAD = len(GREETING + READY)
WAITING = 2


class Reader:
    """A receiver that reads no more than it is told to.

    It has as much on its way as goes: what the kernel holds, ZeroMQ's buffer, and what waits at the mark.
    """

    def __init__(self, kind, size, folder, most=1 << 20):
        self.kind, self.size = kind, size + 9
        folder.mkdir(exist_ok=True)
        if kind == "ipc":
            server, address = socket.socket(socket.AF_UNIX), f"ipc://{folder}/road"
            server.bind(f"{folder}/road")
            server.listen()
        else:
            server = socket.create_server(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with server:
            self.outlet = open_outlet(address, WAITING, 60.0, None)
            self.connection, _ = server.accept()
        self.connection.sendall(_HELLO)
        self.connection.settimeout(0.1)
        self.count = self.got = 0
        while self.count < most:
            if self.outlet.put(bytes(size), 0.5):
                self.count += 1
            elif not self.outlet._has_room():
                break

    def read(self, most):
        """Read bytes, if there are any; false at the end."""
        try:
            found = self.connection.recv(most)
        except TimeoutError:
            return True
        self.got += len(found)
        return bool(found)

    def frames(self):
        """How many have come whole when all is read."""
        while self.read(1 << 16):
            pass
        return (self.got - HEAD) // self.size


@pytest.fixture(
    params=[("ipc", 500), ("ipc", 3000), ("ipc", 7000), ("tcp", 3000)], ids=lambda one: f"{one[0]}-{one[1]}"
)
def reader(request, tmp_path):
    reader = Reader(*request.param, tmp_path)
    with reader.connection:
        yield reader


def reached(reader, folder, count):
    """Another reader, to which so many messages are on their way, all let go of; None if they are not."""
    again = Reader(reader.kind, reader.size - 9, folder / str(count), count)
    for _ in range(200):
        if again.count == count and again.outlet._pending[-1].done:
            return again
        time.sleep(0.005)
    again.outlet.close(0)
    again.connection.close()
    return None


def test_close_waits_until_the_kernel_has_them(reader, tmp_path):
    """Those that ZeroMQ has let go of, and not one more, are on their way: the last are in its buffer."""
    count = reader.count - sum(not one.done for one in reader.outlet._pending)
    reader.outlet.close(0)
    again = reached(reader, tmp_path, count)
    while again is None:  # where bytes were written in other portions, one fewer fits
        count -= 1
        again = reached(reader, tmp_path, count)
    told = []
    closing = threading.Thread(target=lambda: told.append(again.outlet.close(60)))
    closing.start()
    closing.join(0.5)  # without the wait it is over here, and what it had in its buffer is lost
    assert again.frames() == count
    closing.join()
    assert told == [(0, "")]
    again.connection.close()


def test_what_may_be_in_the_buffer_is_told(reader):
    unsent, why = reader.outlet.close(0.01)
    assert WAITING < unsent <= WAITING + 3 + BUFFER // reader.size
    assert why == "a receiver is connected, and takes none"
    assert reader.count - unsent <= reader.frames() < reader.count


def test_what_a_receiver_takes_in_time_is_no_loss(reader):
    while not reader.outlet._has_room() or not reader.outlet._pending[-1].done:
        reader.read(1 << 16)
    assert reader.outlet.close(0) == (0, "")
    assert reader.frames() == reader.count
