"""Streams over connections that end, stall, are used again, or speak HTTP/1.0; a program of its own.

What a client reads has to be what it reads with the lane off.  Nothing may be left behind.

    FD_PLUGINS=fd_postproc python bad_connections.py PROTOCOL [MODULE:FUNCTION ...]
"""

import asyncio
import copy
import importlib
import json
import random
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

from tests.lib.chunk_replay import over_sockets, serve
from tests.lib.chunk_replay.cases import cases, index

POST = b"POST /%b HTTP/1.%d\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
DISCONNECTS = 100


def long_case(name, steps):
    """A recorded stream whose second result comes again and again."""
    found = next(
        case
        for case in cases().values()
        if case["dimensions"]["stream"]
        and case["derived"]
        and case["server"]["tokenizer"] == "bytebpe"
        and json.loads(case["request_body"]).get("n", 1) == 1
        and not json.loads(case["request_body"]).keys() & {"return_token_ids", "collect_metrics"}
        and not case["server"]["reasoning_parser"]
        and not case["server"]["tool_parser"]
        and json.loads(case["request_body"]).get("max_streaming_response_tokens", 1) == 1
        and case["path"].endswith("chat/completions")
        and not case["server"]["env"].get("FD_USE_HF_TOKENIZER")
        and case["output"]["status"] == 200
        and len(case["frames"]) > 4
    )
    case = copy.deepcopy(found)
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

        self.managers, self.dispatchers = [], []

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
        """A client that says that it will send nothing more."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(POST % (b"half/10", 1))
        await asyncio.sleep(0)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return b""  # how much of it arrives is the server's business

    async def disconnects(self):
        """Clients that hang up, some with a reset, beside one that stays."""
        draw = random.Random(3)
        staying = asyncio.create_task(self.ask(POST % (b"staying/1500", 1)))

        async def leave(number):
            reader, writer = await asyncio.open_connection(*self.address)
            writer.write(POST % (b"leave%d/200" % number, 1))
            for _ in range(draw.randrange(6)):
                await reader.read(draw.randrange(1, 4096))
            if draw.random() < 0.5:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

        for first in range(0, DISCONNECTS, 20):
            await asyncio.gather(*(leave(first + number) for number in range(20)))
        return await staying

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
        maps = [manager.request_map for manager in self.managers]
        return [
            name for one in maps for name in [*one, *getattr(one, "lanes", ()), *getattr(one, "waiting", ())]
        ]


async def play(server):
    """What differs; how many results the lane wrote."""
    from fd_postproc.fastdeploy.api import lane
    from fd_postproc.fastdeploy.api.chunks._chunks import steady_totals

    written, writes = [0], lane.Lane.write

    def write(self, group):
        written[0] += len(group)
        writes(self, group)

    lane.Lane.write = write
    expected = await server.all()
    assert written == [0]
    assert steady_totals() == (0, 0)
    restore = lane.install(sys.modules["__main__"])
    told = await server.all()
    restore()
    wrong = {name: [len(told[name]), len(expected[name])] for name in told if told[name] != expected[name]}
    return wrong, written[0], {name: told[name] for name in told if name.endswith("left") and told[name]}


if __name__ == "__main__":
    import fastdeploy  # noqa: F401
    import msgpack
    from fastapi.responses import StreamingResponse  # noqa: F401
    from fastdeploy.entrypoints.openai import serving_chat, serving_completion  # noqa: F401
    from fastdeploy.entrypoints.openai import utils as serving_utils

    if not hasattr(serving_utils.DealerConnectionManager, "_dispatch_batch_responses") or hasattr(
        importlib.import_module("fastdeploy.utils"), "make_choice_id"
    ):
        print("told: " + json.dumps({"other": "its results come one by one, or have other ids"}))
        sys.exit()
    serve.msgpack, serve.serving_utils = msgpack, serving_utils
    for planted in sys.argv[2:]:
        name, function = planted.split(":")
        getattr(importlib.import_module(name), function)()
    made, model = serve.processor_of, {}
    serve.processor_of = lambda server: (
        model.setdefault(0, None) or model.update({0: made(server)}) or model[0]
    )
    frozen = index()["frozen_time"]
    time.time = lambda: frozen
    served = Server(sys.argv[1])
    wrong, written, left = asyncio.run(served.run(play))
    from fd_postproc.fastdeploy.api.chunks._chunks import steady_totals, totals

    steady, behind = steady_totals()
    told = {"wrong": wrong, "lane": written, "behind": left, "steady": steady, "steady behind": behind}
    print("told: " + json.dumps(told | {"left": totals()[1]}))
