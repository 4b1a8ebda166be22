"""SGLang's detokenizer and tokenizer manager: the scheduler's message to results of requests.

The managers are SGLang's classes without their sockets; ``--incremental-streaming-output`` is on.  With "its
msgpack" both messages are packed and unpacked as well: scheduler to detokenizer to tokenizer manager.
"""

from __future__ import annotations

import asyncio
import importlib
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from .clock import Contender
from .load import Answer, Load, Message, Model

PACKAGES = ("sglang", "torch", "transformers", "tokenizers", "msgspec", "numpy")


def load_engine() -> None:
    """Import what the contenders need, once for all of them."""
    for name in ("detokenizer_manager", "tokenizer_manager"):
        importlib.import_module(f"sglang.srt.managers.{name}")


def contenders(load: Load, model: Model) -> dict[str, Callable[[], Contender]]:
    found = {"SGLang": partial(make, load, model)}
    if load.texts:
        found["SGLang, and its msgpack"] = partial(make, load, model, packed=True)
    return found


def managers(load: Load, model: Model) -> tuple[Any, Any]:
    """A detokenizer and a tokenizer manager that have no sockets and no server."""
    from sglang.srt.managers.detokenizer_manager import DetokenizerManager
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(
        model_path=str(model.folder), device="cpu", skip_tokenizer_init=not load.texts,
        incremental_streaming_output=True,
    )  # fmt: skip
    publish(arguments, role="detokenizer")
    detokenizer = object.__new__(DetokenizerManager)
    detokenizer.init_tokenizer(arguments)
    detokenizer.init_running_status(arguments)
    tokenizer = object.__new__(TokenizerManager)
    tokenizer.__dict__ |= {
        "rid_to_state": {}, "tokenizer": detokenizer.tokenizer, "skip_tokenizer_init": not load.texts,
        "enable_metrics": False, "incremental_streaming_output": True, "dump_requests_folder": "",
        "crash_dump_folder": "", "weight_version": "default", "server_args": arguments,
    }  # fmt: skip
    return detokenizer, tokenizer


def make(load: Load, model: Model, packed: bool = False) -> Contender:
    from sglang.srt.managers import io_struct
    from sglang.srt.managers.tokenizer_manager import ReqState
    from sglang.srt.observability.req_time_stats import APIServerReqTimeStats

    detokenizer, tokenizer = managers(load, model)
    names = [f"{n:032x}" for n in range(load.streams)]
    loop = asyncio.new_event_loop()
    states: list[Any] = []

    def begin() -> None:
        detokenizer.decode_status.clear()
        tokenizer.rid_to_state.clear()
        states.clear()
        for name in names:
            asked = io_struct.GenerateReqInput(
                rid=name, text="", stream=True, return_logprob=load.top is not None,
                top_logprobs_num=load.top or 0, return_text_in_logprobs=load.texts,
            )  # fmt: skip
            state = ReqState([], False, asyncio.Event(), asked, APIServerReqTimeStats())
            tokenizer.rid_to_state[name] = state
            states.append(state)

    def prepare(message: Message) -> Any:
        sampled = message.ids[:, 0].reshape(load.streams, load.accepted).tolist()
        return io_struct.BatchTokenIDOutput(rids=names, **_fields(load, message, sampled))

    def through(message: Any) -> Any:
        return io_struct.msgpack_decode(io_struct.msgpack_encode(message)) if packed else message

    def step(message: Any) -> list[Any]:
        if load.texts:
            message = detokenizer.handle_batch_token_id_out(through(message))
        loop.run_until_complete(tokenizer._handle_batch_output(through(message)))
        return [state.out_list.pop() for state in states]

    def answers(results: list[Any]) -> list[Answer]:
        return [_answer(result, load) for result in results]

    return Contender(prepare, begin, step, answers)


def message_of(sampled: list[list[int]]) -> dict[str, Any]:
    """Of the scheduler's message, a list with an item for each request; what is not asked for is None."""
    from sglang.srt.managers.io_struct import BatchTokenIDOutput

    count, tokens = len(sampled), [array("q", ids) for ids in sampled]
    counts = ("prompt_tokens", "reasoning_tokens", "completion_tokens", "cached_tokens")
    return {
        **{name: None for name in BatchTokenIDOutput.__struct_fields__ if name != "rids"},
        **{name: [20] * count for name in counts},
        "finished_reasons": [None] * count, "decoded_texts": [""] * count, "read_offsets": [0] * count,
        "decode_ids": tokens, "output_ids": tokens, "skip_special_tokens": [True] * count,
        "spaces_between_special_tokens": [True] * count, "no_stop_trim": [False] * count,
        "retraction_counts": [0] * count,
    }  # fmt: skip


def _fields(load: Load, message: Message, sampled: list[list[int]]) -> dict[str, Any]:
    """Of the message of a load's step."""
    slots, fields = (load.streams, load.accepted), message_of(sampled)
    if load.top is not None:
        fields |= {
            "output_token_logprobs_val": message.scores[:, 0].reshape(slots).tolist(),
            "output_token_logprobs_idx": sampled,
        }
    if load.top:
        fields |= {
            "output_top_logprobs_val": message.scores[:, 1:].reshape(*slots, -1).tolist(),
            "output_top_logprobs_idx": message.ids[:, 1:].reshape(*slots, -1).tolist(),
        }
    return fields


def _answer(result: dict[str, Any], load: Load) -> Answer:
    logprobs, meta = None, result["meta_info"]
    if load.top is not None:
        tops = meta["output_top_logprobs"] if load.top else [[]] * load.accepted
        logprobs = [
            [(token, score) for score, token, _ in [sampled, *others]]
            for sampled, others in zip(meta["output_token_logprobs"], tops, strict=True)
        ]
    return Answer(list(result["output_ids"]), result["text"] if load.texts else None, logprobs)
