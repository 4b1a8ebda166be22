"""CPU time of a chunk in an API process whose engine is a stand-in; a program of its own.

FastDeploy's serving code, uvicorn and uvloop are real, the streams' clients are another process.  A step is
one message with a result for each stream, of two random tokens.  Between two steps other memory is touched,
as an engine's step and other programs do.  The streams' first results are recorded ones.

    FD_PLUGINS=fd_postproc FD_POSTPROC_LANE=1 python many_streams.py STREAMS COLUMNS STEPS SECONDS
"""

import asyncio
import json
import multiprocessing
import os
import random
import selectors
import socket
import sys
import time

from tests.lib.chunk_replay import bad_connections, serve

OTHER_MEMORY = 32 << 20
IDS = range(300, 900)


def read_all(address, streams):
    """Clients that ask once, and read."""
    selector = selectors.DefaultSelector()
    for number in range(streams):
        one = socket.create_connection(address)
        one.sendall(bad_connections.POST % (b"stream%d/1" % number, 1))
        selector.register(one, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            key.fileobj.recv(1 << 18)


class Engine:
    """The socket of the engine's messages, for all streams."""

    def __init__(self, columns):
        self.columns, self.messages, self.came = columns, [], asyncio.Event()
        self.firsts, self.draw = {}, random.Random(1)

    async def read(self):
        while not self.messages:
            self.came.clear()
            await self.came.wait()
        return [self.messages.pop(0)]

    def send(self, message):
        self.messages.append(message)
        self.came.set()

    def first(self):
        return serve.msgpack.packb([frames[0][0] for frames in self.firsts.values()])

    def step(self):
        return serve.msgpack.packb([[self.result(frames[1][0][0])] for frames in self.firsts.values()])

    def result(self, recorded):
        draw, width = self.draw, self.columns + 1
        ids = [[draw.choice(IDS) for _ in range(width)] for _ in range(2)]
        scores = [[-9 * draw.random() for _ in range(width)] for _ in range(2)]
        top = [ids, scores, [1, 1]] if self.columns else None
        outputs = recorded["outputs"] | {
            "token_ids": [one[0] for one in ids], "top_logprobs": top, "draft_top_logprobs": None,
        }  # fmt: skip
        return recorded | {"outputs": outputs}


class Server(bad_connections.Server):
    """All streams have one connection manager."""

    def __init__(self, protocol, columns):
        super().__init__(protocol)
        self.columns = columns
        self.manager = serve.serving_utils.DealerConnectionManager(pid=0)
        self.manager.running, self.manager.pull_metrics_address = True, "ipc://none"

    async def answer(self):
        body = json.loads(self.case["request_body"])
        for name in ("logprobs", "top_logprobs", "stream_options"):
            body.pop(name, None)
        if self.columns:
            body |= {"logprobs": True, "top_logprobs": self.columns}
        self.case["request_body"] = json.dumps(body)
        client = serve.EngineClient(self.case)
        client.connection_manager = self.manager
        create, request = serve.asked(self.case, client)
        self.engine.firsts[body["request_id"]] = self.case["frames"]
        self.dispatcher = None
        return sys.modules["__main__"].StreamingResponse(
            content=self.wrap(await create(request))(), media_type="text/event-stream"
        )

    async def measured(self, streams, steps, seconds):
        """Microseconds of CPU a chunk, by step."""
        self.engine = self.manager.pull_client = Engine(self.columns)
        self.manager.request_map.more = self.engine.messages.__len__
        dispatcher = asyncio.create_task(self.manager._dispatch_batch_responses())
        process = multiprocessing.get_context("spawn").Process(
            target=read_all, args=(self.address, streams), daemon=True
        )
        process.start()
        while len(self.manager.request_map) < streams:
            await asyncio.sleep(0.05)
        self.engine.send(self.engine.first())
        messages, other, spent = [self.engine.step() for _ in range(8)], bytearray(OTHER_MEMORY), []
        for number in range(steps):
            await asyncio.sleep(seconds)
            for at in range(0, OTHER_MEMORY, 64):
                other[at] = 1
            began = time.thread_time()
            self.engine.send(messages[number % len(messages)])
            await asyncio.sleep(0.005)
            spent.append((time.thread_time() - began) * 1e6 / streams)
        process.kill()
        dispatcher.cancel()
        return spent[5:]  # the first ones go FastDeploy's way


if __name__ == "__main__":
    import fastdeploy  # noqa: F401
    import msgpack
    import uvloop
    from fastapi.responses import StreamingResponse  # noqa: F401
    from fastdeploy.entrypoints.openai import serving_chat, serving_completion  # noqa: F401
    from fastdeploy.entrypoints.openai import utils as serving_utils

    from fd_postproc.fastdeploy.api import streaming_response
    from fd_postproc.fastdeploy.api.chunks._chunks import steady_totals

    serve.msgpack, serve.serving_utils = msgpack, serving_utils
    bad_connections.share_one_processor()
    if os.environ.get("FD_POSTPROC_LANE") == "1":
        streaming_response.install(sys.modules["__main__"])
    streams, columns, steps, seconds = (
        kind(one) for kind, one in zip((int, int, int, float), sys.argv[1:], strict=True)
    )
    uvloop.install()
    server = Server("h11", columns)
    told = sorted(asyncio.run(server.run(lambda one: one.measured(streams, steps, seconds))))
    least, tenth, median = told[0], told[len(told) // 10], told[len(told) // 2]
    found = {"least": least, "tenth": tenth, "median": median}
    found = {name: round(one, 1) for name, one in found.items()} | {"steady": steady_totals()[0]}
    print("told: " + json.dumps(found))
    os._exit(0)  # its streams never end
