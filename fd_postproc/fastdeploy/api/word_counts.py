"""Token counts of texts by the counts of their words, where a tokenizer is byte-level.

Texts of new tokens hardly repeat, words do.  A tokenizer's regular expression asks of a character whether
it is a letter, a number or a space.  Where it asks nothing else, Python's ``re`` splits the same text with
each character replaced by an ASCII one of its kind.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata
import warnings
from collections.abc import Callable
from typing import Any, Literal

from .chunks.model_fields import NotPlain
from .detokenising import BYTES_OF, CANNED

MOST = 1 << 15  # words that are cached
LONGEST = 64  # characters of a word that is worth caching

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Regular expression of ``ByteLevel`` itself."""

_SPACE = r"\t\n\x0b\x0c\r "
_KINDS = {r"\p{L}": "A-Za-z", r"\p{N}": "0-9", r"\s": _SPACE, r"\r": r"\r", r"\n": r"\n"}
_NO_SPACE = rf"[^{_SPACE}]"
_PART = re.compile(r"\\p\{\w+\}|\\.|\[\^?|\]|&&|.", re.DOTALL)
Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
_FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")
_LETTER = {byte: letter for letter, byte in BYTES_OF.items()}
_CONTROLS = 0x9F  # up to here, behind ASCII; one is a space
_KIND_OF = {"L": "a", "N": "0", "Z": "\x0b", "M": "!", "P": "!", "S": "!", "C": "!"}


class Kinds(dict[int, str]):
    """Table of ASCII characters of the same kind; an unsure character stands for itself.

    Unicode's versions differ.  What 3.2 knew has stayed what it was; ``ſ`` is an s to ``(?i:s)``.
    """

    def __missing__(self, code: int) -> str:
        letter = made = chr(code)
        folded = letter.casefold()
        now, then = unicodedata.category(letter), unicodedata.ucd_3_2_0.category(letter)
        is_sure = now[0] == then[0] if now[0] in "LNZMC" else then[0] in "PSC"  # new signs were no letters
        is_sure = is_sure and now not in ("Cn", "Cs") and not (len(folded) == 1 and folded.isascii())
        if code > _CONTROLS and is_sure:
            made = _KIND_OF[now[0]]
        self[code] = made
        return made


KINDS = Kinds()


class WordCounts(dict[str, int]):
    """Token counts of words, cached.

    Parameters
    ----------
    tokenize : callable
        Of the tokenizers library's model.
    """

    def __init__(self, tokenize: Callable[[str], list[Any]]) -> None:
        self.tokenize = tokenize

    def __missing__(self, word: str) -> int:
        made = len(self.tokenize("".join([_LETTER[byte] for byte in word.encode()])))
        if len(word) <= LONGEST:
            if len(self) >= MOST:
                self.clear()
            self[word] = made
        return made


def counter(library: Any) -> Callable[[str], int | None]:
    """The function that counts a text's tokens; it returns None where the library has to be asked.

    Parameters
    ----------
    library : tokenizers.Tokenizer

    Raises
    ------
    NotPlain
        If the library splits texts in a way that is not known.
    """
    form, split = _form_of(library.normalizer), _splitter_of(library.pre_tokenizer)
    counts = WordCounts(library.model.tokenize)
    added = {one.content for one in library.get_added_tokens_decoder().values()}
    if form:
        added |= {unicodedata.normalize(form, one) for one in added}
    has_added = re.compile("|".join(map(re.escape, sorted(added))) or "(?!)").search

    def count(text: str) -> int | None:
        kinds = text
        if not text.isascii():
            kinds = text.translate(KINDS)
            if not kinds.isascii() or (form is not None and not unicodedata.is_normalized(form, text)):
                return None
        if has_added(text):
            return None
        words = split(kinds)
        if "".join(words) != kinds:  # something is between them
            return None
        if kinds is text:
            return sum(map(counts.__getitem__, words))
        made = at = 0
        for word in words:
            made += counts[text[at : at + len(word)]]
            at += len(word)
        return made

    for text in _samples():
        if count(text) not in (None, len(library.encode(text, add_special_tokens=False))):
            raise NotPlain("words are counted otherwise")
    return count


def _state_of(part: Any) -> dict[str, Any]:
    """The settings of a part of the library's tokenizer; empty if there is no such part."""
    if part is None:
        return {}
    made: dict[str, Any] = json.loads(part.__getstate__())
    return made


def _form_of(normalizer: Any) -> Form | None:
    """The form of Unicode that a normalizer makes; None if there is no normalizer."""
    kind = _state_of(normalizer).get("type")
    form = next((one for one in _FORMS if one == kind), None)
    if form != kind:
        raise NotPlain(f"its normalizer is {kind}")
    return form


def _splitter_of(pre_tokenizer: Any) -> Callable[[str], list[str]]:
    """The function that splits a text of ASCII into words."""
    parts = _state_of(pre_tokenizer)
    parts = parts.get("pretokenizers", [parts])
    split, level = parts if len(parts) == 2 else ({}, parts[0])
    if level.get("type") != "ByteLevel" or level.get("add_prefix_space") is not False:
        raise NotPlain("it is not byte-level")
    if level.get("use_regex", True) is (split != {}):
        raise NotPlain("it splits texts twice, or not at all")
    if split and (split.get("type"), split.get("behavior"), split.get("invert")) != (
        "Split",
        "Isolated",
        False,
    ):
        raise NotPlain("it splits texts in another way")
    pattern = split.get("pattern", {}).get("Regex") if split else GPT2
    if pattern is None:
        raise NotPlain("it splits texts at a string")
    return _translated(pattern).findall


def _translated(pattern: str) -> re.Pattern[str]:
    """The regular expression for a text of ASCII."""
    made, is_inside = "", False
    for part in _PART.findall(pattern):
        if not part.isascii() or part == "&&" or (is_inside and part[0] == "["):
            raise NotPlain(f"its regular expression asks for {part!r}")
        if part == r"\S" and not is_inside:
            made += _NO_SPACE
        elif (part[0] == "\\" and part[1:].isalpha()) or part.startswith(r"\p"):
            if part not in _KINDS:
                raise NotPlain(f"its regular expression asks for {part!r}")
            made += _KINDS[part] if is_inside else f"[{_KINDS[part]}]"
        else:
            is_inside = part != "]" and (is_inside or part[0] == "[")
            made += part
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            known = re.compile(made)
    except (re.error, Warning) as error:
        raise NotPlain(f"its regular expression is not Python's: {error}") from None
    if known.groups:
        raise NotPlain("its regular expression has groups")
    return known


def _samples() -> list[str]:
    """Texts for the trial."""
    draw = random.Random(5)
    alphabet = [
        *"aZsStTrReEvVmMlLdD'''   \n\n\r\t\x0b\x0c\x1c\x00019.,!?/*+-_()",
        *"éßſﬁ日の½²٣\u00a0\u3000\u2028ﾞ\u0301\u200d😀�",
    ]
    words = [*CANNED, *"".join(CANNED)]
    return words + ["".join(draw.choices(alphabet, k=draw.randint(1, 12))) for _ in range(400)]
