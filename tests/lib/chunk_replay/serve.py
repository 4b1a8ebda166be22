"""Plays recorded answers through FastDeploy's own serving code; a program for a process of its own.

From a request and what its server had made of it to the bytes of the answer: FastDeploy's handlers, data
processor, tokenizers, parsers and dispatcher are the real ones, the engine's messages are the recorded ones.

    FD_PLUGINS=fd_postproc python serve.py [rollouts]

``rollouts`` plays those of ``tests/golden_rollouts``, with lists in the messages and with arrays.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import json
import os
import re
import sys
import time
import traceback
import uuid

import fastdeploy  # noqa: F401  its plug-ins come first
import msgpack
from fastapi.responses import JSONResponse
from fastdeploy.entrypoints.openai import serving_chat, serving_completion  # noqa: F401
from fastdeploy.entrypoints.openai import utils as serving_utils

from fd_postproc.fastdeploy.api import answers, lane
from fd_postproc.fastdeploy.api.chunks._chunks import ARRAY
from fd_postproc.fastdeploy.events import counters
from tests.lib.chunk_replay.cases import FOLDER, ROLLOUTS, cases, index
from tools.accept.answer_scripts import EXPERTS, as_one_value

SWITCHES = ("FD_USE_HF_TOKENIZER", "FD_USE_GET_SAVE_OUTPUT_V1")
PATIENCE = 60  # seconds for one case
processors = {}


class Frames:
    """The result socket: recorded messages, then silence."""

    arrays = False  # whether experts come as from an engine with the plug-in

    def __init__(self, frames):
        self.frames = [msgpack.packb([*map(self.group, frame)]) for frame in frames]

    def group(self, results):
        """Results as they are packed."""
        if not self.arrays:
            return results
        return [
            one | {EXPERTS: msgpack.ExtType(ARRAY, as_one_value(one[EXPERTS]))} if one.get(EXPERTS) else one
            for one in results
        ]

    async def read(self):
        if self.frames:
            return [self.frames.pop(0)]
        await asyncio.Event().wait()


class Semaphore:
    async def acquire(self):
        pass

    def release(self):
        pass

    def status(self):
        return ""


def cases_here(folder=FOLDER):
    """The recorded cases, with ids that tell the choice as this FastDeploy's do."""
    compound = getattr(importlib.import_module("fastdeploy.utils"), "make_choice_id", None)
    if compound is None:
        return cases(folder)

    def told(case):
        parts = {name: case[name] for name in ("frames", "derived", "after")}
        ids = re.compile(r'"([^"]*cmpl-[^"]*)_(\d+)"')
        new = ids.sub(lambda one: f'"{compound(one[1], int(one[2]))}"', json.dumps(parts))
        return case | json.loads(new)

    return {name: told(case) for name, case in cases(folder).items()}


def processor_of(server):
    """FastDeploy's data processor for a server's options; one for each."""
    from fastdeploy.entrypoints.openai.tool_parsers import ToolParserManager
    from fastdeploy.input.text_processor import TextProcessor
    from fastdeploy.reasoning import ReasoningParserManager

    key = server["tokenizer"], server["reasoning_parser"], server["tool_parser"], str(server["env"])
    if key not in processors:
        reasoning, tools = server["reasoning_parser"], server["tool_parser"]
        processors[key] = TextProcessor(
            str(FOLDER / "tokenizers" / server["tokenizer"]),
            tokenizer_type="ernie4_5" if server["tokenizer"] == "sentencepiece" else "auto",
            reasoning_parser_obj=ReasoningParserManager.get_reasoning_parser(reasoning)
            if reasoning
            else None,
            tool_parser_obj=ToolParserManager.get_tool_parser(tools) if tools else None,
        )
    processor = processors[key]
    for table in (processor.decode_status, processor.model_status_dict, processor.tool_parser_dict):
        table.clear()
    return processor


class EngineClient:
    """What the handlers ask of it; the request is read already."""

    def __init__(self, case):
        self.derived, self.semaphore, self.is_master = case["derived"], Semaphore(), True
        self.data_processor = processor_of(case["server"])
        self.data_processor.model_status_dict.update(self.derived["model_status"])
        self.ori_vocab_size = len(self.data_processor.tokenizer)
        self.connection_manager = serving_utils.DealerConnectionManager(pid=0)
        self.connection_manager.running = True
        self.prompts = iter(range(len(self.derived["max_tokens"])))

    async def format_and_add_data(self, request):
        prompt = next(self.prompts)
        request["prompt_tokens"] = self.derived["prompt_tokens"][prompt]
        request["max_tokens"] = self.derived["max_tokens"][prompt]
        return self.derived["prompt_token_ids"][prompt]

    def check_model_weight_status(self):
        return False

    async def abort(self, *arguments):
        pass


def asked(case, client):
    """FastDeploy's handler for the answer of a case, and the request."""
    chat = case["path"].endswith("chat/completions")
    module = importlib.import_module(
        f"fastdeploy.entrypoints.openai.serving_{'chat' if chat else 'completion'}"
    )
    protocol = importlib.import_module("fastdeploy.entrypoints.openai.protocol")
    body = json.loads(case["request_body"])
    if chat:
        request = protocol.ChatCompletionRequest(**body)
        handler = module.OpenAIServingChat(client, None, 0, "127.0.0.1", -1, None)
    else:
        request = protocol.CompletionRequest(**body)
        handler = module.OpenAIServingCompletion(client, None, 0, "127.0.0.1", -1)
    handler.is_master_ip = True
    request.model = client.derived["model_name"]
    return handler.create_chat_completion if chat else handler.create_completion, request


async def answer(case):
    """Status and chunks of a case; what was left behind."""
    client = EngineClient(case)
    create, request = asked(case, client)
    manager = client.connection_manager
    manager.pull_client = Frames(case["frames"])
    manager.pull_metrics_address = "ipc://none"

    async def dispatch():
        while not manager.request_map:
            await asyncio.sleep(0)
        await manager._dispatch_batch_responses()

    dispatcher = asyncio.create_task(dispatch())
    chunks, raised, status = [], None, 200
    try:
        async with connection_manager():
            made = await create(request)
            if type(made).__name__ == "ErrorResponse":
                status, chunks = 500, [rendered(made.model_dump())]
            elif hasattr(made, "model_dump"):
                chunks = [rendered(made.model_dump())]
        if not chunks:
            async for chunk in made:
                chunks.append(chunk)
    except Exception as error:
        raised, status = (
            f"{type(error).__name__}: {error}",
            status if not isinstance(error, ValueError) else 500,
        )
    finally:
        dispatcher.cancel()
    processor = client.data_processor
    names = ("decode_status", "model_status_dict", "tool_parser_dict")
    left = {name: sorted(getattr(processor, name)) for name in names}
    return status, chunks, raised, {name: ids for name, ids in left.items() if ids}


@contextlib.asynccontextmanager
async def connection_manager():
    """As the application's."""
    yield


def rendered(content):
    """As the application's response class does it."""
    return JSONResponse(content=content).body.decode()


def prepare(case):
    """What a replay freezes."""
    for name in SWITCHES:
        os.environ.pop(name, None)
    os.environ.update(case["server"]["env"])
    processor_of(case["server"])  # before ids are counted: the trial of its parsers draws some
    drawn = [0]

    def draw():
        drawn[0] += 1
        return uuid.UUID(int=0xFDFD * 2**112 + drawn[0])

    uuid.uuid4 = draw


def play(case):
    """None if the answer is the recorded one, else what differs."""
    prepare(case)
    loop = asyncio.new_event_loop()
    try:
        played = asyncio.wait_for(answer(case), PATIENCE)
        status, chunks, raised, left = loop.run_until_complete(played)
    except TimeoutError:
        return "no end"
    finally:
        loop.close()
    expected = case["output"]
    kind = (expected.get("raised") or "").partition(":")[0]
    right = {"raised": kind, "chunks": expected["chunks"], "status": expected["status"]}
    made = {"raised": (raised or "").partition(":")[0], "chunks": chunks, "status": status}
    if kind:  # a server logs it
        right |= {"chunks": [], "status": status}
    else:
        right["left behind"], made["left behind"] = case["after"]["leftovers"], left
    for name, value in right.items():
        if made[name] != value:
            pairs = zip(made[name], value, strict=False) if name == "chunks" else ()
            first = next((two for two in pairs if two[0] != two[1]), (made[name], value))
            return f"{name}: {first[0]!r}, not {first[1]!r}"
    return None


def play_all(folder):
    """How many were played, and what differs, by name."""
    told = {name: play(case) for name, case in cases_here(folder).items() if case["derived"]}  # not refused
    return len(told), {name: difference for name, difference in told.items() if difference}


if __name__ == "__main__":
    if importlib.util.find_spec("fastdeploy.input.base_processor") is None:
        print("told: " + json.dumps({"other": "its data processors are those of 2.5 and before"}))
        sys.exit()

    if "fd_postproc" in os.environ.get("FD_PLUGINS", "") and os.environ.get("FD_POSTPROC_API") != "0":
        from fd_postproc.fastdeploy.api import responses

        responses.install(sys.modules["__main__"])  # this program is the application here
    laned, written = [], lane.Lane._written

    def counted(stream, *of_a_result):
        chunk = written(stream, *of_a_result)
        laned.append(chunk is not None)
        return chunk

    lane.Lane._written = counted
    withheld, marked = [], answers.Answer.marked

    def parts_of(answer, *told):
        parts = marked(answer, *told)
        withheld.append(bool(parts))
        return parts

    answers.Answer.marked = parts_of
    frozen = index()["frozen_time"]
    time.time = lambda: frozen
    traceback.format_exc = lambda *a, **k: "<traceback>"
    if "rollouts" in sys.argv:
        played, wrong = play_all(ROLLOUTS)
        Frames.arrays = "fd_postproc" in os.environ.get("FD_PLUGINS", "")
        more, of_arrays = play_all(ROLLOUTS)
        played, wrong = played + more, wrong | {f"{name}, arrays": said for name, said in of_arrays.items()}
    else:
        played, wrong = play_all(FOLDER)
    told = {"played": played, "wrong": wrong, "left": counters.noted()}
    print("told: " + json.dumps(told | {"laned": sum(laned), "withheld": sum(withheld)}))
