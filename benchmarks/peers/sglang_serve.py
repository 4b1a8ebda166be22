"""SGLang's server on a machine without a GPU, with a stand-in scheduler: ``python -m ... OPTIONS``."""

from __future__ import annotations

import sys
from typing import Any

from .stand_in import Request, StandIn


def run_scheduler(server_args: Any, port_args: Any, *arguments: Any, **_: Any) -> None:
    """What SGLang runs in the scheduler's process; it is handed in where SGLang's own server starts."""
    import zmq
    from sglang.srt.managers import io_struct
    from sglang.srt.runtime_context import publish
    from sglang.srt.utils.network import get_zmq_socket

    publish(server_args, role="scheduler")
    context, engine = zmq.Context(), StandIn()
    inputs = get_zmq_socket(context, zmq.PULL, port_args.scheduler_input_ipc_name, False)
    outputs = get_zmq_socket(context, zmq.PUSH, port_args.detokenizer_ipc_name, False)
    writer = next(one for one in arguments if hasattr(one, "send"))
    writer.send(
        {"status": "ready", "max_total_num_tokens": 1 << 20, "max_req_input_len": 30_000, "startup_time": 0}
    )
    while True:
        if inputs.poll(engine.wait):
            message = io_struct.sock_recv(inputs)
            for one in getattr(message, "batch", None) or [message]:
                _take(engine, one)
        if engine.is_due() and engine.requests:
            io_struct.sock_send(outputs, _step(engine))


def _take(engine: StandIn, message: Any) -> None:
    """A new request, or one that is gone."""
    from sglang.srt.managers import io_struct

    if isinstance(message, io_struct.TokenizedGenerateReqInput):
        top = message.top_logprobs_num if message.return_logprob else None
        engine.requests[message.rid] = Request(top, message.sampling_params.max_new_tokens)
    elif isinstance(message, io_struct.AbortReq):
        engine.requests.pop(message.rid, None)


def _step(engine: StandIn) -> Any:
    """A step as the scheduler's message."""
    from sglang.srt.managers.io_struct import BatchTokenIDOutput

    from .of_sglang import message_of

    steps = [*engine.step()]
    tables = [(engine.columns[one.top or 0], one, rows) for _, one, rows, _ in steps]
    sampled = [ids[rows, 0].tolist() for (ids, _, _), _, rows in tables]
    fields: dict[str, Any] = {
        "finished_reasons": [
            {"type": "length", "length": one.position} if ends else None for _, one, _, ends in steps
        ]
    }
    if any(one.top is not None for _, one, _ in tables):
        fields |= {
            "output_token_logprobs_val": [scores[rows, 0].tolist() for (_, scores, _), _, rows in tables],
            "output_token_logprobs_idx": sampled,
        }
    if any(one.top for _, one, _ in tables):
        fields |= {
            "output_top_logprobs_val": [scores[rows, 1:].tolist() for (_, scores, _), _, rows in tables],
            "output_top_logprobs_idx": [ids[rows, 1:].tolist() for (ids, _, _), _, rows in tables],
        }
    return BatchTokenIDOutput(rids=[name for name, *_ in steps], **message_of(sampled) | fields)


def main() -> None:
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    launch_server(prepare_server_args(sys.argv[1:]), run_scheduler_process_func=run_scheduler)


if __name__ == "__main__":
    main()
