"""Reads the statements of a function from its source, each as a digest that is the same in every Python.

A digest is of a statement's header, its parents' headers, and the statement before it.  Left out are log
calls and what only they read, docstrings, annotations, and imports of ops.  Of a function whose whole text is
known no statement is read, which costs twenty times as much.

What runs need not be what the file says: a file may have been put back at its old time and size, and Python
goes on with what it has compiled of another one.  So a known function's file is compiled once more
(`runs_its_text`).
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import os
import types
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

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
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields that may hold statements."""


class Statement(NamedTuple):
    """One statement of a function: its digest, and its line in the file."""

    digest: str
    line: int


def whole_of(function: Any) -> str:
    """The digest of a function's whole text; empty if its source cannot be read."""
    if type(function) is not types.FunctionType:
        return ""
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    return whole(lines, code.co_firstlineno, _last_line(code))


def whole(lines: list[str], first: int, last: int) -> str:
    """The digest of the text of a function: lines `first` to `last`, and what is deeper below them.

    The last line with bytecode may be above a closing bracket or in a string.  Then this text is no whole
    function, and only whole functions are recorded.
    """
    deeper = f"{_indentation(lines[first - 1])} " if first <= len(lines) else ""
    while last < len(lines) and (lines[last].isspace() or lines[last].startswith(deeper)):
        last += 1
    return digest("".join(lines[first - 1 : last]).rstrip())


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def statements_of(function: Any) -> tuple[Statement, ...]:
    """The statements of a function; empty if its source cannot be read."""
    return _statements(function, getattr(function, "__code__", None))  # which can be set


@functools.lru_cache(maxsize=256)
def _statements(function: Any, _: Any) -> tuple[Statement, ...]:
    return tuple(statements(node_of(function)))


def node_of(function: Any) -> ast.AST | None:
    """The syntax tree of a function alone; None if its source cannot be read."""
    if type(function) is not types.FunctionType:
        return None
    code = function.__code__
    lines, first = linecache.getlines(code.co_filename, function.__globals__), code.co_firstlineno - 1
    inner = bool(lines[first : first + 1]) and lines[first][:1].isspace()
    above = "\n" * (first - 1) + "if 1:\n" if inner else "\n" * first  # lines have the file's numbers
    for end in range(last := _last_line(code), min(last + 80, len(lines)) + 1):
        try:
            tree = ast.parse(above + "".join(lines[first:end]))
        except (SyntaxError, ValueError):
            continue
        node: Any = tree.body[0].body[0] if inner else tree.body[0]  # type: ignore[attr-defined]
        return node if getattr(node, "name", None) == code.co_name else None
    return None


def _last_line(code: types.CodeType) -> int:
    inner = [_last_line(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return max([code.co_firstlineno, *(line for *_, line in code.co_lines() if line), *inner])


_COMPARED = (
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags"),
    *("co_names", "co_varnames", "co_freevars", "co_cellvars"),
)
"""What makes two codes the same, besides constants and instructions; lines, columns and files do not."""
_LEFT_OUT = frozenset({"NOP", "GET_ITER", "EXTENDED_ARG"})
_CONSTANTS = (ast.Constant, ast.UnaryOp, ast.Tuple)


def runs_its_text(function: Any) -> bool:
    """Whether a function's code, and its parameters' default constants, are what its file says."""
    arguments = _arguments_of(function, function.__code__)
    if arguments is None:
        return False
    given, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    keywords = {
        one.arg: text for one, text in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if text
    }
    if len(given) != len(arguments.defaults) or named.keys() != keywords.keys():
        return False
    pairs = [*zip(arguments.defaults, given, strict=True), *((keywords[name], named[name]) for name in named)]
    return all(_may_be(text, value) for text, value in pairs)


def _may_be(text: ast.expr, value: Any) -> bool:
    """Whether a parameter's default may be a value: where its text is no constant, it may be any."""
    try:
        return not isinstance(text, _CONSTANTS) or _is_same(ast.literal_eval(text), value)
    except ValueError:
        return True


@functools.lru_cache(maxsize=256)
def _arguments_of(function: Any, code: types.CodeType) -> ast.arguments | None:
    """The parameters of a function in its file; None if its code is not what the file says."""
    lines = linecache.getlines(code.co_filename, function.__globals__)
    compiled = _compiled("".join(lines)).get((code.co_name, code.co_firstlineno), ())
    node: Any = node_of(function) if any(_is_same(code, one) for one in compiled) else None
    return None if node is None else node.args


@functools.lru_cache(maxsize=8)
def _compiled(text: str) -> dict[tuple[str, int], list[types.CodeType]]:
    """The codes of a file's functions by name and first line; none if it cannot be compiled."""
    found: dict[tuple[str, int], list[types.CodeType]] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the text: Python has given them when it was imported
            waiting = [compile(text, "", "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):
        return found
    for code in waiting:  # which grows
        inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
        for one in inner:
            found.setdefault((one.co_name, one.co_firstlineno), []).append(one)
        waiting += inner
    return found


def _is_same(one: Any, other: Any) -> bool:
    """Whether two codes or constants are the same; 1, 1.0 and True are not, nor are 0.0 and -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, types.CodeType):
        same = all(getattr(one, name) == getattr(other, name) for name in _COMPARED)
        # A property gives the code as it was before Python or a tracer has adapted it.
        return (
            same
            and (one.co_code == other.co_code or _steps_of(one) == _steps_of(other))
            and _is_same(one.co_consts, other.co_consts)
        )
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, frozenset):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return repr(one) == repr(other)


def _steps_of(code: types.CodeType) -> list[tuple[int, int | None]]:
    """What an earlier patch release of this Python has compiled alike: a file of its is used by later ones.

    Left out are where jumps lead, and what such releases put elsewhere, as 3.13.1 did with ``GET_ITER``.
    """
    jumps = {*dis.hasjrel, *dis.hasjabs}
    steps = dis.get_instructions(code)
    return [
        (one.opcode, None if one.opcode in jumps else one.arg) for one in steps if one.opname not in _LEFT_OUT
    ]


def file_of(function: Any) -> str:
    """The file of a function, from the package's folder on."""
    file: str = function.__code__.co_filename
    return file[file.rfind(f"{os.sep}fastdeploy{os.sep}") + 1 :]


def statements(node: Any) -> list[Statement]:
    """The statements of a function; empty without one."""
    if node is None:
        return []
    return list(_walk([bare(node)], "", 0))


def bare(node: Any) -> Any:
    """A function without what only a reader or a log sees."""
    reads: Counter[str] = Counter()
    _count(node, reads, 1)
    while _without_remarks(node, reads):
        pass
    return node


def parts_of(one: Any, above: str) -> tuple[str, str, list[tuple[str, list[Any]]]]:
    """Header of a statement, the digest of its place without the one before it, and its blocks."""
    blocks = _blocks_of(one)
    header = _dumped(one, {name for name, _ in blocks})
    return header, digest(above, header, *(name for name, _ in blocks)), blocks


def _walk(body: list[Any], above: str, line: int) -> Iterator[Statement]:
    before = ""
    for one in body:
        header, chain, blocks = parts_of(one, above)
        line = getattr(one, "lineno", line)
        yield Statement(digest(chain, before), line)
        for name, value in blocks:
            yield from _walk(value, digest(chain, name), line)
        before = header
    yield Statement(digest(above, before, "end"), line)


def _blocks_of(node: Any) -> list[tuple[str, list[Any]]]:
    """The lists of statements in a node, in the order of its fields."""
    named = [(name, getattr(node, name)) for name in node._fields if name in _BLOCKS]
    return [(name, value) for name, value in named if isinstance(value, list) and value]


def digest(*texts: str) -> str:
    """The digest of texts in a row."""
    return blake2b("\0".join(texts).encode(), digest_size=5).hexdigest()


def _dumped(node: Any, without: Iterable[str] = ()) -> str:
    """Text of a syntax tree that is the same in each version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(_dumped, node))}]"
    names = getattr(node, "_fields", None)
    if names is None:
        return repr(node)
    fields = []
    for name in names:
        if name not in _SKIPPED and name not in without:
            value = getattr(node, name, None)
            if value is not None and value != []:
                fields.append(f"{name}={_dumped(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _without_remarks(node: Any, reads: Counter[str]) -> bool:
    """Remove what only a reader or a log sees, and what it reads; return whether there was any."""
    changed = False
    for name, value in _blocks_of(node):
        kept = []
        for each in map(_plain, value):
            changed |= _without_remarks(each, reads)
            if _is_remark(each, reads):
                _count(each, reads, -1)
            else:
                kept.append(each)
        changed |= len(kept) < len(value)
        setattr(node, name, kept)
    return changed


def _count(node: Any, reads: Counter[str], by: int) -> None:
    """Count the names that a statement reads."""
    kind = type(node)
    if kind is ast.Name:
        if not isinstance(node.ctx, ast.Store):
            reads[node.id] += by
    elif kind is ast.Global or kind is ast.Nonlocal:
        for name in node.names:
            reads[name] += by
    else:
        for name in node._fields:
            value = getattr(node, name, None)
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, ast.AST):
                    _count(one, reads, by)


def _plain(node: Any) -> Any:
    """A statement without its annotation."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return ast.copy_location(ast.Assign([node.target], node.value), node)
    return node


def _is_remark(node: Any, reads: Counter[str]) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_log(node.value)
    if isinstance(node, ast.ImportFrom):
        return ".ops" in f".{node.module}" or {one.name for one in node.names} <= _LOG_HELPERS
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        unread = all(isinstance(one, ast.Name) and not reads[one.id] for one in targets)
        return unread and _is_harmless(node.value)
    if isinstance(node, ast.If):
        return not node.body and not node.orelse and _is_harmless(node.test)
    return isinstance(node, ast.Pass) or (isinstance(node, ast.AnnAssign) and node.value is None)


def _is_log(call: Any) -> bool:
    function = call.func if isinstance(call, ast.Call) else None
    if isinstance(function, ast.Attribute):
        is_logged = function.attr in _LOG_METHODS and "log" in _last_name(function.value)
    else:
        is_logged = _last_name(function) in _LOG_HELPERS
    return is_logged and all(map(_is_harmless, (*call.args, *(one.value for one in call.keywords))))


def _is_harmless(node: ast.AST) -> bool:
    return not any(
        isinstance(one, _EFFECTS) or (isinstance(one, ast.Call) and _last_name(one.func) not in _HARMLESS)
        for one in ast.walk(node)
    )


def _last_name(node: Any) -> str:
    name: str = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name
