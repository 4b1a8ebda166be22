"""Sets up streams of the double: with the lane, and as FastDeploy has them."""

import asyncio
import importlib

import msgpack
import numpy as np

from fd_postproc.fastdeploy.api.activation import CHAT, COMPLETION
from fd_postproc.fastdeploy.api.chunks._chunks import unpack
from fd_postproc.fastdeploy.api.connections import NoResults, RequestMap, with_inboxes
from fd_postproc.fastdeploy.events.guard import Guard
from tools.accept import virtual_time

APIS = [CHAT, COMPLETION]
NAMES = {CHAT: "chatcmpl-a", COMPLETION: "cmpl-a"}
START = 1000.5
PROMPT = [[1, 2, 1], [7, 3, 5]], [[-0.5, -np.inf, -1e-7], [-0.25, -1.0, np.nan]], [9, 1]


class Connections:
    """FastDeploy's manager of connections."""

    def __init__(self):
        self.request_map = RequestMap({})

    async def get_connection(self, request_id, num_choices=1):
        queue = asyncio.Queue()
        self.request_map[request_id] = queue
        return None, queue

    async def cleanup_request(self, request_id):
        self.request_map.pop(request_id, None)


class LanedConnections(Connections):
    get_connection = with_inboxes(Connections.get_connection, Guard("api connections"))


class Client:
    """FastDeploy's EngineClient: what its generators use of it."""

    ori_vocab_size = 100

    def __init__(self, processor, connections):
        self.data_processor, self.connection_manager = processor, connections
        self.semaphore, self.said, self.is_cleared = self, [], False

    def release(self):
        self.said.append("released")

    async def abort(self, *told):
        self.said.append(("aborted", *told))

    def check_model_weight_status(self):
        return self.is_cleared

    def check_health(self):
        self.said.append("asked for health")
        return True, ""


def result(api, step, ids=(10,), choice=0, finished=False, **more):
    """A result as the engine sends it."""
    outputs = {
        "index": choice, "send_idx": step, "token_ids": [*ids], "decode_type": 0, "logprob": None,
        "top_logprobs": None, "draft_top_logprobs": None, "logprobs": None, "draft_token_ids": [],
        "text": None, "reasoning_content": None, "reasoning_token_num": 0, "sampling_mask": None,
    }  # fmt: skip
    metrics = {
        "inference_start_time": START, "first_token_time": 0.25, "speculate_metrics": None,
        "engine_recv_latest_token_time": START + 0.25 + step / 7,
    }  # fmt: skip
    made = {
        "request_id": f"{NAMES[api]}_{choice}", "prompt": None, "prompt_token_ids": [],
        "prompt_logprobs": None, "output_type": 3, "outputs": outputs, "metrics": metrics,
        "finished": finished, "error_code": 200, "error_msg": None, "trace_carrier": None,
    }  # fmt: skip
    for name, value in more.items():
        place = next((part for part in (outputs, metrics) if name in part), made)
        place[name] = value
    return made


def answer(api, steps=12, **more):
    """An answer's results: one to three words each."""
    words = [range(10, 11 + step % 3) for step in range(steps)]
    return [result(api, step, ids, finished=step == steps - 1, **more) for step, ids in enumerate(words)]


def stream_of(api, processor, is_laned, **options):
    """A client, and a stream of its handler."""
    module = importlib.import_module(api)
    client = Client(processor, (LanedConnections if is_laned else Connections)())
    protocol = importlib.import_module("fastdeploy.entrypoints.openai.protocol")
    if api == CHAT:
        handler = module.OpenAIServingChat(client)
        request = protocol.ChatCompletionRequest(messages=[], **options)
        generator = handler.chat_completion_stream_generator
        if not is_laned:
            generator = vars(module.OpenAIServingChat)["chat_completion_stream_generator"].__wrapped__
            generator = generator.__get__(handler)
        return client, generator(request, NAMES[api], "m", [1, 2], "x", 50)
    handler = module.OpenAIServingCompletion(client)
    request = protocol.CompletionRequest(prompt="x", **options)
    generator = handler.completion_stream_generator
    if not is_laned:
        generator = vars(module.OpenAIServingCompletion)["completion_stream_generator"].__wrapped__
        generator = generator.__get__(handler)
    return client, generator(
        request=request, num_choices=request.n or 1, request_id=NAMES[api], created_time=7, model_name="m",
        prompt_batched_token_ids=[[1, 2]], prompt_tokens_list=["x"], max_tokens_list=[50],
    )  # fmt: skip


async def turns(count=8):
    for _ in range(count):
        await asyncio.sleep(0)


async def played(api, cls, results, is_laned, between=None, reasoning=None, **options):
    """The chunks of a stream, and what its client was told; `between` is called before each result."""
    processor = cls(reasoning, None)
    for choice in range(options.get("n") or 1):
        processor.model_status_dict[f"{NAMES[api]}_{choice}"] = "think_start"
    client, stream = stream_of(api, processor, is_laned, **options)
    client.stream, chunks = stream, []

    async def read():
        async for chunk in stream:
            chunks.append(chunk)

    reading = asyncio.ensure_future(read())
    await turns()
    for number, one in enumerate(results):
        if between is not None:
            await between(number, client, reading)
        queue = client.connection_manager.request_map.get(NAMES[api])
        queue.put_nowait(one if isinstance(one, NoResults) else [one])
        await turns()
    await asyncio.wait([reading])
    assert not client.connection_manager.request_map
    return chunks, client.said, {name: [*map(str, one)] for name, one in processor.decode_status.items()}


def both(api, cls, make, **options):
    """A stream with the lane and without."""
    told = []
    for is_laned in (False, True):
        with virtual_time.Loop() as loop:
            told.append(loop.run_until_complete(played(api, cls, make(), is_laned, **options)))
    return told


def the_same(api, cls, make, **options):
    theirs, ours = both(api, cls, make, **options)
    assert ours == theirs
    return ours


def scored(api, steps=12, odd=None, packed=False, **more):
    """An answer's results with log-probabilities, the sixth with those of `odd`."""
    made = answer(api, steps, **more)
    for step, one in enumerate(made):
        count = len(one["outputs"]["token_ids"])
        ids = [[row, 5, step] for row in range(count)]
        one["outputs"]["top_logprobs"] = [
            ids,
            [[-0.5, -1.5 - row, -2e-7] for row in range(count)],
            [1] * count,
        ]
    if odd is not None:
        made[6]["outputs"]["top_logprobs"] = odd
    return unpack(msgpack.packb(made)) if packed else made


def asked(api):
    return {"logprobs": True, "top_logprobs": 2} if api == CHAT else {"logprobs": 2}


def prompted(api, choices=1, prompt=PROMPT, **more):
    """Results of answers with the log-probabilities of their prompts, in turn."""
    for step in range(8):
        for choice in range(choices):
            arrays = [np.array(one) for one in prompt] if type(prompt) is tuple else prompt
            if step == 0 and type(prompt) is tuple:
                arrays[1] = arrays[1] - choice
            given = {"prompt_logprobs": arrays} if step == 0 else {}
            yield result(api, step, choice=choice, finished=step == 7, **given, **more)
