"""From new token ids to new text, asking the tokenizer itself.

FastDeploy's ``ids2tokens`` decodes two windows of an answer for each result, the ids before and those with
the new ones; what is more in the second is the new text.  Each window goes through layers of PaddleFormers
and transformers - copies by way of NumPy, special attributes - down to the tokenizers library, which does
the work.  Where nothing but those layers lies in between, the library is asked at once: the same two
questions, with the same answers.

Not even the library is asked where a text is nothing but the bytes of its tokens in a row, as byte-level
tokenizers have it (``ByteTokens``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import random
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ._chunks import ByteTokens, note
from .plans import NotPlain

PROCESSORS = "fastdeploy.input.base_processor"
REPLACEMENT = "\ufffd"

LAYERS = {
    "decode_token": "paddleformers.transformers.tokenizer_utils",
    "decode": "transformers.tokenization_utils_base",
    "_decode": "transformers.tokenization_utils_fast",
}
"""Methods of a tokenizer on the way to the library, and whose they have to be."""

KNOWN_NAMES = frozenset(
    {
        "envs", "FD_USE_HF_TOKENIZER", "decode_status", "extend", "tokenizer", "batch_decode", "isinstance",
        "list", "len", "replace", "append", "decode_token",
    }
)  # fmt: skip
"""What FastDeploy's method has been seen to look at."""

STATE = 4
"""Items of an answer's state: two offsets, ids, text.  With ``FD_USE_HF_TOKENIZER`` there are three."""

ARGUMENTS = ["self", "token_id", "task_id"]

CANNED = (
    "The quick brown fox, 1.5e-7 + x[3]: naïve café – déjà vu; don't  stop.\n"
    "\tdef f(x):\r\n    return x\n\n\n",
    "你好，世界。日本語のテキスト 한국어 العربية עברית हिन्दी ไทย Ελληνικά Русский",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 𝔘𝔫𝔦 e\u0301 \u200b\u2028\ufeff\ufffd ｗｉｄｅ ½ ﬁ",
    "<think>a</think> <|im_start|> </s> <unk> ## ' ll ' s n't ( a ) . , ? !",
)
"""Texts whose tokens are decoded both ways before a tokenizer is asked at once."""


def decode_token(
    decode: Callable[..., str], ids: list[int], prefix_offset: int, read_offset: int
) -> tuple[str, int, int]:
    """As PaddleFormers' ``decode_token``: new text, and where the two windows begin next time.

    Parameters
    ----------
    decode : callable
        Of the tokenizers library's ``Tokenizer``.
    ids : list of int
        All of an answer.
    prefix_offset, read_offset : int
        Where the windows begin, and where the first one ends.
    """
    before = decode(ids[prefix_offset:read_offset], skip_special_tokens=False)
    text = decode(ids[prefix_offset:], skip_special_tokens=False)
    if len(text) <= len(before) or REPLACEMENT in text[-2:]:  # perhaps a character that is not complete
        return "", prefix_offset, read_offset
    if not text.startswith(before):
        return "", prefix_offset, len(ids)
    return text[len(before) :], read_offset, len(ids)


class Ways(NamedTuple):
    """How a tokenizer can be asked.

    Attributes
    ----------
    decode : callable or None
        The library's; None where FastDeploy's way has to be taken.
    new_text : callable or None
        `ByteTokens.new_text`; None where its texts are more than bytes in a row.
    """

    decode: Callable[..., str] | None = None
    new_text: Callable[..., tuple[str, int, int] | None] | None = None


class Tokenizers:
    """Which tokenizers can be asked at once: decided for each when it is first seen."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Callable[[], Any], Any, Ways]] = {}

    def ways_of(self, tokenizer: Any) -> Ways:
        """How it can be asked."""
        name = id(tokenizer)
        last, library, ways = self.known.get(name, _NONE)
        if last() is tokenizer and (ways.decode is None or tokenizer.__dict__.get("_tokenizer") is library):
            return ways
        library, ways = None, Ways()
        try:
            ways = ways_of(tokenizer)
            library = vars(tokenizer)["_tokenizer"]
        except NotPlain as reason:
            note(f"texts of new tokens: {reason}")
        except Exception as error:
            note(f"texts of new tokens: {type(error).__name__}")
        with contextlib.suppress(TypeError):  # one that cannot be referred to weakly is asked about each time
            gone = weakref.ref(tokenizer, lambda _: self.known.pop(name, None))
            self.known[name] = gone, library, ways
        return ways


_NONE: tuple[Callable[[], Any], Any, Ways] = (lambda: None, None, Ways())


def ways_of(tokenizer: Any) -> Ways:
    """How to ask the tokenizers library below a tokenizer, where that gives the same.

    Raises
    ------
    NotPlain
        With the reason.
    """
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
        return Ways(decode)
    new_text = ByteTokens(library, BYTES_OF, library.get_vocab_size()).new_text
    try:
        _compare(tokenizer, new_text, [*samples, *_pieces(library)])
    except NotPlain as reason:
        note(f"texts of new tokens by their bytes: {reason}")
        return Ways(decode)
    return Ways(decode, new_text)


def _bytes_of() -> dict[str, int]:
    """GPT-2's alphabet: which byte a character of a token stands for."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTES_OF = _bytes_of()


def _samples(library: Any) -> list[list[int]]:
    """Answers to be decoded both ways."""
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
    """Tokens of one byte each: characters in pieces, whole and broken."""
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
    """Decode answers both ways, a few tokens at a time."""
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
    """Give FastDeploy's data processors our way; a function that undoes it.

    Parameters
    ----------
    module : module
        ``fastdeploy.input.base_processor``.

    Raises
    ------
    NotPlain
        If its method does more than it is known to.
    """
    cls = module.BaseTextProcessor
    stock = vars(cls)["ids2tokens"]
    more = sorted({*stock.__code__.co_names} - KNOWN_NAMES)
    if more or [*inspect.signature(stock).parameters] != ARGUMENTS:
        raise NotPlain(
            f"ids2tokens looks at more: {', '.join(more)}" if more else "ids2tokens takes other arguments"
        )
    envs = module.envs
    tokenizers = Tokenizers()
    stock_init = cls.__init__

    @functools.wraps(stock_init)
    def __init__(processor: Any, *arguments: Any, **options: Any) -> None:
        stock_init(processor, *arguments, **options)
        if getattr(processor, "tokenizer", None) is not None:
            tokenizers.ways_of(processor.tokenizer)  # before the first client waits for it

    @functools.wraps(stock)
    def ids2tokens(processor: Any, token_id: Any, task_id: Any) -> Any:
        tokenizer = processor.tokenizer
        decode, new_text = tokenizers.ways_of(tokenizer)
        answers = processor.decode_status
        status = answers.get(task_id)
        if decode is None or type(token_id) is not list:
            return stock(processor, token_id, task_id)
        if status is None:
            # Asked once an answer: reading the environment takes longer than decoding.
            if envs.FD_USE_HF_TOKENIZER:
                return stock(processor, token_id, task_id)
            status = answers[task_id] = [0, 0, [], ""]
        elif len(status) != STATE:
            return stock(processor, token_id, task_id)
        previous = status[3]
        ids = status[2]
        ids.extend(token_id)
        told = None if new_text is None else new_text(ids, status[0], status[1])
        try:
            text, status[0], status[1] = told or decode_token(decode, ids, status[0], status[1])
        except Exception:  # an id that is none: as FastDeploy raises it, or takes it
            text, status[0], status[1] = tokenizer.decode_token(ids, status[0], status[1])
        if text:
            status[3] = previous + text
        return text, ids, previous

    cls.__init__, cls.ids2tokens = __init__, ids2tokens

    def restore() -> None:
        cls.__init__, cls.ids2tokens = stock_init, stock

    return restore
