"""How FastDeploy shows a token id, in FastDeploy's own data processor's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REPLACEMENT = "\ufffd"


def chat_spelling(processor: Any) -> Callable[[int], tuple[str, str]]:
    """From a token id to what chat shows, and the text whose UTF-8 it shows as bytes."""

    def spell(token: int) -> tuple[str, str]:
        text = processor.process_logprob_response([token], clean_up_tokenization_spaces=False)
        if REPLACEMENT in text:
            return _in_bytes(text), text
        return text, text

    return spell


def completion_spelling(processor: Any) -> Callable[[int], tuple[str, str]]:
    """From a token id to what completions show; there are no bytes."""

    def spell(token: int) -> tuple[str, str]:
        text = processor.process_logprob_response([token], clean_up_tokenization_spaces=False)
        if REPLACEMENT in text:
            text = _in_bytes(processor.tokenizer.convert_ids_to_tokens(token))
        return text, ""

    return spell


def silence(token: int) -> tuple[str, str]:
    """For requests that want no texts."""
    return "", ""


def _in_bytes(text: str) -> str:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text.encode("utf-8", errors="replace"))
