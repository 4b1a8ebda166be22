"""Direct calls of the tokenizers library, where nothing else lies in between.

FastDeploy's ``ids2tokens`` decodes two windows of an answer for each result, the ids before and those with
the new ones; what is more in the second is the new text.  Each window goes through layers of PaddleFormers
and transformers down to the tokenizers library.

The library is not even called if a text is the bytes of its tokens in a row (``TokenBytes``), as of
byte-level tokenizers, or of SentencePiece's pieces, as of FastDeploy's own tokenizer for ERNIE, which is
written in Python.
"""

from __future__ import annotations

import functools
import importlib
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ....support.known import Known
from ...events.counters import note
from ...gate.seams import NotPlain
from ..chunks._chunks import BY_BYTE, TokenBytes
from . import mends, samples

REPLACEMENT = "\ufffd"

LAYERS = {
    "decode_token": "paddleformers.transformers.tokenizer_utils",
    "decode": "transformers.tokenization_utils_base",
    "_decode": "transformers.tokenization_utils_fast",
}
"""Methods between a tokenizer and the tokenizers library, and the modules that must define them."""

PIECE_LAYERS = ("decode_token", "decode", "_decode", "convert_ids_to_tokens", "convert_tokens_to_string")
"""Methods between a tokenizer and SentencePiece; FastDeploy or PaddleFormers must define them."""

OF_IDS = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""Errors of tokenizers for an id that is none; any other is a failure of ours."""

_BYTE = re.compile("<0x[0-9A-F]{2}>")


def decode_token(
    decode: Callable[..., str],
    ids: list[int],
    prefix_offset: int,
    read_offset: int,
    to_the_end: bool = False,
) -> tuple[str, int, int]:
    """Decode as ``TokenBytes.new_text``, by the method ``decode`` of the tokenizers library."""
    before = decode(ids[prefix_offset:read_offset], skip_special_tokens=False)
    text = decode(ids[prefix_offset:], skip_special_tokens=False)
    if len(text) <= len(before):
        return "", prefix_offset, read_offset
    if REPLACEMENT in text[-2:] and not to_the_end:  # perhaps a character that is not complete
        return "", prefix_offset, read_offset
    if not text.startswith(before):
        return "", prefix_offset, len(ids)
    return text[len(before) :], read_offset, len(ids)


class Ways(NamedTuple):
    """The ways in which a tokenizer can be called; where both are None, it is FastDeploy's way."""

    decode: Callable[..., str] | None = None  # the library's
    new_text: Callable[..., tuple[str, int, int] | None] | None = None
    """Of `TokenBytes`; None if a text is not its tokens' texts joined."""


def _library_of(tokenizer: Any) -> Any:
    """The library object that does the work below a tokenizer."""
    parts = getattr(tokenizer, "__dict__", {})
    return parts.get("_tokenizer") or parts.get("sp_model")


class Tokenizers:
    """Cache of the fast path of each tokenizer, decided when the tokenizer is first used."""

    def __init__(self) -> None:
        self._known: Known[tuple[Any, Ways]] = Known()

    def ways_of(self, tokenizer: Any) -> Ways:
        """How a tokenizer can be called."""
        known, below = self._known.of(tokenizer), _library_of(tokenizer)
        if known is not None and known[0] is below:
            return known[1]
        ways = Ways()
        try:
            ways = ways_of(tokenizer)
        except NotPlain as reason:
            note(f"texts of new tokens: {reason}")
        except Exception as error:
            note(f"texts of new tokens: {type(error).__name__}")
        return self._known.keep(tokenizer, (below, ways))[1]


def ways_of(tokenizer: Any) -> Ways:
    """The fast path to the tokenizers library; NotPlain if it decodes differently."""
    model = getattr(tokenizer, "__dict__", {}).get("sp_model")
    if model is not None and type(model) is importlib.import_module("sentencepiece").SentencePieceProcessor:
        return Ways(new_text=_pieces_way(tokenizer, model))
    for name, module in LAYERS.items():
        method = getattr(type(tokenizer), name, None)
        if getattr(method, "__module__", None) != module or name in vars(tokenizer):
            raise NotPlain(f"{type(tokenizer).__name__} has its own {name}")
    library = vars(tokenizer).get("_tokenizer")
    tokenizers = importlib.import_module("tokenizers")
    if type(library) is not tokenizers.Tokenizer:
        raise NotPlain(f"{type(tokenizer).__name__} is none of the tokenizers library's")
    decode: Callable[..., str] = library.decode
    answers = samples.of_library(library)
    samples.compare(tokenizer, functools.partial(decode_token, decode), answers)
    if type(library.decoder) is not tokenizers.decoders.ByteLevel:
        return Ways(decode, _bytes_among_pieces(tokenizer, library) if mends.are_on() else None)
    new_text = bytes_way(library)
    try:
        samples.compare(tokenizer, new_text, [*answers, *samples.of_bytes(library)])
    except NotPlain as reason:
        note(f"texts of new tokens by their bytes: {reason}")
        return Ways(decode)
    return Ways(decode, new_text)


def bytes_way(library: Any) -> Callable[..., tuple[str, int, int] | None]:
    """The fast path for the tokens of a byte-level tokenizer."""

    def meet(token: int) -> tuple[bytes, bytes, int] | None:
        name = library.id_to_token(token)
        if name is None:
            return None
        letters = [samples.BYTES_OF[letter] for letter in name if letter in samples.BYTES_OF]
        text = bytes(letters) if len(letters) == len(name) else name.encode()  # an added token's own
        if library.decode([token], skip_special_tokens=False) != text.decode(errors="replace"):
            note("texts of new tokens: a token is shown as something else than its bytes")
            return None
        return text, text, 0

    return TokenBytes(meet, False, library.get_vocab_size(), "replace").new_text


def _pieces_way(tokenizer: Any, model: Any) -> Callable[..., tuple[str, int, int] | None]:
    """The fast path for a SentencePiece model's pieces; NotPlain if it decodes differently."""
    for name in PIECE_LAYERS:
        method = getattr(type(tokenizer), name, None)
        package = getattr(method, "__module__", "").partition(".")[0]
        if package not in ("fastdeploy", "paddleformers") or name in vars(tokenizer):
            raise NotPlain(f"{type(tokenizer).__name__} has its own {name}")

    def decode(*ids: int) -> str:
        text: str = tokenizer.decode([*ids], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    size = model.vocab_size()
    special = {*tokenizer.all_special_tokens, *tokenizer.added_tokens_encoder}
    plain = [
        one
        for one in range(size)
        if model.id_to_piece(one) not in special
        and not (model.is_control(one) or model.is_byte(one) or model.is_unknown(one))
    ]
    anchor = next((one for one in plain if decode(one, one) == 2 * decode(one) != ""), None)
    if anchor is None:
        raise NotPlain("the model has no piece that is its own text")
    before = decode(anchor)
    dropped = next((one for one in plain[: samples.FEW] if decode(one) == ""), None)
    stays = dropped is not None and decode(dropped, dropped) == ""

    def meet(token: int) -> tuple[bytes, bytes, int] | None:
        try:
            name, alone, after = tokenizer.convert_ids_to_tokens(token), decode(token), decode(anchor, token)
            if name in special:
                text = name.encode()
                return (text, text, 1) if alone == name else None
            if token < size and model.is_byte(token):
                text = bytes([int(name[3:-1], 16)])
                return (text, text, 0) if alone == text.decode(errors="replace") else None
            if not after.startswith(before):
                return None
            return alone.encode(), after[len(before) :].encode(), 2 if model.is_control(token) else 0
        except OF_IDS:  # an id that is none, or that the model refuses
            return None

    pieces = TokenBytes(meet, stays, len(tokenizer))
    samples.compare(tokenizer, pieces.new_text, samples.of_pieces(tokenizer, model, plain))
    pieces.errors = BY_BYTE if mends.are_on() else None
    return pieces.new_text


def _bytes_among_pieces(tokenizer: Any, library: Any) -> Callable[..., tuple[str, int, int] | None] | None:
    """The mend for a library's tokenizer with byte fallback; None if it is none, or decodes otherwise.

    The library makes every byte of a run with a broken character U+FFFD, whole characters, too.
    """
    bytes_of = [library.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    size = library.get_vocab_size()
    if None in bytes_of or size <= 256:
        return None
    decode = functools.partial(library.decode, skip_special_tokens=False)
    anchor = next((one for one in range(size) if decode([one, one]) == 2 * decode([one]) != ""), None)
    if anchor is None:
        return None
    before = decode([anchor])

    def meet(token: int) -> tuple[bytes, bytes, int] | None:
        name = library.id_to_token(token)
        if name is None:
            return None
        alone, after = decode([token]), decode([anchor, token])
        if _BYTE.fullmatch(name):
            text = bytes([int(name[3:-1], 16)])
            return (text if alone else b"", text, 0)  # a space is dropped at the beginning
        return (alone.encode(), after[len(before) :].encode(), 0) if after.startswith(before) else None

    pieces = TokenBytes(meet, False, size, BY_BYTE)
    draw = random.Random(5)
    plain = [one for one in range(size) if one not in {*bytes_of}]
    answers = [library.encode(text, add_special_tokens=False).ids for text in samples.CANNED]
    answers.append(
        [bytes_of[byte] for byte in "".join(samples.CANNED[1:3]).replace(REPLACEMENT, "").encode()]
    )
    answers += [draw.choices(plain, k=100) for _ in range(4)]
    try:
        samples.compare(tokenizer, pieces.new_text, answers)
    except NotPlain as reason:
        note(f"texts of new tokens by their bytes: {reason}")
        return None
    return pieces.new_text
