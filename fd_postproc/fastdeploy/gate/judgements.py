"""Decides for each seam whether FastDeploy's code is known, by the statements of its functions.

A row of `seams.SEAMS` names the functions whose text ours stands for.  What is *called* by such a name is
judged (`called`): a wrapper of another program's is new code.  A function is read, not run: every statement,
under its parent's header and after the statement before it, has to be recorded.  Left out are log calls and
what only they read, docstrings, annotations, and imports of ops.  Data that ours restates, as an enum's
members, are compared by their value (`data`).  What runs of a known function is compared with its
file.

::

    verdict = gate.judge("delivery")
    verdict.reason    # None: everything is known
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .called import is_code_of, is_ours, layers_of, parts_of, place_of
from .data import MARK, digest_of, value_in
from .record import Record, read, signs_of
from .seams import PACKAGE, SEAMS, NotPlain, Seam
from .statements import Statement, file_of, runs_its_text, statements_of, whole_of


class NewCode(NamedTuple):
    """The first unknown statement of a function, or its wrapper; line 0: there is no source."""

    function: str
    file: str
    line: int
    change: str = ""  # what another program has done to it: "wrapped by traced"

    @property
    def text(self) -> str:
        """Function, file and line in words."""
        if self.change:
            place = f" (line {self.line} of {self.file})" if self.line else ""
            return f"{self.function} is {self.change}{place}"
        if not self.line:
            return f"{self.function} cannot be read: {self.file}"
        return f"{self.function} has new code in line {self.line} of {self.file}"


class Verdict(NamedTuple):
    """What the gate says of a seam.

    Attributes
    ----------
    unknown : tuple of NewCode
        One for each function with a statement that is not recorded.
    facts : dict of str to bool
        Attributes that our class needs: what the recorded versions with these statements do.
    """

    unknown: tuple[NewCode, ...]
    facts: dict[str, bool]

    @property
    def reason(self) -> str | None:
        """Why FastDeploy's own stays, in words; None: its code is known."""
        return "; ".join(dict.fromkeys(one.text for one in self.unknown)) or None


class Judgement(NamedTuple):
    """A verdict, and what it is of."""

    row: Seam
    place: Any
    known: Record
    without: tuple[str, ...]
    what_runs: list[Any]
    verdict: Verdict

    def is_of(self, what_runs: list[Any]) -> bool:
        """Whether these objects, and no others, ran when it was made."""
        return len(what_runs) == len(self.what_runs) and all(map(operator.is_, what_runs, self.what_runs))


class Gate:
    """What a process has found out of FastDeploy's code, and what it uses there: `gate` is the only one.

    `used` is set by `put_in`, and by `events.gauges.report` where a side has started or ours has failed.
    """

    def __init__(self) -> None:
        self._judgements: dict[tuple[str, str, str], Judgement] = {}
        self.used: dict[str, bool] = {}  # by seam: whether ours is used, as far as is known yet

    @functools.cached_property
    def record(self) -> dict[str, Record]:
        """What is known of each seam."""
        return read()

    def judge(self, seam: str, place: Any = None, without: Collection[str] = ()) -> Verdict:
        """Compare the functions that a seam's row names with the record.

        Parameters
        ----------
        seam : str
            A name of `seams.SEAMS`.
        place : module or type, optional
            One of the row's modules, or the class that is asked in place of the one that the row names.
            Default: the first of the row's modules that is loaded.
        without : collection of str
            Functions that do not run here.  Known statements of theirs still say which version it is.
        """
        row, known = SEAMS[seam], self.record.get(seam, {})
        found = [*functions_of(row, place, known)]
        if row.functions and all(name in without for name, _ in found):
            lacks = NewCode(row.name, f"this FastDeploy has none of {', '.join(row.functions)}", 0)
            return Verdict((lacks,), {})
        code = compared(found, known, row.facts, without)
        verdict = code._replace(unknown=(*code.unknown, *_new_data(row, known)))
        key = seam, getattr(place, "__module__", ""), getattr(place, "__qualname__", "")
        self._judgements[key] = Judgement(row, place, known, (*without,), _what_runs(found), verdict)
        return verdict

    def why_left(self, taken: dict[str, bool]) -> dict[str, str]:
        """Why paths are left to FastDeploy, by name: which of its functions has new code, and where."""
        judged = [(one.row.name, one.verdict.reason) for one in self._judgements.values()]
        return {name: reason for name, reason in judged if reason and not taken.get(name, True)}

    def put_in(self, row: Seam, module: Any) -> str | None:
        """Install our object in one of a row's modules whose code is known; return why FastDeploy's stays.

        Never raises.
        """
        self.used.setdefault(row.name, False)  # another of its modules may have ours
        try:
            reason = self.judge(row.name, module).reason
            if reason:
                return reason
            row.maker()(module)
        except (NotPlain, AttributeError, KeyError) as refusal:
            return str(refusal) or type(refusal).__name__
        except Exception as error:
            return f"cannot tell: {type(error).__name__}: {error}"
        self.used[row.name] = True
        return None

    def changes(self, side: str, **objects: Any) -> dict[str, list[NewCode]]:
        """What was wrapped or replaced since `judge` found it known, by seam.

        Seams are the `side`'s that are not left.  In `objects` are FastDeploy's objects by seam, on which
        methods may be set.
        """
        found: dict[str, list[NewCode]] = {}
        for held in list(self._judgements.values()):
            row = held.row
            if row.side == side and self.used.get(row.name, True) and not held.verdict.unknown:
                now = [*functions_of(row, held.place, held.known)]
                if not held.is_of(_what_runs(now)):
                    unknown = compared(now, held.known, row.facts, held.without).unknown
                    found.setdefault(row.name, []).extend(unknown)
        for seam, one in objects.items():
            set_here = getattr(one, "__dict__", {})
            for name in SEAMS[seam].functions if self.used.get(seam, True) else ():
                attribute = name.rpartition(".")[2]
                if attribute in set_here and not is_ours(set_here[attribute]):
                    by, file, line = place_of(set_here[attribute])
                    change = NewCode(name, file, line, f"replaced on an object by {by}")
                    found.setdefault(seam, []).append(change)
        return {seam: changed for seam, changed in found.items() if changed}

    def is_wrapped(self, side: str) -> bool:
        """Whether a wrapper of another program's, or other data, is why a seam of a side is not ours."""
        left = (one for one in self._judgements.values() if not self.used.get(one.row.name, False))
        return any(one.row.side == side and any(e.change for e in one.verdict.unknown) for one in left)


def _what_runs(found: Iterable[tuple[str, Any]]) -> list[Any]:
    """The objects that named functions consist of: each can be set."""
    objects: list[Any] = []
    for _, one in found:
        objects.append(one)
        if type(one) is types.FunctionType:
            objects += (one.__code__, one.__defaults__, one.__kwdefaults__)
    return objects


def compared(
    found: Iterable[tuple[str, Any]],
    known: Record,
    facts: Sequence[str] = (),
    without: Collection[str] = (),
) -> Verdict:
    """Compare named functions with what is recorded of a seam; those `without` are never unknown."""
    unknown, marks = [], set()
    for name, function in found:
        if isinstance(function, NewCode):
            unknown.append(function)
            continue
        recorded = known.get(name, {})
        if (text := whole_of(function)) in recorded:
            marks.add(recorded[text])
            statements: Sequence[Statement] = ()
        elif not (statements := statements_of(function)):
            unknown.append(NewCode(name, "its source is not there", 0))
            continue
        new = next((one for one in statements if one.digest not in recorded), None)
        if new is not None:
            unknown.append(NewCode(name, file_of(function), new.line))
        elif not runs_its_text(function):
            line = function.__code__.co_firstlineno
            unknown.append(NewCode(name, file_of(function), line, "not what its file says: other code runs"))
        marks |= {recorded.get(one.digest, "") for one in statements}
    unknown = [one for one in unknown if one.function not in without]
    signs = signs_of(marks, facts)
    for fact, both in signs.items() if not unknown else ():
        if len(both) != 1:
            why = "joins statements of versions that do different things" if both else "tells no version"
            unknown.append(NewCode("the whole", f"it {why} ({fact})", 0))
    return Verdict(tuple(unknown), {fact: "+" in one for fact, one in signs.items()})


# ---- Which functions, and which data -----------------------------------------------------------------------


def functions_of(row: Seam, place: Any, recorded: Iterable[str] = ()) -> Iterator[tuple[str, Any]]:
    """What runs by the names of a row and the record, as far as this FastDeploy has them.

    A wrapper of another program's is a `NewCode`; what it wraps comes after it.
    """
    is_of_any = any(one.startswith("*.") for one in row.stands_for)  # each class that defines it itself
    for named in dict.fromkeys((*row.functions, *(one for one in recorded if one[0] != MARK))):
        where, owner, attribute = _parts(named)
        holder: Any = place or row.loaded()
        if where and (owner or not isinstance(holder, types.ModuleType) or attribute not in vars(holder)):
            holder = sys.modules.get(PACKAGE + where)  # nor was it imported by its name
        owners = {owner: holder}
        if owner == "*":
            own = [one for one in vars(holder).values() if isinstance(one, type)] if holder else []
            owners = {one.__name__: one for one in own if one.__module__ == holder.__name__}
        elif owner and not isinstance(holder, type):
            owners = {owner: getattr(holder, owner, None)}
        calls_outer = attribute in row.attributes
        for cls, one in owners.items():
            lineage = getattr(getattr(one, "stock", one), "__mro__", (one,))
            for value in _called(
                lineage[:1] if is_of_any else lineage, attribute, named.replace("*", cls), calls_outer
            ):
                yield named.replace("*", cls), value


@functools.cache
def _parts(named: str) -> tuple[str, str, str]:
    """Module, owner and attribute of a name; the same objects at each look: CPython caches keep new ones."""
    where, _, name = named.rpartition(":")
    owner, _, attribute = name.rpartition(".")
    return where, owner, attribute


def _called(lineage: Iterable[Any], name: str, shown: str, calls_outer: bool) -> Iterator[Any]:
    """What runs by a name: FastDeploy's functions, of bases, too, where they run, and others' wrappers."""
    for one in lineage:
        layers: list[Any] = []
        for part in parts_of(getattr(one, "__dict__", {}).get(name)):
            layers += (found := layers_of(part, calls_outer))
            is_code = [is_code_of(each, one) for each in found]
            for each, is_fastdeploys in zip(found, is_code, strict=True):
                yield each if is_fastdeploys else _wrapper(each, shown, any(is_code))
        if layers and not (
            type(layers[-1]) is types.FunctionType and "__class__" in layers[-1].__code__.co_freevars
        ):
            return


def _wrapper(wrapper: Any, name: str, wraps: bool) -> NewCode:
    by, file, line = place_of(wrapper)
    return NewCode(name, file, line, f"{'wrapped' if wraps else 'replaced'} by {by}")


def _new_data(row: Seam, known: Record) -> Iterator[NewCode]:
    """Data of a row that have another value than any that is recorded."""
    for name in row.data:
        where, _, attribute = name[1:].rpartition(":")
        module = sys.modules.get(PACKAGE + where)
        if module is not None and digest_of(value := value_in(module, attribute)) not in known.get(name, {}):
            file = getattr(module, "__file__", "") or ""
            yield NewCode(name[1:], file, 0, f"other data than is known here: {value}")


gate = Gate()
"""The judgements of this process."""
