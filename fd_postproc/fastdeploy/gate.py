"""Decides for each seam whether FastDeploy's code is known, by the statements of its functions.

A row of `seams.SEAMS` names the functions whose text ours stands for.  Each is read, never run: every
statement, under its parent's header and after the statement before it, has to be recorded.  Left out are log
calls and what only they read, docstrings, annotations, and imports of ops.

::

    verdict = judge("delivery")
    verdict.reason    # None: everything is known

The record, ``data/fastdeploy_code.json``, holds digests only.  `python -m tools.accept` adds to it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.resources
import inspect
import json
import linecache
import os
import sys
import types
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

from ..environment import KNOWN
from .seams import PACKAGE, SEAMS, Seam

_LOG_METHODS = frozenset({"debug", "info", "warning", "warn", "error", "exception", "critical", "log"})
_LOG_HELPERS = frozenset({"log_request", "log_request_error", "RequestLogLevel"})
_HARMLESS = frozenset(
    {
        *("len", "str", "repr", "int", "float", "round", "sum", "list", "dict", "sorted", "type", "getattr"),
        *("isinstance", "hasattr", "format_exc", "get", "items", "keys", "values", "join", "time", "info"),
        *("is_cuda", "is_xpu", "is_iluvatar", "is_gcu", "is_intel_hpu", "is_maca", "is_dcu", "is_npu"),
    }
)
"""Calls that change nothing: a log line that makes others stays in the text."""
_EFFECTS = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
_SKIPPED = frozenset({"ctx", "kind", "type_comment", "type_params", "annotation", "returns"})
_BLOCKS = (ast.stmt, ast.ExceptHandler, getattr(ast, "match_case", ast.ExceptHandler))


class Statement(NamedTuple):
    """One statement of a function: its digest, and its line in the file."""

    digest: str
    line: int


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
        What the recorded versions with these statements are known to do.
    """

    unknown: tuple[Unknown, ...]
    facts: dict[str, bool]

    @property
    def reason(self) -> str | None:
        """Why FastDeploy's own stays, in words; None: its code is known."""
        return "; ".join(one.text for one in self.unknown) or None


def judge(seam: str, module: Any = None) -> Verdict:
    """Compare the functions that a seam's row names with the record.

    Parameters
    ----------
    seam : str
        A name of `seams.SEAMS`.
    module : module, optional
        The one of the row's modules that is looked at.  Default: the first that is loaded.
    """
    row, known = SEAMS[seam], record()
    unknown, seen = [], {}
    for name, function in functions_of(row, module, known.get(seam, {})):
        told = statements(node_of(function))
        recorded = known.get(seam, {}).get(name, {})
        new = [one for one in told if one.digest not in recorded]
        if not told:
            unknown.append(Unknown(name, "its source is not there", 0))
        elif new:
            unknown.append(Unknown(name, _file_of(function), new[0].line))
        seen.update({one.digest: recorded.get(one.digest, "") for one in told})
    if not seen and not unknown and row.stands_for:
        unknown.append(Unknown(row.own, f"none of {', '.join(row.stands_for)} is there", 0))
    marks = {mark for mark in seen.values() if mark}
    if len(marks) > 1:
        unknown.append(Unknown(row.own, "it joins statements of versions that do different things", 0))
    return Verdict(tuple(unknown), {"makes_empty_results": "+" in marks})


# ---- The record --------------------------------------------------------------------------------------------


@functools.cache
def record() -> dict[str, dict[str, dict[str, str]]]:
    """By seam and function, the digests of known statements, each with its mark.

    A statement that only versions with results without tokens have is marked ``+``, one that only others have
    ``-``.
    """
    file = importlib.resources.files("fd_postproc.data").joinpath("fastdeploy_code.json")
    known = unpacked(json.loads(file.read_text()))
    if KNOWN.text:
        try:
            with open(KNOWN.text) as own:
                known = joined(known, unpacked(json.load(own)))
        except (OSError, ValueError, AttributeError, TypeError) as error:
            sys.stderr.write(f"fd_postproc: {KNOWN}={KNOWN.text} cannot be read: {error}\n")
    return known


def unpacked(told: dict[str, dict[str, str]]) -> dict[str, dict[str, dict[str, str]]]:
    """A record as it is used, from what its file holds."""
    return {
        seam: {
            name: {one.rstrip("+-"): one[len(one.rstrip("+-")) :] for one in text.split()}
            for name, text in functions.items()
        }
        for seam, functions in told.items()
    }


def joined(*records: dict[str, dict[str, dict[str, str]]]) -> dict[str, dict[str, dict[str, str]]]:
    """All that several records know; a statement with both marks, or with none, has none."""
    union: dict[str, dict[str, dict[str, str]]] = {}
    for told in records:
        for seam, functions in told.items():
            for name, digests in functions.items():
                into = union.setdefault(seam, {}).setdefault(name, {})
                for digest, mark in digests.items():
                    into[digest] = mark if into.get(digest, mark) == mark else ""
    return union


# ---- Which functions ---------------------------------------------------------------------------------------


def functions_of(row: Seam, module: Any, recorded: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The functions that a row and the record name, as far as this FastDeploy has them."""
    for place in dict.fromkeys((*row.stands_for, *recorded)):
        where, colon, name = place.rpartition(":")
        holder: Any = sys.modules.get(PACKAGE + where) if colon else module or row.loaded()
        if holder is None:
            continue
        owner, dot, attribute = name.rpartition(".")
        owners = _owners(holder, owner, attribute) if dot else [("", holder)]
        for cls, one in owners:
            found = _own(vars(one).get(attribute))
            if found is not None:
                yield place.replace("*", cls), found


def _owners(module: Any, name: str, attribute: str) -> list[tuple[str, Any]]:
    """Classes of a module that have a method: one by its name, or each that defines it."""
    if name == "*":
        own = [one for one in vars(module).values() if isinstance(one, type)]
        return [(one.__name__, one) for one in own if one.__module__ == module.__name__]
    cls = getattr(module, name, None)
    lineage = getattr(getattr(cls, "stock", cls), "__mro__", ())
    return [(name, one) for one in lineage if attribute in vars(one)][:1]


def _own(value: Any) -> Any:
    """FastDeploy's function behind decorators, and behind ours."""
    value = getattr(value, "original", getattr(value, "fget", getattr(value, "__func__", value)))
    return value if value is None else inspect.unwrap(value)


# ---- Their statements --------------------------------------------------------------------------------------


def node_of(function: Any) -> ast.AST | None:
    """The syntax tree of a function alone; None if its source cannot be read."""
    if not isinstance(function, types.FunctionType):
        return None
    code = function.__code__
    lines, first = linecache.getlines(code.co_filename, function.__globals__), code.co_firstlineno - 1
    inner = "if 1:\n" if lines[first : first + 1] and lines[first][:1].isspace() else ""
    for end in range(last := _last_line(code), min(last + 80, len(lines)) + 1):
        try:
            tree = ast.parse(inner + "".join(lines[first:end]))
        except (SyntaxError, ValueError):
            continue
        node: Any = tree.body[0].body[0] if inner else tree.body[0]  # type: ignore[attr-defined]
        if getattr(node, "name", None) != code.co_name:
            return None
        return ast.increment_lineno(node, first - bool(inner))
    return None


def _last_line(code: types.CodeType) -> int:
    inner = [_last_line(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return max([code.co_firstlineno, *(line for *_, line in code.co_lines() if line), *inner])


def _file_of(function: Any) -> str:
    file: str = function.__code__.co_filename
    return os.path.join(PACKAGE[:-1], file.rpartition(f"{os.sep}{PACKAGE[:-1]}{os.sep}")[2])


def statements(node: Any) -> list[Statement]:
    """The statements of a function; empty without one."""
    if node is None:
        return []
    for one in list(ast.walk(node)):
        for name, value in ast.iter_fields(one):
            if _is_block(value):
                setattr(one, name, [_plain(each) for each in value])
    while _without_remarks(node):
        pass
    return list(_walk([node], "", 0))


def _walk(body: list[Any], above: str, line: int) -> Iterator[Statement]:
    before = ""
    for one in body:
        blocks = [(name, value) for name, value in ast.iter_fields(one) if _is_block(value)]
        header = _dumped(one, {name for name, _ in blocks})
        chain = _digest(above, header, *(name for name, _ in blocks))
        line = getattr(one, "lineno", line)
        yield Statement(_digest(chain, before), line)
        for name, value in blocks:
            yield from _walk(value, _digest(chain, name), line)
        before = header
    yield Statement(_digest(above, before, "end"), line)


def _is_block(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], _BLOCKS)


def _digest(*texts: str) -> str:
    return blake2b("\0".join(texts).encode(), digest_size=5).hexdigest()


def _dumped(node: Any, without: Iterable[str] = ()) -> str:
    """Text of a syntax tree that is the same in each version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(_dumped, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = (
        f"{name}={_dumped(value)}"
        for name, value in ast.iter_fields(node)
        if name not in _SKIPPED and name not in without and value is not None and value != []
    )
    return f"{type(node).__name__}({','.join(fields)})"


def _without_remarks(node: Any) -> bool:
    """Remove what only a reader or a log sees; return whether there was any."""
    read = {
        one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Store)
    }
    for one in ast.walk(node):
        if isinstance(one, (ast.Global, ast.Nonlocal)):
            read |= {*one.names}
    changed = False
    for one in list(ast.walk(node)):
        for name, value in ast.iter_fields(one):
            if _is_block(value):
                kept = [each for each in value if not _is_remark(each, read)]
                changed |= len(kept) < len(value)
                setattr(one, name, kept)
    return changed


def _plain(node: Any) -> Any:
    """A statement without its annotation."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return ast.copy_location(ast.Assign([node.target], node.value), node)
    return node


def _is_remark(node: Any, read: set[str]) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_log(node.value)
    if isinstance(node, ast.ImportFrom):
        return ".ops" in f".{node.module}" or {one.name for one in node.names} <= _LOG_HELPERS
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        unread = all(isinstance(one, ast.Name) and one.id not in read for one in targets)
        return unread and _is_harmless(node.value)
    if isinstance(node, ast.If):
        return not node.body and not node.orelse and _is_harmless(node.test)
    return isinstance(node, ast.Pass) or (isinstance(node, ast.AnnAssign) and node.value is None)


def _is_log(call: Any) -> bool:
    function = call.func if isinstance(call, ast.Call) else None
    if isinstance(function, ast.Attribute):
        told = function.attr in _LOG_METHODS and "log" in _last_name(function.value)
    else:
        told = _last_name(function) in _LOG_HELPERS
    return told and all(map(_is_harmless, (*call.args, *(one.value for one in call.keywords))))


def _is_harmless(node: ast.AST) -> bool:
    return not any(
        isinstance(one, _EFFECTS) or (isinstance(one, ast.Call) and _last_name(one.func) not in _HARMLESS)
        for one in ast.walk(node)
    )


def _last_name(node: Any) -> str:
    name: str = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name
