"""A stream that a client reads from a real server's socket: the same bytes with the lane and without.

The generator is a stand-in with the names that the lane looks for in FastDeploy's; what it writes is the
restated stream.  ``real_tree/test_lane.py`` has FastDeploy's own.
"""

# The lane takes these names from the generator.
# ruff: noqa: F401, F841

import asyncio
import socket
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api import lane, streaming_response
from fd_postproc.fastdeploy.api.chunks import _chunks
from fd_postproc.fastdeploy.api.connections import RequestMap
from fd_postproc.fastdeploy.api.stream_queue import Queue
from tests.restated.api import streams
from tests.restated.api.models import (
    ChatCompletionResponseStreamChoice,
    CompletionTokenUsageInfo,
    DeltaMessage,
    PromptTokenUsageInfo,
    UsageInfo,
)

uvicorn = pytest.importorskip("uvicorn")
responses = pytest.importorskip("starlette.responses")

NAME, STEPS = "chatcmpl-lane", 12
DERIVED = {
    "request_id": NAME, "model_name": "m", "created": 1, "prompt_token_ids": [[1, 2]],
    "prompt_tokens": ["x"], "max_tokens": [100],
}  # fmt: skip
OPTIONS = {"include_usage": True, "continuous_usage_stats": True}
REQUEST = {
    "logprobs": False, "top_logprobs": 0, "return_token_ids": False, "collect_metrics": False,
    "include_logprobs_decode_token": True, "include_draft_logprobs": False, "stream_options": OPTIONS,
}  # fmt: skip


def result(number, finished=False):
    outputs = {"index": 0, "send_idx": number, "token_ids": [5 + number], "top_logprobs": None}
    metrics = {"inference_start_time": 1.0, "first_token_time": 0.5}
    metrics["engine_recv_latest_token_time"] = 2.0 + number / 8
    return {"request_id": f"{NAME}_0", "finished": finished, "outputs": outputs, "metrics": metrics}


class Processor:
    eos_token_id, _audio_buffer, _is_async_processor = 2, (), False

    def __init__(self):
        self.data_processor = self

    def enable_multimodal_content(self):
        return False

    def process_response_dict(self, response_dict, **_):
        text = f'é "{response_dict["outputs"]["token_ids"][0]}'
        response_dict["outputs"].update(
            text=text, skipped=False, tool_calls=None, reasoning_content="", draft_top_logprobs=None
        )
        return response_dict


async def chat_completion_stream_generator(self, request, request_id):
    stream = streams.ChatStream(REQUEST, DERIVED, 10, streams.Stock(None))
    inference_start_time, tool_called, num_image_tokens = stream.started, stream.called, stream.images
    previous_num_tokens, reasoning_num_tokens = stream.tokens, stream.reasoning
    include_stop_str_in_output, include_continuous_usage = False, stream.continuous
    max_streaming_response_tokens, num_prompt_tokens, num_cached_tokens = 1, 2, 0
    chunk, response_processor = stream.chunk([]), Processor()
    response_queue = self.engine_client.connection_manager.request_map[request_id]
    given = []
    events = stream.events(iter(given.pop, None))
    while True:
        for one in await response_queue.get():
            given.append(response_processor.process_response_dict(one))
            if stream.started[0] == 0:
                yield next(events)
            yield next(events)
            if one["finished"]:
                for event in events:
                    yield event
                return


def wrap_streaming_generator(original_generator):
    async def wrapped_generator():
        span = None
        async for chunk in original_generator:
            yield chunk

    return wrapped_generator


async def told(protocol, response, around=lambda app: app):
    """The bytes of an answer whose results come one by one."""
    requests = RequestMap({NAME: Queue()})
    client = SimpleNamespace(
        connection_manager=SimpleNamespace(request_map=requests), check_model_weight_status=lambda: False
    )
    handler = SimpleNamespace(engine_client=client)

    async def app(scope, receive, send):
        made = chat_completion_stream_generator(handler, SimpleNamespace(**REQUEST), NAME)
        answer = response(wrap_streaming_generator(made)(), media_type="text/event-stream")
        await answer(scope, receive, send)

    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(around(app), http=protocol, log_level="error", lifespan="off", date_header=False)
    server = uvicorn.Server(config)
    served = asyncio.create_task(server.serve(sockets=[bound]))
    reader, writer = None, None
    try:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answer = asyncio.create_task(reader.read())
            while not requests[NAME]._getters:
                await asyncio.sleep(0)
            for number in range(STEPS):
                requests.get(NAME).put_nowait([result(number, number == STEPS - 1)])
                for _ in range(20):
                    await asyncio.sleep(0)
            return await answer
    finally:
        if writer is not None:
            writer.close()
        server.should_exit = True
        await served


@pytest.fixture
def module(monkeypatch):
    """The application's module with our response class in it."""
    monkeypatch.setenv("FD_POSTPROC_LANE", "1")
    made = SimpleNamespace(StreamingResponse=responses.StreamingResponse)
    restore = streaming_response.install(made)
    yield made
    restore()
    _chunks.forget_totals()


@pytest.fixture
def written(monkeypatch):
    """Groups of results that the lane wrote."""
    made, write = [], lane.Lane.write
    monkeypatch.setattr(lane.Lane, "write", lambda self, group: (made.append(group), write(self, group))[1])
    return made


@pytest.mark.parametrize("protocol", ["h11", "httptools"])
def test_the_bytes_on_the_socket_are_the_same(protocol, module, written):
    pytest.importorskip(protocol)
    expected = asyncio.run(told(protocol, responses.StreamingResponse))
    assert expected.count(b"data: {") == STEPS + 2  # one before the first result's, usage
    assert written == []
    assert asyncio.run(told(protocol, module.StreamingResponse)) == expected
    assert len(written) == STEPS - 4  # three results before it is open, and the end


def test_a_function_in_between_leaves_the_stream_in_its_task(module, written):
    def louder(app):
        async def around(scope, receive, send):
            async def upper(message):
                await send(message | {"body": message["body"].upper()} if "body" in message else message)

            await app(scope, receive, upper)

        return around

    expected = asyncio.run(told("h11", responses.StreamingResponse, louder))
    assert b"DATA: {" in expected
    assert asyncio.run(told("h11", module.StreamingResponse, louder)) == expected
    assert written == []
    (reason,) = (reason for reason in _chunks.totals()[1] if reason.startswith(streaming_response.STAYS))
    assert "is between it and the connection" in reason
