"""Reads what the replaced methods look at, and compares it with known FastDeploys.

Canned steps reach what they were made for.  A condition on an attribute that no known version has is not
reached, and ours would do something else there without a word.  So the code of the replaced methods is
read, never run: its words (attributes, globals, keywords, numbers, names in quotes) have to be known.  A
method with known words in another order is tried with more steps.

The recording, ``data/fastdeploy_code.json``, holds words and digests, no text; `record` adds to it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.resources
import json
import linecache
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..introspection import is_library, names_in, names_of

INLINED = (
    "_record_metrics",
    "_record_speculative_decoding_accept_num_per_request",
    "_is_decode_stage",
)
"""Methods that ours call, and that the batch loop also does itself."""

QUEUE = frozenset({"process_sampling_results", "_process_batch_output"})
SOCKET = frozenset(
    {
        *("process_sampling_results_use_zmq", "_process_batch_output_use_zmq"),
        *("_reschedule_preempt_task_use_zmq", "_process_per_token"),
    }
)
"""Methods by which steps come that are messages of a queue, or objects."""

_LOG_METHODS = frozenset({"debug", "info", "warning", "warn", "error", "exception", "critical", "log"})
_PLATFORM = "current_platform"
_OPS = "model_executor.ops"
_SKIPPED = frozenset(
    {"ctx", "kind", "type_comment", "type_params", "annotation", "returns", "decorator_list"}
)
_ORDINARY = frozenset({"0", "1", "-1", "2", "0.0", "1.0"}) | {
    *("len", "isinstance", "getattr", "hasattr", "Exception", "enumerate", "range", "bool", "int", "float"),
    *("str", "list", "dict", "set", "tuple"),
}
"""Words that say nothing: what they are used with does."""


@dataclass(frozen=True)
class CodeRead:
    """What is unknown about the replaced methods.

    Attributes
    ----------
    words : dict of str to tuple of str
        By method, the words that no known version has there.
    methods : tuple of str
        Methods whose code is not one of the known.
    """

    words: dict[str, tuple[str, ...]]
    methods: tuple[str, ...]

    @property
    def reason(self) -> str | None:
        """Why ours may differ; None: there is no unknown word."""
        if not self.words:
            return None
        told = "; ".join(f"{name} looks at {', '.join(words)}" for name, words in self.words.items())
        return f"{told}: no FastDeploy known to this release does, so what it changes cannot be tried"


def read(own: Sequence[type], stock: type, unused: frozenset[str] = SOCKET) -> CodeRead:
    """Compare FastDeploy's methods that ours replace with the recording.

    Parameters
    ----------
    own : sequence of type
        Our classes, without FastDeploy's among their bases.
    stock : type
        FastDeploy's class.
    unused : set of str
        Methods of FastDeploy's that do not run: those of the transport on which no steps come.
    """
    known, digests = _recording()
    words: dict[str, tuple[str, ...]] = {}
    methods = []
    ours = {name for cls in own for name in vars(cls)}
    for name, functions in _replaced(own, stock, unused).items():
        if name in known or name in ours:  # else a new helper: those who call it are asked for its words
            unknown = _unknown_words(functions, known.get(name, frozenset()), stock)
            if unknown:
                words[name] = tuple(sorted(unknown))
        if any(_digest(node) not in digests.get(name, ()) for node in map(_node_of, functions)):
            methods.append(name)
    return CodeRead(words, tuple(methods))


def unknown_words_of(name: str, function: Any) -> tuple[str, ...]:
    """Words of a single function, not of the class, that are not recorded under a name."""
    if not isinstance(function, types.FunctionType):
        return (type(function).__name__,)
    return tuple(sorted(_words_of(function) - _recording()[0].get(name, frozenset()) - _ORDINARY))


def record(own: Sequence[type], stock: type) -> dict[str, Any]:
    """Words and digests by method, as the recording has them."""
    told = {}
    for name, functions in _replaced(own, stock).items():
        words = set().union(*(_words_of(function) for function in functions))
        digests = sorted({_digest(_node_of(function)) for function in functions})
        told[name] = {"words": sorted(words), "digests": digests}
    return told


@functools.cache
def _recording() -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    file = importlib.resources.files("fd_postproc.data").joinpath("fastdeploy_code.json")
    told = json.loads(file.read_text())
    return (
        {name: frozenset(one["words"]) for name, one in told.items()},
        {name: frozenset(one["digests"]) for name, one in told.items()},
    )


@functools.cache
def _all_known() -> frozenset[str]:
    """All known words and log methods, for compiled code without a source."""
    return _LOG_METHODS.union(
        {"llm_logger", "spec_logger", "str", "traceback", "info"}, *_recording()[0].values()
    )


# ---- Which methods -----------------------------------------------------------------------------------------


def _replaced(
    own: Sequence[type], stock: type, left_out: frozenset[str] = frozenset()
) -> dict[str, list[types.FunctionType]]:
    """FastDeploy's methods that do not run because ours do; with those that only they call."""
    called = set().union(*(_names_called(cls) for cls in own))
    found: dict[str, list[types.FunctionType]] = {}
    todo = [name for cls in own for name, value in vars(cls).items() if _replaces(name, value)]
    todo += [*INLINED, *SOCKET]
    while todo:
        name = todo.pop()
        functions = [] if name in found or name in left_out else _functions_of(stock, name)
        if not functions:
            continue
        found[name] = functions
        for function in functions:
            todo += [word for word in _asked_of_self(function) if word not in called]
    return dict(sorted(found.items()))


def _replaces(name: str, value: Any) -> bool:
    """Whether it is a method that does not call the one that it overrides."""
    function = getattr(value, "__func__", value)
    if not isinstance(function, types.FunctionType):
        return False
    code = function.__code__  # FastDeploy's own is reached by super(), or as stock.NAME
    return "__class__" not in code.co_freevars and not {"stock", name} <= set(code.co_names)


def _names_called(cls: type) -> set[str]:
    """Names in a class's own methods."""
    return names_in(type(cls.__name__, (), {**_plain_methods(cls), "__module__": cls.__module__}))


def _plain_methods(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if not name.startswith("__")}


def _functions_of(stock: type, name: str) -> list[types.FunctionType]:
    """The method's functions: those that ``super()`` and decorators lead to are part of it."""
    found: list[types.FunctionType] = []
    for cls in stock.__mro__:
        if is_library(cls.__module__) or name not in vars(cls):
            continue
        value = vars(cls)[name]
        function = getattr(value, "fget", getattr(value, "__func__", value))
        if not isinstance(function, types.FunctionType):
            continue
        found += _with_wrapped(function)
        if "__class__" not in found[-1].__code__.co_freevars:
            break
    return found


def _with_wrapped(function: types.FunctionType) -> Iterator[types.FunctionType]:
    yield function
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:
            continue
        if isinstance(held, types.FunctionType) and held is not function:
            yield from _with_wrapped(held)


# ---- Their words -------------------------------------------------------------------------------------------


def _unknown_words(
    functions: Iterable[types.FunctionType], known: frozenset[str], stock: type, depth: int = 3
) -> set[str]:
    """Words that are not known; in the place of a new helper of FastDeploy's its own words."""
    unknown: set[str] = set()
    for function in functions:
        for word in _words_of(function) - (known if _node_of(function) else _all_known()) - _ORDINARY:
            is_own = word in _asked_of_self(function)
            helpers = _functions_of(stock, word) if is_own else _function_named(function, word)
            if helpers and depth and word not in _recording()[0]:
                unknown |= _unknown_words(helpers, known, stock, depth - 1)
            else:
                unknown.add(word)
    return unknown


def _function_named(user: types.FunctionType, word: str) -> list[types.FunctionType]:
    """FastDeploy's function that a function finds by a global name."""
    found = user.__globals__.get(word)
    if not isinstance(found, types.FunctionType) or is_library(found.__module__):
        return []
    return [found] if found.__module__.partition(".")[0] == user.__module__.partition(".")[0] else []


@functools.lru_cache(maxsize=512)
def _words_of(function: types.FunctionType) -> frozenset[str]:
    node = _node_of(function)
    if node is None:  # there is no source: what its compiled code mentions
        return frozenset(names_of(function.__code__))
    return frozenset(_words(node)).difference(function.__code__.co_freevars)


@functools.lru_cache(maxsize=512)
def _asked_of_self(function: types.FunctionType) -> frozenset[str]:
    """Attributes of the method's own object, and functions that are given it."""
    node = _node_of(function)
    if node is None:
        return _words_of(function)
    return frozenset(
        one.attr
        for one in _walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.value, ast.Name)
        and one.value.id in ("self", "cls")
    )


def _words(node: ast.AST) -> Iterator[str]:
    bound = _bound(node)
    for one in _walk(node):
        if isinstance(one, ast.Attribute):
            if not (isinstance(one.value, ast.Name) and one.value.id == _PLATFORM):
                yield one.attr
        elif isinstance(one, ast.Name):
            if one.id not in bound:
                yield one.id
        elif isinstance(one, ast.keyword):
            if one.arg:
                yield f"{one.arg}="
        elif isinstance(one, ast.ImportFrom):
            if _OPS not in (one.module or ""):
                yield from (alias.name for alias in one.names)
        elif isinstance(one, ast.Constant):
            yield from _constant(one.value)


def _constant(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.isidentifier():
        yield f"'{value}'"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield repr(value)


def _bound(node: ast.AST) -> set[str]:
    """Names of a function's own: arguments and what it assigns."""
    found = {
        one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)
    }
    found |= {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    for one in ast.walk(node):
        if isinstance(one, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in one.names}
        elif isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)):
            found.add(one.name or "")
    return found


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All of a function's nodes, without what only a reader or a log sees.

    Without what is the same in each call, too, which every step of the trial shows: ``Result(kind=3)``.
    A decorator's own code is read where it is.
    """
    for name, value in ast.iter_fields(node):
        if name in _SKIPPED:
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST) and not _is_remark(one) and not _is_fixed(one, node):
                yield one
                yield from _walk(one)


def _is_fixed(node: ast.AST, call: ast.AST) -> bool:
    """Whether it is a keyword with a constant, in a call of a class."""
    if not isinstance(node, ast.keyword) or not isinstance(node.value, ast.Constant):
        return False
    function = call.func if isinstance(call, ast.Call) else None
    return isinstance(function, (ast.Name, ast.Attribute)) and _last_name(function)[:1].isupper()


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_remark(node: ast.AST) -> bool:
    """Whether a statement is a text, or writes a log line."""
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True
    function = node.value.func if isinstance(node.value, ast.Call) else None
    if not isinstance(function, ast.Attribute) or function.attr not in _LOG_METHODS:
        return False
    return "log" in _last_name(function.value)


# ---- Their code --------------------------------------------------------------------------------------------


def _digest(node: Any) -> str:
    """Digest of a function's code, the same in each version of Python; empty without a source."""
    return hashlib.sha256(_dumped(node).encode()).hexdigest()[:12] if node is not None else ""


def _dumped(node: Any) -> str:
    if isinstance(node, list):
        return f"[{','.join(_dumped(one) for one in node if not _is_remark(one))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = (
        f"{name}={_dumped(value)}"
        for name, value in ast.iter_fields(node)
        if name not in _SKIPPED and value is not None and value != []
    )
    return f"{type(node).__name__}({','.join(fields)})"


def _node_of(function: types.FunctionType) -> Any:
    """The function's syntax tree; None if its source cannot be read."""
    code = function.__code__
    return _functions_in(code.co_filename, function.__module__).get((code.co_name, code.co_firstlineno))


@functools.lru_cache(maxsize=64)
def _functions_in(filename: str, module: str) -> dict[tuple[str, int], ast.AST]:
    """The functions of a file by name and first line, decorators included."""
    try:
        space = vars(sys.modules[module]) if module in sys.modules else None
        tree = ast.parse("".join(linecache.getlines(filename, space)))
    except (SyntaxError, ValueError):
        return {}
    return {
        (one.name, min([one.lineno, *(each.lineno for each in one.decorator_list)])): one
        for one in ast.walk(tree)
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
