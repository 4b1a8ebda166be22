"""FastDeploy's save ops, one line each: everything else about an op follows from this table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..core.layout import Channel


@dataclass(frozen=True)
class OpSpec:
    """A save op of FastDeploy's newest builds."""

    channel: Channel  # the channel on which it sends
    parameters: tuple[str, ...]  # its positional arguments, in order
    roles: dict[str, str]  # the argument for each role (`fd_postproc.core.tensors.ROLES`) that it has
    every_rank: bool = False  # whether save_each_rank lets ranks above 0 send, in all builds
    # whether there are calls without preempted_idx: for draft logprobs, where FastDeploy's own op raises
    has_shorter_form: bool = False

    @property
    def batch(self) -> int:
        """Place of the argument that has a row for each request."""
        return self.place(self.roles["counts" if "offsets" in self.roles else "tokens"])

    def place(self, parameter: str) -> int:
        """Place of an argument among the positional ones; -1 if the op does not have it."""
        return self.parameters.index(parameter) if parameter in self.parameters else -1

    @cached_property
    def tensors(self) -> tuple[tuple[str, str, int], ...]:
        """Role, name and place of each tensor that a message is made of."""
        return tuple((role, name, self.place(name)) for role, name in self.roles.items())

    @cached_property
    def words(self) -> tuple[int, ...]:
        """Places of the rank, whether each rank sends, the stop flag, the message's flag, the skipping."""
        skip = max(self.place("skip_prefill"), self.place("skip_chunk_prefill"))
        places = map(self.place, ("rank_id", "save_each_rank", "not_need_stop", "message_flag"))
        return *places, skip


def _op(channel: Channel, parameters: str, roles: dict[str, str], **more: bool) -> OpSpec:
    return OpSpec(channel, tuple(parameters.split()), roles, **more)


_ROWS = "seq_lens_decoder prompt_lens preempted_idx"
_WITH_LOGPROBS = (
    "sampled_token_ids logprob_token_ids logprob_scores logprob_ranks token_num_per_batch "
    f"cu_batch_token_offset not_need_stop {_ROWS} message_flag rank_id save_each_rank"
)
_LOGPROB_ROLES = {
    "tokens": "sampled_token_ids",
    "ids": "logprob_token_ids",
    "scores": "logprob_scores",
    "ranks": "logprob_ranks",
    "counts": "token_num_per_batch",
    "offsets": "cu_batch_token_offset",
    "decoded": "seq_lens_decoder",
    "prompts": "prompt_lens",
    "preempted": "preempted_idx",
}

SAVE_OPS = {
    "save_output": _op(
        "plain",
        "x not_need_stop preempted_idx rank_id save_each_rank",
        {"tokens": "x", "preempted": "preempted_idx"},
    ),
    "save_output_topk": _op(
        "topk",
        "x topk_ids logprob_scores ranks not_need_stop preempted_idx rank_id",
        {
            "tokens": "x",
            "ids": "topk_ids",
            "scores": "logprob_scores",
            "ranks": "ranks",
            "preempted": "preempted_idx",
        },
    ),
    "speculate_save_output": _op(
        "spec",
        f"accept_tokens accept_num not_need_stop {_ROWS} rank_id save_each_rank skip_prefill",
        {
            "tokens": "accept_tokens",
            "counts": "accept_num",
            "decoded": "seq_lens_decoder",
            "prompts": "prompt_lens",
            "preempted": "preempted_idx",
        },
    ),
    "mtp_save_first_token": _op(
        "spec",
        "x not_need_stop seq_lens_decoder prompt_lens step_idx rank_id save_each_rank skip_chunk_prefill",
        {"tokens": "x", "decoded": "seq_lens_decoder", "prompts": "prompt_lens", "steps": "step_idx"},
        every_rank=True,
    ),
    "speculate_save_output_topk": _op("spec_topk", _WITH_LOGPROBS, _LOGPROB_ROLES, has_shorter_form=True),
    "mtp_save_first_token_with_topk": _op("spec_topk", _WITH_LOGPROBS, _LOGPROB_ROLES, every_rank=True),
}
"""Ops by name.  `fd_postproc._core` numbers them as ``enum fdp_op`` does."""
