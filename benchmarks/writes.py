"""A step's chunks, ready-made, to a client's socket each: what no API server can be faster than.

CPU time of the writing thread only; another process reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import multiprocessing
import selectors
import socket
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from time import sleep, thread_time
from typing import Any

from .cases import Comparison, Ready, Unavailable, check

ABOUT = (
    "ready bytes of a chunk to each of the sockets, CPU time of a step's writes; floor: C that calls writev"
)
REFERENCE = "floor"
BASELINE = "a queue and a task a stream"

SIZES = {"no logprobs": 350, "20 logprobs": 3_400}
"""Bytes of a chunk of two tokens."""


def comparisons(quick: bool) -> Iterator[Comparison]:
    for streams in (16,) if quick else (16, 64, 256):
        for shown, size in SIZES.items():
            ways = {name: partial(_make, make, streams, size) for name, make in WAYS.items()}
            yield Comparison(f"{streams} sockets, {shown}", ways)


def _make(make: Callable[[list[socket.socket], bytes, bytes], Any], streams: int, size: int) -> Ready:
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as made:
        server = made.enter_context(socket.create_server(("127.0.0.1", 0), backlog=streams))
        read = context.Value("Q", 0)
        reader = context.Process(target=_read, args=(server.getsockname(), streams, read), daemon=True)
        reader.start()
        made.callback(reader.join)
        made.callback(reader.kill)
        sockets = [made.enter_context(server.accept()[0]) for _ in range(streams)]
        for one in sockets:
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = b"%x\r\n" % (size - 2)
        step, close = make(sockets, head, b"x" * (size - 2) + b"\r\n")
        made.callback(close)
        written = [0]

        def run(loops: int) -> float:
            spent = 0.0
            for _ in repeat(None, loops):
                began = thread_time()
                step()
                spent += thread_time() - began
                written[0] += streams * (len(head) + size)
                while read.value < written[0]:  # a full buffer is another question
                    sleep(1e-4)
            return spent

        run(1)
        check(read.value == written[0], f"{read.value} bytes were read of {written[0]}")
        return Ready(run, bytes=size, close=made.pop_all().close)


def _read(address: Any, streams: int, read: Any) -> None:
    selector = selectors.DefaultSelector()
    for _ in range(streams):
        selector.register(socket.create_connection(address), selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            if not data:  # the writer has ended
                return
            read.value += len(data)


def _floor(sockets: list[socket.socket], head: bytes, body: bytes) -> Any:
    from .built import _floor

    numbers = [one.fileno() for one in sockets]
    check(_floor.write_each(numbers, b"", b"") == len(sockets), "a socket takes nothing")
    return partial(_floor.write_each, numbers, head, body), lambda: None


def _transports(policy: str, sockets: list[socket.socket], head: bytes, body: bytes) -> Any:
    loop = _loop(policy)
    made = [loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=one)) for one in sockets]
    writes = [transport.write for transport, _ in made]
    chunk = head + body

    def step() -> None:
        for write in writes:
            write(chunk)

    return step, lambda: _end(loop, [transport for transport, _ in made])


def _tasks(sockets: list[socket.socket], head: bytes, body: bytes) -> Any:
    loop = _loop("asyncio")
    queues: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in sockets]
    transports: list[Any] = []

    async def stream(queue: asyncio.Queue[bytes], one: socket.socket) -> None:
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=one)
        transports.append(transport)
        while True:
            transport.write(await queue.get())

    tasks = [loop.create_task(stream(*pair)) for pair in zip(queues, sockets, strict=True)]
    chunk = head + body

    async def turn() -> None:
        for queue in queues:
            queue.put_nowait(chunk)
        while any(queue.qsize() for queue in queues):
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def close() -> None:
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        _end(loop, transports)

    return lambda: loop.run_until_complete(turn()), close


def _end(loop: asyncio.AbstractEventLoop, transports: list[Any]) -> None:
    for transport in transports:
        transport.abort()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def _loop(policy: str) -> asyncio.AbstractEventLoop:
    if policy == "asyncio":
        return asyncio.new_event_loop()
    try:
        made: asyncio.AbstractEventLoop = importlib.import_module(policy).new_event_loop()
    except ImportError:
        raise Unavailable(f"{policy} is not installed") from None
    return made


WAYS = {
    "floor": _floor,
    "asyncio": partial(_transports, "asyncio"),
    "uvloop": partial(_transports, "uvloop"),
    BASELINE: _tasks,
}
