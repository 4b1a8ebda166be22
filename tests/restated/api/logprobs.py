"""Log-probabilities of a result, as FastDeploy makes models of them: an object for each candidate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from .models import CompletionLogprobs, Logprob, LogProbEntry, LogProbs

REPLACEMENT = "\ufffd"
Say = Callable[[int], str]


def in_bytes(text: str) -> str:
    """How a text that is no UTF-8 is shown."""
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text.encode(errors="replace"))


def absent(top: Any) -> bool:
    """Whether a result's log-probabilities are passed over."""
    return top is None or len(top) < 3 or any(not part for part in top)


class Steps:
    """Makes the log-probabilities of results.

    Parameters
    ----------
    decode : callable
        The text of a token id.
    raw : callable
        The token itself, as the vocabulary has it.
    bare : callable
        The text of an id that is handed over bare, as prompts' are.
    """

    def __init__(self, decode: Say, raw: Say, bare: Say) -> None:
        self.decode, self.raw, self.bare = decode, raw, bare

    def chat(self, top: Any, columns: int | None, texts: bool = True) -> LogProbs | None:
        """An entry a row."""
        return self._rows(top, columns, lambda ids, scores: self._chat_row(ids, scores, texts), ("content",))

    def completion(self, top: Any, columns: int | None) -> CompletionLogprobs | None:
        """Tokens, scores and maps."""
        return self._rows(top, columns, self._completion_row, ("tokens", "token_logprobs", "top_logprobs"))

    def _rows(self, top: Any, columns: int | None, make: Callable[..., Any], lists: tuple[str, ...]) -> Any:
        """The rows in one; a row that fails is none, and one after others an error."""
        made = None
        if absent(top):
            return None
        for ids, scores, _ in zip(*top, strict=False):
            try:
                asked = columns is not None and columns >= 0
                row = make(ids[: columns + 1], scores[: columns + 1]) if asked else None  # type: ignore[operator]
            except Exception:
                row = None
            if made is None:
                made = row
            else:
                for name in lists:
                    getattr(made, name).extend(getattr(row, name))
        return made

    def _chat_row(self, ids: Any, scores: Any, texts: bool) -> LogProbs:
        entries = []
        for token, score in zip(ids, scores, strict=False):
            text = self.decode(token) if texts else ""
            shown = in_bytes(text) if REPLACEMENT in text else text
            entries.append(
                LogProbEntry(token=shown, logprob=score, bytes=list(text.encode(errors="replace")))
            )
        first = entries[0]
        sampled = LogProbEntry(
            token=first.token, logprob=first.logprob, bytes=first.bytes, top_logprobs=entries[1:]
        )
        return LogProbs(content=[sampled])

    def _completion_row(self, ids: Any, scores: Any) -> CompletionLogprobs:
        pairs = []
        for token, score in zip(ids, scores, strict=False):
            text = self.decode(token)
            pairs.append((in_bytes(self.raw(token)) if REPLACEMENT in text else text, score))
        return CompletionLogprobs(
            tokens=[text for text, _ in pairs[:1]],
            token_logprobs=[score for _, score in pairs[:1]],
            top_logprobs=[dict(pairs)],
        )

    def prompt(self, tensors: Any, columns: int, texts: bool) -> list[dict[int, Logprob] | None]:
        """A map for each token of the prompt, after a first that is none."""
        made: list[dict[int, Logprob] | None] = [None]
        ids, scores, ranks = (one if type(one) is list else one.tolist() for one in tensors)
        for row, (row_ids, row_scores) in enumerate(zip(ids, scores, strict=False)):
            wanted = len(row_scores) if columns == -1 else columns
            order = itertools.chain((ranks[row],), range(1, wanted + 1))
            made.append(
                {
                    token: Logprob(
                        -9999.0 if score == -math.inf else score, rank, self.bare(token) if texts else None
                    )
                    for token, score, rank in zip(row_ids, row_scores, order, strict=False)
                }
            )
        return made


def steps_of(processor: Any) -> Steps:
    """The log-probabilities of a handler with this data processor."""
    return Steps(
        lambda token: processor.process_logprob_response([token], clean_up_tokenization_spaces=False),
        lambda token: processor.tokenizer.convert_ids_to_tokens(token),
        lambda token: processor.process_logprob_response(token),
    )
