"""The record: digests of what is known of FastDeploy, of statements and of whole functions.

``known_code.json`` holds it; `python -m tools.accept` adds to it.
"""

from __future__ import annotations

import importlib.resources
import itertools
import json
from collections.abc import Iterable, Sequence

from ...support.environment import KNOWN

Record = dict[str, dict[str, str]]
"""Known digests of a seam, of statements and whole texts: {function: {digest: mark}}.

A mark has a sign for each of the row's `facts`: ``+`` if only versions with it have the statement, ``-`` if
only others have, ``.`` or nothing if both have.
"""


def read() -> dict[str, Record]:
    """What is known of each seam: the package's record, and the one of ``FD_POSTPROC_KNOWN``."""
    file = importlib.resources.files(__package__).joinpath("known_code.json")
    known = unpacked(json.loads(file.read_text()))
    return known if KNOWN.complaint else joined(known, unpacked(KNOWN.value))


def unpacked(known: dict[str, dict[str, str]]) -> dict[str, Record]:
    """A record from what its file holds: digests in a row, some with a mark behind them."""
    return {
        seam: {name: {one[:10]: one[10:] for one in text.split()} for name, text in functions.items()}
        for seam, functions in known.items()
    }


def packed(record: dict[str, Record]) -> dict[str, dict[str, str]]:
    """What a record's file holds."""
    return {
        seam: {
            name: " ".join(f"{digest}{mark}" for digest, mark in sorted(digests.items()))
            for name, digests in sorted(functions.items())
        }
        for seam, functions in sorted(record.items())
    }


def joined(*records: dict[str, Record]) -> dict[str, Record]:
    """All that several records know; of two signs that differ none is left."""
    union: dict[str, Record] = {}
    for known in records:
        for seam, functions in known.items():
            for name, digests in functions.items():
                into = union.setdefault(seam, {}).setdefault(name, {})
                for digest, mark in digests.items():
                    into[digest] = _agreed(into.get(digest, mark), mark)
    return union


def _agreed(one: str, other: str) -> str:
    pairs = itertools.zip_longest(one, other, fillvalue=".")
    return "".join(sign if sign == another else "." for sign, another in pairs).rstrip(".")


def signs_of(marks: Iterable[str], facts: Sequence[str]) -> dict[str, set[str]]:
    """The signs that marks give each fact; two contradict each other."""
    known = [*marks]
    return {fact: {mark[place : place + 1] for mark in known} - {"", "."} for place, fact in enumerate(facts)}
