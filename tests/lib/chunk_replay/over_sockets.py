"""Plays recorded streams through FastDeploy's serving code and uvicorn, to a socket; a program of its own.

Each case is asked with the lane off and on, at several paces of the engine's messages; the bytes that a
client reads have to be the same, headers and chunked encoding included.

    FD_PLUGINS=fd_postproc python over_sockets.py PROTOCOL [MODULE:FUNCTION ...] [CASE ...]
"""

import ast
import asyncio
import functools
import importlib
import json
import random
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

from fd_postproc.environment import STREAM_INTERVAL
from tests.lib.chunk_replay import serve
from tests.lib.chunk_replay.alone import results_of
from tests.lib.chunk_replay.cases import index

TURNS = 30
"""Turns of the event loop in which a stream has written what it was given."""


class Paced(serve.Frames):
    """The result socket: a message, then some turns of the event loop for the streams."""

    def __init__(self, frames, turns):
        super().__init__(frames)
        self.turns = turns

    async def read(self):
        for _ in range(self.turns()):
            await asyncio.sleep(0)
        return await super().read()


def wrapped_by_the_application():
    """FastDeploy's function around a generator, without the rest of its program."""
    path = Path(importlib.import_module("fastdeploy").__file__).parent / "entrypoints/openai/api_server.py"
    for node in ast.parse(path.read_text()).body:
        if getattr(node, "name", None) == "wrap_streaming_generator":
            space = vars(importlib.import_module("fastdeploy.entrypoints.openai.utils")).copy()
            space.update(
                time=time, connection_semaphore=serve.Semaphore(), AsyncGenerator=object,
                trace=importlib.import_module("opentelemetry.trace"),
            )  # fmt: skip
            exec(compile(ast.Module([node], []), str(path), "exec"), space)
            return space["wrap_streaming_generator"]
    raise AssertionError("no wrap_streaming_generator")


class Server:
    """uvicorn with one route, which answers the case that is set."""

    def __init__(self, protocol, **options):
        import uvicorn
        from fastapi import FastAPI, Request

        app = FastAPI()
        self.wrap = wrapped_by_the_application()

        @app.post("/")
        async def answer(_: Request):
            return await self.answer()

        config = uvicorn.Config(
            app, http=protocol, log_level="error", date_header=False, server_header=False,
            lifespan="off", **options,
        )  # fmt: skip
        self.server = uvicorn.Server(config)

    async def answer(self):
        case = self.case
        client = serve.EngineClient(case)
        create, request = serve.asked(case, client)
        manager = self.manager = client.connection_manager
        manager.pull_client = Paced(case["frames"], self.turns)
        manager.pull_metrics_address = "ipc://none"
        if self.coalesce:
            manager.request_map.more = manager.pull_client.frames.__len__
        made = await create(request)
        assert type(made).__name__ != "ErrorResponse", made

        async def dispatch():
            while not manager.request_map:
                await asyncio.sleep(0)
            await manager._dispatch_batch_responses()

        self.dispatcher = asyncio.create_task(dispatch())
        return sys.modules["__main__"].StreamingResponse(
            content=self.wrap(made)(), media_type="text/event-stream"
        )

    async def asked(self, case, turns, coalesce=False):
        """The bytes of an answer."""
        serve.prepare(case)
        serve.processor_of(case["server"])  # made only once, and what makes it draws ids
        serve.prepare(case)
        self.case, self.turns, self.coalesce, self.dispatcher = case, turns, coalesce, None
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        told = b""
        try:
            async with asyncio.timeout(6 * serve.PATIENCE):
                while not told.endswith(b"\r\n0\r\n\r\n"):
                    part = await reader.read(1 << 16)
                    if not part:
                        break
                    told += part
        except TimeoutError:
            told += b"no end"
        writer.close()
        if self.dispatcher is not None:
            self.dispatcher.cancel()
        return told

    async def run(self, ask):
        """Serve while `ask` runs."""
        task = asyncio.create_task(self.server.serve(sockets=[self.bound()]))
        while not self.server.started:
            await asyncio.sleep(0.01)
        try:
            return await ask(self)
        finally:
            self.server.should_exit = True
            await task

    def bound(self):
        import socket

        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        self.address = bound.getsockname()
        return bound


def chunks_of(told):
    """The events of an answer."""
    body, found = told.partition(b"\r\n\r\n")[2], []
    while body:
        size, _, body = body.partition(b"\r\n")
        found.append(body[: int(size, 16)].decode())
        body = body[int(size, 16) + 2 :]
    return found[:-1]


def merged(told):
    """An answer whose chunks are put together: texts and log-probabilities of each choice, and the rest."""
    head, _, _ = told.partition(b"\r\n\r\n")
    texts, rest = {}, []
    for event in chunks_of(told):
        chunk = json.loads(event[6:]) if event.startswith("data: {") else event
        for choice in chunk.get("choices", ()) if isinstance(chunk, dict) else ():
            one = texts.setdefault(choice["index"], {"text": ""})
            place = choice.get("delta", choice)
            key = "content" if place is not choice else "text"
            one["text"] += place.pop(key, None) or ""
            for name, values in (choice.pop("logprobs", None) or {}).items():
                one[name] = one.get(name, []) + values
            if choice.get("finish_reason"):
                rest.append(choice | {"arrival_time": None})
        if not isinstance(chunk, dict) or not chunk.get("choices"):
            rest.append(chunk)
    return [head, texts, rest]


async def play(server):
    """What differs, by case; how many chunks the lane wrote."""
    from fd_postproc.fastdeploy.api import lane, streaming_response

    wrong, played, as_recorded, written, writes = {}, 0, 0, [0], lane.Lane.write

    def write(self, group):
        written[0] += len(group)
        writes(self, group)

    lane.Lane.write = write
    program = sys.modules["__main__"]
    for name, case in serve.cases_here().items():
        if not (case["derived"] and case["dimensions"]["stream"]) or (only and name not in only):
            continue
        played += 1
        expected = await server.asked(case, lambda: TURNS)
        as_recorded += chunks_of(expected) == case["output"]["chunks"]
        restore = streaming_response.install(program)
        draw = random.Random(played)
        paces = [
            (lambda: TURNS, False),
            (functools.partial(draw.randrange, 6), False),
            (functools.partial(draw.randrange, 9), True),
        ]
        for number, (turns, coalesce) in enumerate(paces):
            told = await server.asked(case, turns, coalesce)
            told, right = (merged(told), merged(expected)) if STREAM_INTERVAL.value else (told, expected)
            if told != right:
                told, right = (bytes(told), right) if isinstance(told, bytes) else map(str, (told, right))
                at = next((i for i, (a, b) in enumerate(zip(told, right, strict=False)) if a != b), -1)
                wrong[name] = f"pace {number} at {at}: {told[at - 60 : at + 60]} {right[at - 60 : at + 60]}"
        restore()
    return {"played": played, "as recorded": as_recorded, "wrong": wrong, "lane": written[0]}


class Processed:
    """A data processor whose results are processed already, as those of any FastDeploy are here."""

    eos_token_ids, tokenizer = [2], range(1000)

    def __init__(self):
        self.model_status_dict, self.output_fallback_manager = {}, None

    def process_response_dict(self, response_dict, **_):
        return response_dict


class OneByOne(Server):
    """A server whose engine sends each result to its request, as those of 2.5 and before do."""

    async def answer(self):
        client = serve.EngineClient(self.case)
        queue, results = asyncio.Queue(), list(results_of(self.case))
        for result in results:
            queue.put_nowait([result])

        async def get_connection(*_):
            return SimpleNamespace(write=len), queue

        client.connection_manager.get_connection = get_connection
        create, request = serve.asked(self.case, client)
        made = await create(request)
        assert type(made).__name__ != "ErrorResponse", made
        return sys.modules["__main__"].StreamingResponse(
            content=self.wrap(made)(), media_type="text/event-stream"
        )


async def play_one_by_one(server):
    """What differs where the lane has to leave every stream to its task."""
    from fd_postproc.fastdeploy.api import streaming_response

    serve.processor_of = lambda _: Processed()
    case = next(case for case in serve.cases_here().values() if is_plain(case))
    expected = await server.asked(case, lambda: 0)
    streaming_response.install(sys.modules["__main__"])
    told = await server.asked(case, lambda: 0)
    return {"chunks": len(chunks_of(expected)), "wrong": {} if told == expected else {"bytes": str(told)}}


def is_plain(case):
    """Whether a case is a streamed chat of one choice with nothing unusual asked."""
    body = json.loads(case["request_body"])
    return (
        case["dimensions"]["stream"]
        and case["derived"]
        and case["server"]["tokenizer"] == "bytebpe"
        and body.get("n", 1) == 1
        and not body.keys() & {"return_token_ids", "collect_metrics"}
        and not case["server"]["reasoning_parser"]
        and not case["server"]["tool_parser"]
        and body.get("max_streaming_response_tokens", 1) == 1
        and case["path"].endswith("chat/completions")
        and not case["server"]["env"].get("FD_USE_HF_TOKENIZER")
        and case["output"]["status"] == 200
        and len(case["frames"]) > 4
    )


if __name__ == "__main__":
    import fastdeploy  # noqa: F401
    import msgpack
    from fastapi.responses import StreamingResponse  # noqa: F401
    from fastdeploy.entrypoints.openai import serving_chat, serving_completion  # noqa: F401
    from fastdeploy.entrypoints.openai import utils as serving_utils

    in_batches = hasattr(serving_utils.DealerConnectionManager, "_dispatch_batch_responses")
    serve.msgpack, serve.serving_utils = msgpack, serving_utils
    for planted in (argument for argument in sys.argv[2:] if ":" in argument):
        name, function = planted.split(":")
        getattr(importlib.import_module(name), function)()
    only = [argument for argument in sys.argv[2:] if ":" not in argument]
    frozen = index()["frozen_time"]
    time.time = lambda: frozen
    traceback.format_exc = lambda *a, **k: "<traceback>"
    served = (Server if in_batches else OneByOne)(sys.argv[1])
    told = asyncio.run(served.run(play if in_batches else play_one_by_one))
    from fd_postproc.fastdeploy.api.chunks._chunks import steady_totals, totals

    steady, behind = steady_totals()
    told |= {"steady": steady, "behind": behind, "left": totals()[1], "in batches": in_batches}
    print("told: " + json.dumps(told))
