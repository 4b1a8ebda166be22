"""Streams over connections that end, stall, are used again, or speak HTTP/1.0; a program of its own.

What a client reads has to be what it reads with the lane off.  Nothing may be left behind.

    FD_PLUGINS=fd_postproc python bad_connections.py PROTOCOL [disconnects=COUNT] [requests=COUNT]
        [MODULE:FUNCTION ...]

With ``requests``, so many are asked instead, and the memory is told after each tenth of them.
"""

import asyncio
import functools
import gc
import importlib
import json
import random
import resource
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

from tests.lib.chunk_replay import over_sockets, serve
from tests.lib.chunk_replay.cases import index

POST = b"POST /%b HTTP/1.%d\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
SIDE_BY_SIDE = 20


@functools.cache
def plain_case():
    return next(case for case in serve.cases_here().values() if over_sockets.is_plain(case))


def long_case(name, steps):
    """A recorded stream whose second result comes again and again."""
    case = plain_case()
    own = case["derived"]["request_id"]
    text = json.dumps([case["request_body"], case["frames"], case["derived"]])
    body, frames, derived = json.loads(text.replace(own, f"chatcmpl-{name}"))
    body = json.dumps(json.loads(body) | {"request_id": name, "stream_options": {"include_usage": True}})
    frames = frames[:1] + [frames[1]] * steps + frames[-1:]
    return case | {"request_body": body, "frames": frames, "derived": derived}


class Server(over_sockets.Server):
    """Many at once: the path names the request; data processors keep their answers' states."""

    def __init__(self, protocol, **options):
        super().__init__(protocol, **options)
        route = self.server.config.app.router.routes[-1]
        self.server.config.app.router.routes.remove(route)
        from fastapi import Request

        @self.server.config.app.post("/{name}/{steps}")
        async def answer(_: Request, name: str, steps: int):
            self.case = long_case(name, steps)
            self.turns, self.coalesce = (lambda: 2), False
            answer = await self.answer()
            self.managers.append(self.manager)
            self.dispatchers.append(self.dispatcher)
            return answer

        self.managers, self.dispatchers, self.count = [], [], 100

    async def read(self, reader, answers=1):
        told = b""
        while answers:
            part = await asyncio.wait_for(reader.read(1 << 16), 60)
            if not part:
                break
            answers -= (told[-6:] + part).count(b"\r\n0\r\n\r\n")
            told += part
        return told

    async def ask(self, request, answers=1, **options):
        reader, writer = await asyncio.open_connection(*self.address, **options)
        writer.write(request)
        told = await self.read(reader, answers)
        writer.close()
        return told

    async def again(self):
        """One connection, two requests one after the other, then two at once."""
        reader, writer = await asyncio.open_connection(*self.address)
        told = b""
        for number in range(2):
            writer.write(POST % (b"again%d/40" % number, 1))
            told += await self.read(reader)
        writer.write(POST % (b"again2/40", 1) + POST % (b"again3/40", 1))
        told += await self.read(reader, 2)
        writer.close()
        return told

    async def stalled(self):
        """A client that reads nothing until another one has all of its answer."""
        reader, writer = await asyncio.open_connection(*self.address, limit=1 << 12)
        writer.write(POST % (b"stalled/800", 1))
        other = await self.ask(POST % (b"other/800", 1))
        return other + await self.read(reader)

    async def half_closed(self):
        """A client that says amid its answer that it will send nothing more."""
        whole, request = await self.ask(POST % (b"half/1500", 1)), POST % (b"half/1500", 1)
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(request)
        told = await reader.readuntil(b"\n\n")
        writer.write_eof()
        told += await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert len(told) < len(whole)  # the server ends there
        return whole if whole.startswith(told) else told

    async def proxied(self):
        """Something in between that cuts and joins what it passes on."""
        draw = random.Random(5)

        async def pass_on(reader, writer):
            while part := await reader.read(draw.choice((1, 7, 300, 1 << 16))):
                writer.write(part)
                if draw.random() < 0.2:
                    await asyncio.sleep(0)
            writer.write_eof()

        async def between(reader, writer):
            theirs, ours = await asyncio.open_connection(*self.address)
            await asyncio.gather(pass_on(reader, ours), pass_on(theirs, writer))
            ours.close()
            writer.close()

        async with await asyncio.start_server(between, "127.0.0.1", 0) as proxy:
            connection = await asyncio.open_connection(*proxy.sockets[0].getsockname())
            connection[1].write(
                POST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") % (b"proxied/200", 1)
            )
            told = await asyncio.wait_for(connection[0].read(), 60)
            connection[1].close()
        return told

    async def disconnects(self):
        """Clients that hang up, some with a reset, beside one of each hundred that stays."""
        draw, told = random.Random(3), set()

        async def leave(number):
            reader, writer = await asyncio.open_connection(*self.address)
            writer.write(POST % (b"leave%d/200" % number, 1))
            for _ in range(draw.randrange(6)):
                await reader.read(draw.randrange(1, 4096))
            if draw.random() < 0.5:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

        for first in range(0, self.count, SIDE_BY_SIDE):
            if first % 100 == 0:
                staying = asyncio.create_task(self.ask(POST % (b"staying/1500", 1)))
            await asyncio.gather(*(leave(first + number) for number in range(SIDE_BY_SIDE)))
            if first % 100 == 100 - SIDE_BY_SIDE:
                told.add(await staying)
                self.forget()
        return b"".join(sorted(told))

    async def memory(self, count):
        """Resident bytes after each tenth of so many requests."""
        told, page = [], resource.getpagesize()
        for first in range(0, count, SIDE_BY_SIDE):
            names = (b"r%d/8" % number for number in range(first, first + SIDE_BY_SIDE))
            await asyncio.gather(*(self.ask(POST % (name, 1)) for name in names))
            self.forget()
            if len(told) < (first + SIDE_BY_SIDE) * 10 // count:
                gc.collect()
                with open("/proc/self/statm") as file:
                    told.append(int(file.read().split()[1]) * page)
        return told

    def forget(self):
        """Look for the requests that are left later; the rest goes."""
        for dispatcher in self.dispatchers:
            dispatcher.cancel()
        self.dispatchers = []
        self.managers = [manager for manager in self.managers if self.left_in(manager)]

    def old(self):
        """HTTP/1.0: no chunked encoding."""
        return self.ask(POST % (b"old/40", 0))

    async def secured(self):
        """A stream over TLS, from a server that is told to end while it runs."""
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = f"{folder}/key", f"{folder}/certificate"
            command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a"]
            command += ["-keyout", key, "-out", certificate]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
            other = Server(self.server.config.http, ssl_keyfile=key, ssl_certfile=certificate)
            other.managers, other.dispatchers = self.managers, self.dispatchers

            async def ask(one):
                context = ssl.create_default_context(cafile=certificate)
                context.check_hostname = False
                answer = asyncio.create_task(one.ask(POST % (b"secured/300", 1), ssl=context))
                while not (one.managers and one.managers[-1].request_map):
                    await asyncio.sleep(0)
                one.server.should_exit = True
                return await answer

            return await other.run(ask)

    async def all(self):
        found = {}
        for name in (
            "again",
            "stalled",
            "old",
            "half_closed",
            "proxied",
            "disconnects",
            *["secured"] * bool(shutil.which("openssl")),
        ):
            self.managers, self.dispatchers = [], []
            found[name] = await getattr(self, name)()
            until = time.monotonic() + 15
            while self.left() and time.monotonic() < until:
                await asyncio.sleep(0.05)
            found[f"{name} left"] = self.left()
            print(name, time.perf_counter(), found[f"{name} left"][:3], file=sys.stderr, flush=True)
            for dispatcher in self.dispatchers:
                dispatcher.cancel()
        return found

    def left(self):
        """Requests, lanes and connections that are still there."""
        return [name for manager in self.managers for name in self.left_in(manager)]

    def left_in(self, manager):
        one = manager.request_map
        return [*one, *getattr(one, "lanes", ()), *getattr(one, "waiting", ())]


async def play_many(server, count):
    """The memory of a long run with the lane."""
    from fd_postproc.fastdeploy.api import streaming_response

    streaming_response.install(sys.modules["__main__"])
    return {"memory": await server.memory(count), "left behind": server.left()}


async def play(server, disconnects):
    """What differs; how many results the lane wrote."""
    from fd_postproc.fastdeploy.api import lane, streaming_response
    from fd_postproc.fastdeploy.api.chunks._chunks import steady_totals

    written, writes = [0], lane.Lane.write

    def write(self, group):
        written[0] += len(group)
        writes(self, group)

    lane.Lane.write = write
    expected = await server.all()
    assert written == [0]
    assert steady_totals() == (0, 0)
    restore = streaming_response.install(sys.modules["__main__"])
    server.count = disconnects
    told = await server.all()
    restore()
    wrong = {name: [len(told[name]), len(expected[name])] for name in told if told[name] != expected[name]}
    behind = {name: told[name] for name in told if name.endswith("left") and told[name]}
    return {"wrong": wrong, "lane": written[0], "behind": behind}


def share_one_processor():
    """Answers at the same time have one data processor, whose states of the others stay."""
    made, model = serve.processor_of, {}
    serve.processor_of = lambda server: (
        model.setdefault(0, None) or model.update({0: made(server)}) or model[0]
    )


if __name__ == "__main__":
    import fastdeploy  # noqa: F401
    import msgpack
    from fastapi.responses import StreamingResponse  # noqa: F401
    from fastdeploy.entrypoints.openai import serving_chat, serving_completion  # noqa: F401
    from fastdeploy.entrypoints.openai import utils as serving_utils

    serve.msgpack, serve.serving_utils = msgpack, serving_utils
    counts = dict(argument.split("=") for argument in sys.argv[2:] if "=" in argument)
    for planted in (argument for argument in sys.argv[2:] if ":" in argument):
        name, function = planted.split(":")
        getattr(importlib.import_module(name), function)()
    share_one_processor()
    frozen = index()["frozen_time"]
    time.time = lambda: frozen
    served = Server(sys.argv[1])
    many = int(counts.get("requests", 0))
    told = asyncio.run(
        served.run(
            lambda server: (
                play_many(server, many) if many else play(server, int(counts.get("disconnects", 100)))
            )
        )
    )
    from fd_postproc.fastdeploy.api.chunks._chunks import steady_totals, totals

    steady, behind = steady_totals()
    print("told: " + json.dumps(told | {"steady": steady, "steady behind": behind, "left": totals()[1]}))
