"""Chunks that are written to their connections by the dispatcher, past the tasks of their streams.

A stream's generator waits at its queue, all of its chunks before are written, and the next result asks for
nothing but one more chunk: then the chunk is made where the result arrives, by the same calls that the
generator would make, and goes to the connection's transport at once.  No future is set, and no task runs.
The generator goes on waiting.  What it counts are lists in its frame, and they are kept up to date, so at
any time it can take over: it gets every result that is not ordinary.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ...environment import LANE, is_on
from .chunks._chunks import OUTPUT_KEYS, RESULT_KEYS, SteadyStream, set_steady
from .chunks.model_fields import NotPlain
from .connections import NoResults, RequestMap
from .http_response import framed
from .steady import steady_of

SILENT_S = 9.0
"""Seconds of silence after which FastDeploy's generator gets the next result: it counts waits of 10."""


class Lane:
    """The way of one stream's chunks past its task; the dispatcher's queue for it.

    Parameters
    ----------
    cycle : RequestResponseCycle
        uvicorn's, of the response.
    generator : async generator
        FastDeploy's, suspended where it has given its first chunk.
    """

    code = ""
    """Name of the generator's code."""

    def __init__(self, cycle: Any, generator: Any) -> None:
        self.cycle, self.flow, self.generator = cycle, cycle.flow, generator
        frame = generator.ag_frame
        values = frame.f_locals
        self.names = frame.f_globals
        self.index_of = self.names.get("get_choice_index", _behind_the_last_line)
        self.handler, self.request = values["self"], values["request"]
        self.client = self.handler.engine_client
        self.requests = self.client.connection_manager.request_map
        if type(self.requests) is not RequestMap:
            raise NotPlain("results come another way")
        self.queue, self.request_id = values["response_queue"], values["request_id"]
        self.items, self.waiters = self.queue._queue, self.queue._getters
        self.starts, self.tool_called = values["inference_start_time"], values["tool_called"]
        self.image_tokens = values["num_image_tokens"]
        self.choices_left = len(self.starts)
        self.is_single = is_on(LANE) and values["max_streaming_response_tokens"] == 1
        self.is_open = self.is_ending = False
        self.trial: Any = None  # the result of the next chunk, while none has been compared
        self.waiter: Any = None  # the future at which the generator waits since its last result
        self.given = 0.0  # the loop's time when it got that
        self.time = asyncio.get_running_loop().time
        self.pending: list[bytes] = []
        self.steady: SteadyStream | None = None
        self.steady_id = ""  # of its results, while they are written from the engine's message
        self.begin(values)
        self.columns = self.client.ori_vocab_size if self.asked == -1 else self.asked

    processor: Any
    counts: Any
    reasoning: Any
    with_usage, end_of_audio, prompt = False, None, 0
    audio: Any = ()

    asked: Any = None  # columns of log-probabilities; None where a chunk shows none

    def begin(self, values: Any) -> None:
        """Take from the generator's frame what its kind of answer needs."""

    def opened(self, values: Any) -> None:
        """Take from it what the first results have set."""

    def open(self, result: Any, chunk: str) -> None:
        """Begin to write: FastDeploy's chunk was ours."""
        self.is_open = self.is_single
        stream = steady_of(self, result, chunk) if self.is_open else None
        if stream is not None:
            self.steady, self.steady_id = stream, result["request_id"]
            set_steady(self.steady_id, stream)

    def stop(self) -> None:
        """Write no more."""
        self.is_open = False
        self.vary()

    def vary(self) -> None:
        """Write no more from the engine's message: something changes that every chunk has."""
        if self.steady_id:
            self.release()
            set_steady(self.steady_id, None)
            self.steady, self.steady_id = None, ""

    def release(self) -> None:
        """Make a chunk of tokens that wait for others, and leave the rest to the stream's task."""
        if self.steady is not None:
            self.steady.leave()

    def put_nowait(self, group: Any) -> None:
        """Write a group of results, or put it into the queue."""
        self.release()
        if self.takes(group):
            if self.is_open:
                return self.write(group)
            self.trial = group[0] if len(group) == 1 else None
        else:
            self.trial = None
        self.flush()
        self.waiter, self.given = None, self.time()
        self.queue.put_nowait(group)
        return None

    def takes(self, group: Any) -> bool:
        """Whether the generator waits for a group, and each of its results is one more chunk."""
        try:
            for result in group:
                if result["finished"]:
                    self.choices_left -= 1
                    self.is_ending = self.choices_left <= 0
                elif result.get("error_code", 200) != 200:
                    self.is_ending = True
            if not self.is_single or not self.waiters or self.items:
                return False
            waiter = self.waiters[0]
            if self.waiter is not waiter:
                if self.waiter is not None or self.time() - self.given > SILENT_S or waiter.done():
                    return False  # it counts the silence, and begins again with a result
                self.waiter = waiter
            return (
                not waiter.done()
                and not self.cycle.disconnected
                and not self.flow.write_paused
                and not self.client.check_model_weight_status()
                and all(map(self.is_ordinary, group))
            )
        except Exception:
            return False  # something that only the generator can answer

    def is_ordinary(self, result: Any) -> bool:
        """Whether a result is one more chunk, and nothing else."""
        if type(result) is not dict or not result.keys() <= RESULT_KEYS.keys():
            return False
        outputs = result["outputs"]
        return (
            type(outputs) is dict
            and outputs.keys() <= OUTPUT_KEYS.keys()
            and not result["finished"]
            and result.get("error_code", 200) == 200
            and not outputs.get("decode_type")
            and outputs.get("send_idx") != 0
            and outputs.get("sampling_mask") is None
            and bool(outputs["token_ids"])
            and self.starts[self.index_of(result["request_id"])] != 0
        )

    def write(self, group: Any) -> None:
        """Write a group's chunks, as the generator would; what it would raise is raised there."""
        for result in group:
            try:
                text = self.advanced(result)
                body = None if text is None else framed(text.encode())
            except Exception as error:
                self.flush()
                self.stop()
                self.is_ending, self.waiter = True, None
                self.queue.put_nowait(NoResults(error))
                return
            if body is not None:
                self.pending.append(body)
        if self.pending:
            self.requests.write(self)

    def flush(self) -> None:
        """Write what is pending to the connection."""
        if self.pending:
            if not self.cycle.disconnected:
                self.cycle.transport.write(b"".join(self.pending))
            self.pending.clear()

    def close(self) -> None:
        """Leave the stream to its task, which has ended: nothing of ours may keep its generator."""
        if self.requests.lanes.get(self.request_id) is self:
            del self.requests.lanes[self.request_id]
        self.stop()
        self.is_single = False
        self.generator = self.trial = None

    def advanced(self, result: Any) -> str | None:
        """Process a result, count it, and make its chunk."""
        result = self.processed(result)
        index, output = self.index_of(result["request_id"]), result["outputs"]
        images, thoughts = output.get("num_image_tokens"), output.get("reasoning_token_num", 0)
        self.counts[index] += len(output["token_ids"]) + (images or 0)
        if images:
            self.image_tokens[index] += images
        self.reasoning[index] += thoughts
        if images or thoughts:
            self.vary()
        if output["tool_calls"] is not None:
            self.tool_called[index] = True
        return self.chunk(result)

    def processed(self, result: Any) -> Any:
        """A result with its text."""
        raise NotImplementedError

    def builder(self) -> Any:
        """From packed log-probabilities to what a chunk shows of them; None where it shows none."""
        raise NotImplementedError

    def shown(self, top: Any) -> Any:
        """What a chunk shows of log-probabilities."""
        raise NotImplementedError

    def logprobs_of(self, output: Any) -> tuple[Any, Any]:
        """What a chunk shows of a result's log-probabilities, and of its draft's."""
        if self.asked is None or output["top_logprobs"] is None:
            return None, None
        drafts = output["draft_top_logprobs"] if self.request.include_draft_logprobs else None
        return self.shown(output["top_logprobs"]), None if drafts is None else self.shown(drafts)

    def chunk(self, result: Any) -> str | None:
        """The chunk of a processed result; None where it is skipped."""
        raise NotImplementedError


def _behind_the_last_line(name: str) -> int:
    """The choice that a result's id tells, where FastDeploy has no function for it."""
    return int(name.rpartition("_")[2])
