"""From the receive op's tensors to Python values, one method for each channel; and the draft messages."""

from __future__ import annotations

from typing import Any, NamedTuple

from .state import State

TARGET, DRAFT = 3, 4  # message types


class Received(NamedTuple):
    """A decoded message."""

    mtype: int
    batch: Any  # an int, or a Paddle scalar where upstream keeps one
    counts: Any = None  # accepted tokens or codes by slot; speculative channels only
    tokens: Any = None
    scores: Any = None
    ranks: Any = None


class MessagesMixin(State):
    """Decoding.  The element offsets are those of the tensors that the get ops fill."""

    def _decode(self) -> Received:
        if self.cfg.speculative_config.method:
            return self._decode_spec_topk() if self.use_logprobs else self._decode_spec()
        return self._decode_topk() if self.use_logprobs else self._decode_plain()

    def _decode_plain(self) -> Received:
        cells = self.output_tokens.numpy()
        batch = self.output_tokens[1, 0]
        return Received(TARGET, batch, tokens=cells[2 : batch + 2])

    def _decode_topk(self) -> Received:
        cells = self.output_tokens.numpy()
        batch, columns = self._topk_header()
        used, shape = batch * columns, [batch, columns]
        ids = cells[2 : used + 2].reshape(shape)
        scores = self.output_scores[:used].numpy().reshape(shape)
        ranks = self.output_ranks[:batch].numpy()
        return Received(TARGET, batch, None, ids.tolist(), scores.tolist(), ranks.tolist())

    def _topk_header(self) -> tuple[int, int]:
        """Slots and logprob columns."""
        header = int(self.output_tokens[1, 0])
        return header & 0xFFFF, header >> 16 & 0xFFFF

    def _spec_topk_header(self) -> tuple[int, int]:
        """The type of the message and its logprob columns."""
        header = int(self.output_tokens[1, 0].item())
        return header & 0xFF, header >> 8

    def _decode_spec(self) -> Received:
        cells = self.output_tokens.numpy()
        batch = self.output_tokens[1]
        return Received(TARGET, batch, cells[2 : batch + 2], cells)

    def _decode_spec_topk(self) -> Received:
        """A target as nested lists of all six positions of every slot; a draft as arrays."""
        fd = self.fd
        cells = self.output_tokens.numpy()
        mtype, columns = self._spec_topk_header()
        batch = self.output_tokens[2, 0]
        counts = self._counts_one_by_one(batch)

        first, shape = 3 + fd.MAX_BSZ, [batch, fd.MAX_DRAFT_TOKENS, fd.K + 1]
        used = batch * fd.MAX_DRAFT_TOKENS * (fd.K + 1)
        ids = cells[first : first + used].reshape(shape)[:, :, :columns]
        scores = self.output_scores[:used].numpy().reshape(shape)[:, :, :columns]
        ranks = self.output_ranks[: batch * fd.MAX_DRAFT_TOKENS].numpy().reshape(shape[:2])
        if mtype != DRAFT:
            ids, scores, ranks = ids.tolist(), scores.tolist(), ranks.tolist()
        return Received(mtype, batch, counts, ids, scores, ranks)

    def _counts_one_by_one(self, batch: Any) -> list[int]:
        """Iterates a Paddle tensor, two tensor operations an element, as upstream."""
        cells = self.output_tokens[3 : 3 + batch]
        return [int(cell[0]) for cell in cells]

    def _process_batch_draft_tokens(
        self, mtype: int, batch: Any, accept_num: Any, tokens: Any, scores: Any, ranks: Any
    ) -> list[Any]:
        """One result for each slot that is not stopped; one without a task raises, as upstream."""
        fd = self.fd
        results = []
        for slot in range(batch):
            if self.resource_manager.stop_flags[slot]:
                continue
            outputs = fd.CompletionOutput(index=slot, send_idx=None, token_ids=[], draft_token_ids=[])
            results.append(
                fd.RequestOutput(
                    request_id=self.resource_manager.tasks_list[slot].request_id,
                    output_type=mtype,
                    outputs=outputs,
                    finished=False,
                    metrics=None,
                )
            )
            ids, own_scores, own_ranks = tokens[slot].tolist(), scores[slot].tolist(), ranks[slot].tolist()
            accepted = [row[0] for row in ids[: accept_num[slot]]]
            for position in range(len(accepted)):
                row = own_scores[position]
                outputs.logprob = row[0]
                outputs.draft_top_logprobs = append_row(
                    fd, outputs.draft_top_logprobs, ids[position], row, own_ranks[position]
                )
        return results


def append_row(fd: Any, logprobs: Any, ids: list[int], scores: list[float], rank: int) -> Any:
    """`logprobs` with one more row; a new one if it is None."""
    if logprobs is None:
        return fd.LogprobsLists(logprob_token_ids=[ids], logprobs=[scores], sampled_token_ranks=[rank])
    logprobs.logprob_token_ids.append(ids)
    logprobs.logprobs.append(scores)
    logprobs.sampled_token_ranks.append(rank)
    return logprobs
