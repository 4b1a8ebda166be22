"""Streams of gunicorn's workers, which are replaced and ended meanwhile; a program of its own.

gunicorn is started as FastDeploy starts it, with two processes of the server.  Each has to end the streams
that it has, with the bytes that they have when nothing happens and the lane is off.

    FD_PLUGINS=fd_postproc python reloads.py PROTOCOL
``graceful_timeout`` is a minute; with 0, which is FastDeploy's default, SIGTERM ends streams at once.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time

from tests.lib.chunk_replay import bad_connections, serve
from tests.lib.chunk_replay.cases import index

STREAMS, STEPS = 8, 3000
OPTIONS = {"date_header": False, "server_header": False, "lifespan": "off"}
GET = b"GET /told HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def begin(server, bound, with_lane):
    """gunicorn's process: the arbiter of two workers with the application."""
    from gunicorn.app.base import BaseApplication
    from uvicorn.workers import UvicornWorker

    class Worker(UvicornWorker):
        CONFIG_KWARGS = OPTIONS | {"http": server.server.config.http}

    class Application(BaseApplication):
        def load_config(self):
            for name, value in {
                "bind": f"fd://{bound.fileno()}", "workers": 2, "worker_class": Worker, "timeout": 0,
                "graceful_timeout": 60, "loglevel": "error",
            }.items():  # fmt: skip
                self.cfg.set(name, value)

        def load(self):
            return server.server.config.app

    process = os.fork()
    if process:
        return process
    if with_lane:
        from fd_postproc.fastdeploy.api import streaming_response

        streaming_response.install(sys.modules["__main__"])
    try:
        Application().run()
    finally:
        os._exit(0)


class Client:
    """What is asked of a server."""

    read, ask = bad_connections.Server.read, bad_connections.Server.ask

    def __init__(self, bound, process):
        self.address, self.process = bound.getsockname(), process

    async def told(self, *gone):
        """Chunks written from the engine's message, by process, when two others than those answer."""
        found = {}
        async with asyncio.timeout(60):
            while len(found.keys() - {*gone}) < 2:
                process, steady = json.loads((await self.ask(GET)).partition(b"\r\n\r\n")[2])
                found[process] = steady
        return found

    async def streams(self, signals):
        """The answers of streams; each signal is sent when all have begun."""
        begun, answers = [], []

        async def one(number):
            reader, writer = await asyncio.open_connection(*self.address)
            writer.write(bad_connections.POST % (b"stream%d/%d" % (number, STEPS), 1))
            first = await asyncio.wait_for(reader.read(1 << 10), 60)
            begun.append(number)
            told = first + await self.read(reader)
            writer.close()
            return told

        for sent in signals:
            begun.clear()
            tasks = [asyncio.create_task(one(number)) for number in range(STREAMS)]
            while len(begun) < STREAMS:
                await asyncio.sleep(0)
            if sent is not None:
                os.kill(self.process, sent)
            answers += await asyncio.gather(*tasks)
        return answers

    async def all(self):
        """The answers, and what the workers of the second generation say."""
        first = await self.told()
        answers = await self.streams([None, signal.SIGHUP])
        await self.told(*first)
        answers += await self.streams([None])
        told = await self.told(*first)
        answers += await self.streams([signal.SIGHUP, signal.SIGTERM])
        return answers, sum(told.values())


def route_told(server):
    """Have the application tell of its process."""
    from fd_postproc.fastdeploy.api.chunks._chunks import steady_totals

    @server.server.config.app.get("/told")
    async def told():
        return [os.getpid(), steady_totals()[0]]


if __name__ == "__main__":
    import fastdeploy  # noqa: F401
    import msgpack
    from fastapi.responses import StreamingResponse  # noqa: F401
    from fastdeploy.entrypoints.openai import serving_chat, serving_completion  # noqa: F401
    from fastdeploy.entrypoints.openai import utils as serving_utils

    serve.msgpack, serve.serving_utils = msgpack, serving_utils
    bad_connections.share_one_processor()
    frozen = index()["frozen_time"]
    time.time = lambda: frozen
    found = []
    for with_lane in False, True:
        server = bad_connections.Server(sys.argv[1])
        route_told(server)
        bound = socket.create_server(("127.0.0.1", 0))
        process = begin(server, bound, with_lane)
        client = Client(bound, process)
        bound.close()
        try:
            found.append(asyncio.run(client.all()))
        finally:
            os.kill(process, signal.SIGTERM)
            _, status = os.waitpid(process, 0)
    (expected, none), (answers, steady) = found
    wrong = [number for number, pair in enumerate(zip(answers, expected, strict=True)) if len({*pair}) > 1]
    told = {"answers": len(answers), "wrong": wrong, "status": status, "off": none, "steady": steady}
    print("told: " + json.dumps(told))
