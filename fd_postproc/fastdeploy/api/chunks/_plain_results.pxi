# Results in which nothing is but what a template of chunks has places for.

cdef frozenset _IN_RESULT = frozenset((
    "request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "output_type", "outputs", "metrics",
    "finished", "num_cached_tokens", "num_input_image_tokens", "num_input_video_tokens", "error_code",
    "error_msg", "ic_req_data", "prompt_token_ids_len", "trace_carrier",
))
cdef frozenset _IN_OUTPUTS = frozenset((
    "index", "send_idx", "token_ids", "decode_type", "logprob", "top_logprobs", "draft_top_logprobs",
    "logprobs", "draft_token_ids", "text", "reasoning_content", "reasoning_token_num", "sampling_mask",
    "completion_tokens", "skipped", "tool_calls",
))


def is_plain(dict result not None):
    """Whether a result is known, key by key, and ends nothing.

    Metrics are read by name, by FastDeploy's generators and here; others of them reach no plain chunk.
    """
    outputs_of, metrics_of = result.get("outputs"), result.get("metrics")
    if type(outputs_of) is not dict or type(metrics_of) is not dict:
        return False
    cdef dict outputs = <dict>outputs_of, metrics = <dict>metrics_of
    for key in result:
        if key not in _IN_RESULT:
            return False
    for key in outputs:
        if key not in _IN_OUTPUTS:
            return False
    token_ids = outputs.get("token_ids")
    return (
        result.get("finished") is False
        and "top_logprobs" in outputs
        and "draft_top_logprobs" in outputs
        and result.get("error_code", 200) == 200
        and not result.get("error_msg")
        and type(token_ids) is list
        and token_ids != []
        and not outputs.get("decode_type")
        and outputs.get("sampling_mask") is None
        and type(outputs.get("reasoning_token_num", 0)) is int
        and type(metrics.get("engine_recv_latest_token_time")) is float
        and metrics.get("speculate_metrics") is None
    )
