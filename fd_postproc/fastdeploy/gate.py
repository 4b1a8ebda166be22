"""Decides for each seam whether FastDeploy's code is known, by the statements of its functions.

A row of `seams.SEAMS` names the functions whose text ours stands for.  Each is read, never run: every
statement, under its parent's header and after the statement before it, has to be recorded.  Left out are log
calls and what only they read, docstrings, annotations, and imports of ops.

::

    verdict = judge("delivery")
    verdict.reason    # None: everything is known

The record, ``data/fastdeploy_code.json``, holds digests only: of statements, and of whole functions,
which need not be parsed.  `python -m tools.accept` adds to it.
"""

from __future__ import annotations

import functools
import importlib.resources
import inspect
import json
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from ..environment import KNOWN
from .seams import PACKAGE, SEAMS, Seam
from .statements import file_of, statements_of, whole_of

MARKED = "makes_empty_results"
"""The fact of marked statements: ``+`` if only versions with it have one, ``-`` if only others have."""

Record = dict[str, dict[str, str]]
"""Of one seam: by function, the digests of known statements and whole texts, each with its mark."""


class Unknown(NamedTuple):
    """The first unknown statement of a function; line 0: there is no source, or no such function."""

    function: str
    file: str
    line: int

    @property
    def text(self) -> str:
        """Function, file and line in words."""
        if not self.line:
            return f"{self.function} cannot be read: {self.file}"
        return f"{self.function} has new code in line {self.line} of {self.file}"


class Verdict(NamedTuple):
    """What the gate says of a seam.

    Attributes
    ----------
    unknown : tuple of Unknown
        One for each function with a statement that is not recorded.
    facts : dict of str to bool
        Attributes that our class needs: what the recorded versions with these statements do.
    """

    unknown: tuple[Unknown, ...]
    facts: dict[str, bool]

    @property
    def reason(self) -> str | None:
        """Why FastDeploy's own stays, in words; None: its code is known."""
        return "; ".join(dict.fromkeys(one.text for one in self.unknown)) or None


def judge(seam: str, place: Any = None, without: Collection[str] = ()) -> Verdict:
    """Compare the functions that a seam's row names with the record.

    Parameters
    ----------
    seam : str
        A name of `seams.SEAMS`.
    place : module or type, optional
        One of the row's modules, or the class that is asked in place of the one that the row names.
        Default: the first of the row's modules that is loaded.
    without : collection of str
        Functions that do not run here.
    """
    row, known = SEAMS[seam], record().get(seam, {})
    found = [one for one in functions_of(row, place, known) if one[0] not in without]
    if not found and row.stands_for:
        return Verdict(
            (Unknown(row.name, f"this FastDeploy has none of {', '.join(row.stands_for)}", 0),), {}
        )
    return compared(found, known, bool(row.facts))


def compared(found: Iterable[tuple[str, Any]], known: Record, has_facts: bool = False) -> Verdict:
    """Compare named functions with what is recorded of a seam."""
    unknown, marks = [], set()
    for name, function in found:
        recorded = known.get(name, {})
        if (text := whole_of(function)) in recorded:
            marks.add(recorded[text])
            continue
        told = statements_of(function)
        new = next((one for one in told if one.digest not in recorded), None)
        if not told:
            unknown.append(Unknown(name, "its source is not there", 0))
        elif new is not None:
            unknown.append(Unknown(name, file_of(function), new.line))
        marks |= {recorded.get(one.digest, "") for one in told}
    marks.discard("")
    if has_facts and not unknown and len(marks) != 1:
        unknown.append(Unknown("the whole", "it joins statements of versions that do different things", 0))
    return Verdict(tuple(unknown), {MARKED: "+" in marks} if has_facts else {})


# ---- The record --------------------------------------------------------------------------------------------


@functools.cache
def record() -> dict[str, Record]:
    """What is known of each seam: the package's record, and the one of ``FD_POSTPROC_KNOWN``."""
    file = importlib.resources.files("fd_postproc.data").joinpath("fastdeploy_code.json")
    known = unpacked(json.loads(file.read_text()))
    return known if KNOWN.complaint else joined(known, unpacked(KNOWN.value))


def unpacked(told: dict[str, dict[str, str]]) -> dict[str, Record]:
    """A record from what its file holds: digests in a row, some with a mark behind them."""
    return {
        seam: {name: {one[:10]: one[10:] for one in text.split()} for name, text in functions.items()}
        for seam, functions in told.items()
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
    """All that several records know; a statement that is marked in two ways has no mark."""
    union: dict[str, Record] = {}
    for told in records:
        for seam, functions in told.items():
            for name, digests in functions.items():
                into = union.setdefault(seam, {}).setdefault(name, {})
                for digest, mark in digests.items():
                    into[digest] = mark if into.get(digest, mark) == mark else ""
    return union


# ---- Which functions ---------------------------------------------------------------------------------------


def functions_of(row: Seam, place: Any, recorded: Iterable[str] = ()) -> Iterator[tuple[str, Any]]:
    """The functions that a row and the record name, as far as this FastDeploy has them."""
    is_of_any = any(one.startswith("*.") for one in row.stands_for)  # each class that defines it itself
    for named in dict.fromkeys((*row.stands_for, *recorded)):
        where, _, name = named.rpartition(":")
        owner, _, attribute = name.rpartition(".")
        holder: Any = sys.modules.get(PACKAGE + where) if where else place or row.loaded()
        owners = {owner: holder}
        if owner == "*":
            own = [one for one in vars(holder).values() if isinstance(one, type)] if holder else []
            owners = {one.__name__: one for one in own if one.__module__ == holder.__name__}
        elif owner and not isinstance(holder, type):
            owners = {owner: getattr(holder, owner, None)}
        for cls, one in owners.items():
            lineage = getattr(getattr(one, "stock", one), "__mro__", (one,))
            for value in _defined(lineage[:1] if is_of_any else lineage, attribute):
                yield named.replace("*", cls), value


def _defined(lineage: Iterable[Any], name: str) -> Iterator[Any]:
    """FastDeploy's functions of a name, behind decorators and behind ours: of bases, too, where they run."""
    for one in lineage:
        value = getattr(one, "__dict__", {}).get(name)
        value = getattr(value, "original", getattr(value, "fget", getattr(value, "__func__", value)))
        if not callable(value):  # data, which is no text
            continue
        yield (value := inspect.unwrap(value))
        if "__class__" not in getattr(getattr(value, "__code__", None), "co_freevars", ()):
            return
