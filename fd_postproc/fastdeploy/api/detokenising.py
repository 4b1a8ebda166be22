"""This module decodes new token ids into new text, by direct calls of the tokenizer library.

FastDeploy's ``ids2tokens`` decodes two windows of an answer for each result, the ids before and those with
the new ones; what is more in the second is the new text.  Each window goes through layers of PaddleFormers
and transformers down to the tokenizers library.  If nothing else lies in between, we call the library.

We do not even call it if a text is the bytes of its tokens in a row, as of byte-level tokenizers
(``ByteTokens``), or the texts of SentencePiece's pieces in a row (``PieceTokens``), as of FastDeploy's own
tokenizer for ERNIE, which is written in Python.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import random
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .. import replacements
from ..fallback import Guard
from ..logs import api_log
from . import mends
from .answer_text import AnswerText
from .chunks._chunks import ByteTokens, PieceTokens, note
from .chunks.model_fields import NotPlain
from .joined_results import are_expected, withdraw
from .loading import is_serving

METHOD = "ids2tokens"
REPLACEMENT = "\ufffd"

LAYERS = {
    "decode_token": "paddleformers.transformers.tokenizer_utils",
    "decode": "transformers.tokenization_utils_base",
    "_decode": "transformers.tokenization_utils_fast",
}
"""Methods between a tokenizer and the tokenizers library, and the modules that must define them."""

PIECE_LAYERS = ("decode_token", "decode", "_decode", "convert_ids_to_tokens", "convert_tokens_to_string")
"""Methods between a tokenizer and SentencePiece; FastDeploy or PaddleFormers must define them."""

_FEW = 4096  # ids among which bytes and spaces are looked for

NEEDED_NAMES = frozenset({"decode_status", "tokenizer"})
"""Names that it must use; an abstract method does not."""

STATE = 4
"""Items of an answer's state: two offsets, ids, text; three with ``FD_USE_HF_TOKENIZER``."""

ARGUMENTS = ["self", "token_id", "task_id"]

CANNED = (
    "The quick brown fox, 1.5e-7 + x[3]: naïve café – déjà vu; don't  stop.\n"
    "\tdef f(x):\r\n    return x\n\n\n",
    "你好，世界。日本語のテキスト 한국어 العربية עברית हिन्दी ไทย Ελληνικά Русский",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 𝔘𝔫𝔦 e\u0301 \u200b\u2028\ufeff\ufffd ｗｉｄｅ ½ ﬁ",
    "<think>a</think> <|im_start|> </s> <unk> ## ' ll ' s n't ( a ) . , ? !",
)
"""Texts that the trial decodes by both functions before the fast path is used."""


def decode_token(
    decode: Callable[..., str],
    ids: list[int],
    prefix_offset: int,
    read_offset: int,
    to_the_end: bool = False,
) -> tuple[str, int, int]:
    """Decode as ``ByteTokens.new_text``, by the method ``decode`` of the tokenizers library."""
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
    """Of `ByteTokens` or `PieceTokens`; None where its texts are more than those of tokens in a row."""


def _library_of(tokenizer: Any) -> Any:
    """The library object that does the work below a tokenizer."""
    parts = getattr(tokenizer, "__dict__", {})
    return parts.get("_tokenizer") or parts.get("sp_model")


class Tokenizers:
    """Cache of the fast path of each tokenizer, decided when the tokenizer is first used."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Callable[[], Any], Any, Ways]] = {}

    def ways_of(self, tokenizer: Any) -> Ways:
        """How a tokenizer can be called."""
        name, below = id(tokenizer), _library_of(tokenizer)
        last, library, ways = self.known.get(name, _NONE)
        if last() is tokenizer and library is below:
            return ways
        ways = Ways()
        try:
            ways = ways_of(tokenizer)
        except NotPlain as reason:
            note(f"texts of new tokens: {reason}")
        except Exception as error:
            note(f"texts of new tokens: {type(error).__name__}")
        with contextlib.suppress(TypeError):  # one that cannot be referred to weakly is asked about each time
            gone = weakref.ref(tokenizer, lambda _: self.known.pop(name, None))
            self.known[name] = gone, below, ways
        return ways


_NONE: tuple[Callable[[], Any], Any, Ways] = (lambda: None, None, Ways())


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
    samples = _samples(library)
    _compare(tokenizer, functools.partial(decode_token, decode), samples)
    if type(library.decoder) is not tokenizers.decoders.ByteLevel:
        return Ways(decode, _bytes_among_pieces(tokenizer, library) if mends.are_on() else None)
    new_text = ByteTokens(library, BYTES_OF, library.get_vocab_size()).new_text
    try:
        _compare(tokenizer, new_text, [*samples, *_pieces(library)])
    except NotPlain as reason:
        note(f"texts of new tokens by their bytes: {reason}")
        return Ways(decode)
    return Ways(decode, new_text)


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
    dropped = next((one for one in plain[:_FEW] if decode(one) == ""), None)
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
        except _OF_IDS:  # an id that is none, or that the model refuses
            return None

    pieces = PieceTokens(meet, stays, len(tokenizer))
    _compare(tokenizer, pieces.new_text, _piece_samples(tokenizer, model, plain))
    pieces.mends = mends.are_on()
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

    pieces = PieceTokens(meet, False, size)
    pieces.mends = True
    draw = random.Random(5)
    plain = [one for one in range(size) if one not in {*bytes_of}]
    samples = [library.encode(text, add_special_tokens=False).ids for text in CANNED]
    samples.append([bytes_of[byte] for byte in "".join(CANNED[1:3]).replace(REPLACEMENT, "").encode()])
    samples += [draw.choices(plain, k=100) for _ in range(4)]
    try:
        _compare(tokenizer, pieces.new_text, samples)
    except NotPlain as reason:
        note(f"texts of new tokens by their bytes: {reason}")
        return None
    return pieces.new_text


_OF_IDS = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""What tokenizers raise for an id that is none; anything else is a failure of ours."""

_BYTE = re.compile("<0x[0-9A-F]{2}>")


def _piece_samples(tokenizer: Any, model: Any, plain: list[int]) -> list[list[int]]:
    """Samples for the trial: texts, random ids, broken characters, spaces and special tokens."""
    draw = random.Random(4)
    ids_of = tokenizer.convert_tokens_to_ids
    size = model.vocab_size()
    ends = [*ids_of([*tokenizer.all_special_tokens, *tokenizer.added_tokens_encoder]), *range(min(size, 8))]
    spaces = [one for one in plain if not model.id_to_piece(one).strip("\u2581")]
    bytes_of = [one for one in range(min(size, _FEW)) if model.is_byte(one)]
    odd = [*ends, *spaces[:8], *bytes_of]
    samples = [ids_of(tokenizer.tokenize(text)) for text in CANNED]
    samples += [[*spaces[:1] * 3, *sample[:20]] for sample in samples]
    for chance in (0.0, 0.1, 0.3, 0.6, 1.0) * 12:
        samples.append([draw.choice(odd if draw.random() < chance else plain) for _ in range(12)])
    if bytes_of:
        name = {model.id_to_piece(one): one for one in bytes_of}
        letters = [f"<0x{byte:02X}>" for byte in "".join(CANNED[1:3]).encode()]
        samples.append([name[letter] for letter in letters if letter in name])
        samples += [draw.choices(bytes_of, k=6) for _ in range(20)]
    return samples


def _bytes_of() -> dict[str, int]:
    """GPT-2's alphabet: the byte that a character of a token stands for."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTES_OF = _bytes_of()


def _samples(library: Any) -> list[list[int]]:
    """Samples of answers for the trial."""
    draw = random.Random(1)
    size = library.get_vocab_size()
    added = [*library.get_added_tokens_decoder()]
    samples = [library.encode(text, add_special_tokens=False).ids for text in CANNED]
    samples.append([draw.randrange(size) for _ in range(100)])
    samples.append(
        [draw.choice(added[-20:]) if added and draw.random() < 0.3 else one for one in samples[-1]]
    )
    samples.append([size + 5, *samples[0][:5]])  # no token's id
    return samples


def _pieces(library: Any) -> list[list[int]]:
    """Tokens of one byte each: whole and broken characters."""
    draw = random.Random(3)
    bytes_of = {byte: library.token_to_id(letter) for letter, byte in BYTES_OF.items()}
    text = "".join(CANNED).encode()
    random_bytes = [*draw.choices(range(256), k=200), *draw.choices(range(0x80, 256), k=200)]
    return [
        [bytes_of[byte] for byte in source if bytes_of[byte] is not None]
        for source in (
            text,
            bytes(random_bytes),
            b"\xf0\x9f\x98" * 20,
            b"\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80",
        )
    ]


def _compare(
    tokenizer: Any, new_text: Callable[..., tuple[str, int, int] | None], samples: list[list[int]]
) -> None:
    """Decode answers by both functions, a few tokens at a time, and compare."""
    draw = random.Random(2)
    for ids in samples:
        known: list[int] = []
        prefix, read = 0, 0
        while len(known) < len(ids):
            known.extend(ids[len(known) : len(known) + draw.randint(0, 4)])
            expected = tokenizer.decode_token(known, prefix, read)
            actual = new_text(known, prefix, read)
            if actual is not None and actual != expected:
                raise NotPlain(f"{expected!r} is expected, the library's is {actual!r}")
            _, prefix, read = expected


def install(module: Any) -> Callable[[], None]:
    """Install the fast path in a module's data processors; return a function that restores.

    NotPlain if none of the methods does what it is known to do.
    """
    classes = replacements.classes_that_define(module, METHOD)
    if not classes:
        raise NotPlain(f"{getattr(module, '__name__', 'its module')} defines no {METHOD}")
    reasons = {cls: _unlike(vars(cls)[METHOD]) for cls in classes}
    known = [cls for cls, reason in reasons.items() if not reason]
    if not known:
        raise NotPlain("; ".join(dict.fromkeys(reasons.values())))
    changes = [change for cls in known for change in _changes(cls, getattr(module, "envs", None))]
    return replacements.install("api detokenising", *changes)


def _unlike(stock: Any) -> str:
    """The difference of a method from the supported one, in words; empty if there is none."""
    names = {*stock.__code__.co_names}
    if [*inspect.signature(stock).parameters] != ARGUMENTS:
        return f"{METHOD} takes other arguments"
    return "" if names >= NEEDED_NAMES else f"{METHOD} keeps no state of answers"


def _changes(cls: Any, envs: Any) -> Iterator[tuple[Any, str, Any]]:
    """The replacements for a class's methods."""
    stock = vars(cls)[METHOD]
    asks_environment = "FD_USE_HF_TOKENIZER" in stock.__code__.co_names
    extends_first = "extend" in stock.__code__.co_names  # before the tokenizer may refuse an id
    ways_of = Tokenizers().ways_of
    stock_init = cls.__init__

    @functools.wraps(stock_init)
    def __init__(processor: Any, *arguments: Any, **options: Any) -> None:
        stock_init(processor, *arguments, **options)
        with contextlib.suppress(Exception):  # it is asked again at the first answer
            if is_serving() and getattr(processor, "tokenizer", None) is not None:
                ways_of(processor.tokenizer)  # before the first client waits for it

    def is_left_to_fastdeploy() -> bool:
        # Asked once an answer: reading the environment takes longer than decoding.
        return asks_environment and bool(envs.FD_USE_HF_TOKENIZER)

    def is_text_of_engine() -> bool:
        return bool(getattr(envs, "FD_ENABLE_RETURN_TEXT", False))

    def decoded(
        tokenizer: Any, ids: list[int], prefix: int, read: int, to_the_end: bool
    ) -> tuple[str, int, int]:
        decode, new_text = ways_of(tokenizer)
        told = None if new_text is None else new_text(ids, prefix, read, to_the_end)
        if told is not None:
            return told
        if decode is not None:
            return decode_token(decode, ids, prefix, read, to_the_end)
        text: tuple[str, int, int] = tokenizer.decode_token(ids, prefix, read)
        return text

    guard = Guard("api detokenising", api_log, when_off=withdraw)

    def go_back(answers: Any, task_id: Any, before: tuple[int, int, int] | None) -> None:
        """Restore an answer's state before a failure of ours; FastDeploy's method goes on from it."""
        if before is None:
            answers.pop(task_id, None)
            return
        status = answers[task_id]
        status[0], status[1] = before[:2]
        del status[2][before[2] :]

    def advance(tokenizer: Any, status: list[Any], new_ids: list[int], releases: str = "") -> str:
        """Add new ids to an answer's state; return the new text, which is not added.

        Of several ids FastDeploy shows nothing until the last one completes a character.  Those that a stream
        interval has joined come one by one: else an answer that ends within a character would lack more text.
        `releases`: the kind of mend that gives characters that are not complete; empty: they wait.
        """
        text: str
        if len(new_ids) > 1 and are_expected():
            text = "".join([advance(tokenizer, status, [one]) for one in new_ids[:-1]])
            return text + advance(tokenizer, status, new_ids[-1:], releases)
        ids = status[2]
        ids.extend(new_ids)
        try:
            text, status[0], status[1] = decoded(tokenizer, ids, status[0], status[1], releases != "")
        except _OF_IDS:  # an id that is none: as FastDeploy raises it, or takes it
            try:
                text, status[0], status[1] = tokenizer.decode_token(ids, status[0], status[1])
            except Exception:
                if not extends_first:
                    del ids[len(ids) - len(new_ids) :]
                raise
        if REPLACEMENT in text:
            count(tokenizer, text, releases)
        return text

    def count(tokenizer: Any, text: str, releases: str) -> None:
        new_text = ways_of(tokenizer).new_text
        if releases and REPLACEMENT in text[-2:]:
            mends.count(releases)
        elif getattr(getattr(new_text, "__self__", None), "mends", False):
            mends.count(mends.BROKEN)

    def holds_text(tokenizer: Any, status: list[Any]) -> bool:
        """Whether text of an answer waits for the rest of a character."""
        prefix, read, ids = status[:3]
        return read < len(ids) and decoded(tokenizer, ids, prefix, read, True)[0] != ""

    def split(tokenizer: Any, status: list[Any]) -> list[int]:
        """Take the last ids from an answer, if only they keep text before them from being given."""
        prefix, read, ids = status[:3]
        for count in range(len(ids) - 1, read, -1):
            if decoded(tokenizer, ids[:count], prefix, read, False)[0]:
                rest: list[int] = ids[count:]
                del ids[count:]
                return rest
        return []

    @functools.wraps(stock)
    def ids2tokens(processor: Any, token_id: Any, task_id: Any, releases: str = "") -> Any:
        answers = processor.decode_status
        status = answers.get(task_id)
        if status is not None and type(status[-1]) is AnswerText:
            status[-1] = str(status[-1])
        if not guard.is_on or type(token_id) is not list or (status is not None and len(status) != STATE):
            return stock(processor, token_id, task_id)
        before = None if status is None else (status[0], status[1], len(status[2]))
        try:
            if status is None and not is_left_to_fastdeploy():
                status = answers[task_id] = [0, 0, [], ""]
            told = None
            if status is not None:
                previous = status[3]
                text = advance(vars(processor)["tokenizer"], status, token_id, releases)
                told = text, status[2], previous
                if text:
                    status[3] = previous + text
        except Exception as error:
            go_back(answers, task_id, before)
            outcome = stock(processor, token_id, task_id)  # raises what FastDeploy raises
            guard.failed(error)
            return outcome
        if guard.in_a_row:
            guard.worked()
        return stock(processor, token_id, task_id) if told is None else told

    ids2tokens.go_back = go_back  # type: ignore[attr-defined]
    ids2tokens.guard = guard  # type: ignore[attr-defined]
    ids2tokens.ways_of = ways_of  # type: ignore[attr-defined]
    ids2tokens.advance = advance  # type: ignore[attr-defined]
    ids2tokens.holds_text = holds_text  # type: ignore[attr-defined]
    ids2tokens.split = split  # type: ignore[attr-defined]
    ids2tokens.is_left_to_fastdeploy = is_left_to_fastdeploy  # type: ignore[attr-defined]
    ids2tokens.is_text_of_engine = is_text_of_engine  # type: ignore[attr-defined]
    yield cls, "__init__", __init__
    yield cls, METHOD, ids2tokens
