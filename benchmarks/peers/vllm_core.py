"""A stand-in for vLLM's engine core: made-up tokens in vLLM's own messages, over its own sockets.

It speaks what ``vllm.v1.engine`` publishes: HELLO, addresses and READY on the handshake's socket; requests on
one socket for each front end, steps on another, as msgpack of `EngineCoreOutputs`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from .stand_in import Request, StandIn


def run_engine_core(*, vllm_config: Any, handshake_address: str, **_: Any) -> None:
    """What vLLM runs in the engine core's process."""
    import msgspec
    import zmq
    from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType
    from vllm.v1.engine.utils import EngineHandshakeMetadata
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    engine, name = StandIn(), (0).to_bytes(2, "little")
    context, packb = zmq.Context(), msgspec.msgpack.encode
    greeting = _connect(context, zmq.DEALER, handshake_address, name)
    greeting.send(packb({"status": "HELLO", "local": True, "headless": False}))
    told = msgspec.msgpack.decode(greeting.recv(), type=EngineHandshakeMetadata).addresses
    inputs = [_connect(context, zmq.DEALER, address, name) for address in told.inputs]
    outputs = [_connect(context, zmq.PUSH, address) for address in told.outputs]
    poller = zmq.Poller()
    for one in inputs:
        one.send(packb(_ready(vllm_config)))
        poller.register(one, zmq.POLLIN)
    greeting.send(packb({"status": "READY", "local": True, "headless": False}))
    encoder, requests, others = MsgpackEncoder(), MsgpackDecoder(EngineCoreRequest), MsgpackDecoder()
    while True:
        for one, _ in poller.poll(engine.wait):
            kind, *frames = one.recv_multipart()
            if kind == EngineCoreRequestType.ADD.value:
                new = requests.decode(frames)
                asked = new.sampling_params
                engine.requests[new.request_id] = Request(asked.logprobs, asked.max_tokens, new.client_index)
            elif kind == EngineCoreRequestType.ABORT.value:
                for gone in others.decode(frames):
                    engine.requests.pop(gone, None)
            elif kind == EngineCoreRequestType.UTILITY.value:
                client, call, method, _ = others.decode(frames)
                outputs[client].send_multipart(encoder.encode(_utility(call, method)))
        if engine.is_due():
            for client, some in _step(engine).items():
                made = EngineCoreOutputs(outputs=some, timestamp=time.monotonic())
                outputs[client].send_multipart(encoder.encode(made))


def _step(engine: StandIn) -> dict[int, list[Any]]:
    """A step's outputs, by front end."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason
    from vllm.v1.outputs import LogprobsLists

    made: dict[int, list[Any]] = defaultdict(list)
    for name, request, rows, ends in engine.step():
        ids, scores, ranks = engine.columns[request.top or 0]
        output = EngineCoreOutput(name, ids[rows, 0].tolist())
        if request.top is not None:
            output.new_logprobs = LogprobsLists(ids[rows], scores[rows], ranks[rows], None)
        if ends:
            output.finish_reason = FinishReason.LENGTH
        made[request.whose].append(output)
    return made


def _ready(config: Any) -> Any:
    """What a front end is told of the engine."""
    from vllm.v1.engine import EngineCoreReadyResponse
    from vllm.version import __version__

    scheduler = config.scheduler_config
    return EngineCoreReadyResponse(
        max_model_len=config.model_config.max_model_len, num_gpu_blocks=10_000, block_size=16,
        dp_stats_address=None, dtype="bfloat16", vllm_version=__version__, world_size=1,
        data_parallel_size=1, tensor_parallel_size=1, pipeline_parallel_size=1,
        decode_context_parallel_size=1, data_parallel_rank=0, max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens, instance_id=config.instance_id,
        supports_lora=False, max_loras=0,
    )  # fmt: skip


def _utility(call: int, method: str) -> Any:
    from vllm.v1.engine import EngineCoreOutputs, UtilityOutput
    from vllm.v1.serial_utils import UtilityResult

    value = ("generate",) if method == "get_supported_tasks" else None
    return EngineCoreOutputs(utility_output=UtilityOutput(call, result=UtilityResult(value)))


def _connect(context: Any, kind: int, address: str, name: bytes | None = None) -> Any:
    socket = context.socket(kind)
    socket.set_hwm(0)
    if name is not None:
        socket.identity = name
    socket.connect(address)
    return socket
