"""vLLM's output processor, with its detokenizer and log-probabilities, as its API server uses it.

Deltas, the ``tokenizers`` library's own incremental decoding, log-probabilities as dictionaries or flat.
With "its msgpack" the engine core's message is packed and unpacked as well, as between vLLM's two processes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from .clock import Contender
from .load import Answer, Load, Message, Model

UNUSED = ("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank")
PACKAGES = ("vllm", "torch", "transformers", "tokenizers", "msgspec", "numpy")


def load_engine() -> None:
    """Import what the contenders need, once for all of them."""
    importlib.import_module("vllm.tokenizers")
    importlib.import_module("vllm.v1.engine.output_processor")


def contenders(load: Load, model: Model) -> dict[str, Callable[[], Contender]]:
    found = {"vLLM": partial(make, load, model)}
    if load.top is not None:
        found["vLLM, FlatLogprobs"] = partial(make, load, model, flat=True)
    if load.texts:
        found["vLLM, and its msgpack"] = partial(make, load, model, packed=True)
    return found


def make(load: Load, model: Model, flat: bool = False, packed: bool = False) -> Contender:
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.tokenizers import get_tokenizer
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.outputs import LogprobsLists
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    names = [f"chatcmpl-{n:032x}" for n in range(load.streams)]
    parameters = SamplingParams(
        max_tokens=30_000, logprobs=load.top, detokenize=load.texts, flat_logprobs=flat,
        output_kind=RequestOutputKind.DELTA,
    )  # fmt: skip
    processor = OutputProcessor(get_tokenizer(str(model.folder)), log_stats=False)
    encoder, decoder = MsgpackEncoder(), MsgpackDecoder(EngineCoreOutputs)

    def begin() -> None:
        processor.abort_requests(names, internal=True)
        for name in names:
            request = EngineCoreRequest(
                request_id=name, external_req_id=name, prompt_token_ids=[*model.usable[:20]],
                sampling_params=parameters, arrival_time=0.0, **dict.fromkeys(UNUSED),
            )  # fmt: skip
            processor.add_request(request, None)

    def prepare(message: Message) -> Any:
        message = message._replace(ids=message.ids.astype("int32"))  # as its sampler makes them
        sampled = message.ids[:, 0].reshape(load.streams, load.accepted).tolist()
        rows = [slice(n * load.accepted, (n + 1) * load.accepted) for n in range(load.streams)]
        outputs = [EngineCoreOutput(name, ids) for name, ids in zip(names, sampled, strict=True)]
        if load.top is not None:
            for output, some in zip(outputs, rows, strict=True):
                output.new_logprobs = LogprobsLists(*(part[some] for part in message), None)
        return EngineCoreOutputs(outputs=outputs)

    def step(outputs: Any) -> Any:
        if packed:
            outputs = decoder.decode(encoder.encode(outputs))
        return processor.process_outputs(outputs.outputs, outputs.timestamp, None).request_outputs

    def answers(results: list[Any]) -> list[Answer]:
        return [_answer(result.outputs[0], load) for result in results]

    return Contender(prepare, begin, step, answers)


def _answer(output: Any, load: Load) -> Answer:
    logprobs = None
    if load.top is not None:
        logprobs = [[(token, one.logprob) for token, one in row.items()] for row in output.logprobs]
    return Answer(list(output.token_ids), output.text if load.texts else None, logprobs)
