"""Spells token ids as FastDeploy shows them, by FastDeploy's own data processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....support.known import Known
from ._chunks import Texts

REPLACEMENT = "\ufffd"


def chat_spelling(processor: Any) -> Callable[[int], tuple[str, str]]:
    """The function from a token id to chat's text, and the text whose UTF-8 chat shows as bytes."""

    def spell(token: int) -> tuple[str, str]:
        text = processor.process_logprob_response([token], clean_up_tokenization_spaces=False)
        if REPLACEMENT in text:
            return _in_bytes(text), text
        return text, text

    return spell


def completion_spelling(processor: Any) -> Callable[[int], tuple[str, str]]:
    """The function from a token id to the text in completions; there are no bytes."""

    def spell(token: int) -> tuple[str, str]:
        text = processor.process_logprob_response([token], clean_up_tokenization_spaces=False)
        if REPLACEMENT in text:
            text = _in_bytes(processor.tokenizer.convert_ids_to_tokens(token))
        return text, ""

    return spell


def prompt_spelling(processor: Any) -> Callable[[int], tuple[str, str]]:
    """The function from a token id to its text in a prompt's log-probabilities.

    FastDeploy gives the id there as it is, not in a list.
    """

    def spell(token: int) -> tuple[str, str]:
        return processor.process_logprob_response(token), ""

    return spell


def _in_bytes(text: str) -> str:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text.encode("utf-8", errors="replace"))


class TextsOf:
    """Cache of the texts of each data processor's tokens.

    Parameters
    ----------
    spelling : callable
        From a data processor to what `Texts` is made with.
    """

    def __init__(self, spelling: Callable[[Any], Callable[[int], tuple[str, str]]]) -> None:
        self._spelling = spelling
        self._texts: Known[Texts] = Known()

    def __call__(self, handler: Any) -> Texts:
        """The texts of a handler's processor."""
        processor = handler.engine_client.data_processor
        return self._texts.of(processor) or self._texts.keep(processor, Texts(self._spelling(processor)))


CHAT_TEXTS, COMPLETION_TEXTS = TextsOf(chat_spelling), TextsOf(completion_spelling)
PROMPT_TEXTS = TextsOf(prompt_spelling)
