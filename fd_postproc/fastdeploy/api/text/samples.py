"""Sample answers, on which a fast path of a tokenizer is tried before it is used."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ...gate.seams import NotPlain

FEW = 4096
"""Ids among which bytes and spaces are looked for."""

CANNED = (
    "The quick brown fox, 1.5e-7 + x[3]: naïve café – déjà vu; don't  stop.\n"
    "\tdef f(x):\r\n    return x\n\n\n",
    "你好，世界。日本語のテキスト 한국어 العربية עברית हिन्दी ไทย Ελληνικά Русский",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 𝔘𝔫𝔦 e\u0301 \u200b\u2028\ufeff\ufffd ｗｉｄｅ ½ ﬁ",
    "<think>a</think> <|im_start|> </s> <unk> ## ' ll ' s n't ( a ) . , ? !",
)
"""Texts that are decoded by both functions."""


def _bytes_of() -> dict[str, int]:
    """GPT-2's alphabet: the byte that a character of a token stands for."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTES_OF = _bytes_of()


def of_library(library: Any) -> list[list[int]]:
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


def of_bytes(library: Any) -> list[list[int]]:
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


def of_pieces(tokenizer: Any, model: Any, plain: list[int]) -> list[list[int]]:
    """Samples for the trial: texts, random ids, broken characters, spaces and special tokens."""
    draw = random.Random(4)
    ids_of = tokenizer.convert_tokens_to_ids
    size = model.vocab_size()
    ends = [*ids_of([*tokenizer.all_special_tokens, *tokenizer.added_tokens_encoder]), *range(min(size, 8))]
    spaces = [one for one in plain if not model.id_to_piece(one).strip("\u2581")]
    bytes_of = [one for one in range(min(size, FEW)) if model.is_byte(one)]
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


def compare(
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
