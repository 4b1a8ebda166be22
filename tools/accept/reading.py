"""The functions of a source tree that the gate reads, without importing the tree."""

import ast
import copy
import functools
import linecache
import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from fd_postproc.fastdeploy.gate.data import ABSENT, MARK, digest_of, is_plain, text_of
from fd_postproc.fastdeploy.gate.seams import PACKAGE, SEAMS
from fd_postproc.fastdeploy.gate.statements import Statement, bare, digest, parts_of, statements, whole

OURS = Path(__file__).resolve().parents[2] / "fd_postproc" / "fastdeploy" / "engine"
PROCESSOR, PARSERS = "token processor", "api parsers"
FOLDERS = ("fastdeploy/reasoning", "fastdeploy/entrypoints/openai/tool_parsers")
STREAMED = {"extract_reasoning_content_streaming", "extract_tool_calls_streaming"}


class Found(NamedTuple):
    """One function that a seam's row names, in a tree."""

    seam: str
    name: str
    file: Path
    node: ast.AST

    @property
    def statements(self) -> list[Statement]:
        """Its statements."""
        return statements(copy.deepcopy(self.node))

    def new_lines(self, known: Collection[str]) -> list[tuple[int, int]]:
        """First and last line of each statement that is not among known digests."""
        return new_lines(copy.deepcopy(self.node), known)

    @property
    def whole(self) -> str:
        """The digest of its text."""
        first = min(one.lineno for one in (self.node, *self.node.decorator_list))
        return whole(linecache.getlines(str(self.file)), first, self.node.end_lineno)


def functions(tree: Path, recorded: dict[str, dict[str, object]]) -> list[Found]:
    """All of a tree's functions that rows and a record name, and new helpers of the token processor's."""
    found = []
    for seam, row in SEAMS.items():
        for place in dict.fromkeys((*row.functions, *recorded.get(seam, ()))):
            if place.startswith(MARK):
                continue
            where, colon, name = place.rpartition(":")
            modules = (PACKAGE + where,) if colon else row.modules
            for module in modules:
                file = _file(tree, module)
                if file is not None:
                    found += [
                        Found(seam, place.replace("*", cls), file, node) for cls, node in _nodes(file, name)
                    ]
    inner = _file(tree, PACKAGE + "scheduler.dp_scheduler")  # the data-parallel scheduler keeps a local one
    if inner is not None:
        puts = _nodes(inner, "DPLocalScheduler.put_results")
        found += [Found("wake-up", "LocalScheduler.put_results", inner, node) for _, node in puts]
    for (cls, _, file), methods in parsers(tree).items():
        found += [Found(PARSERS, f"{cls}.{name}", file, node) for name, node in methods.items()]
    return found + _helpers(found)


def data(tree: Path) -> dict[str, dict[str, str]]:
    """By seam and place, the digest of a tree's data that ours restates."""
    told: dict[str, dict[str, str]] = {}
    for seam, row in SEAMS.items():
        for place in row.data:
            where, _, name = place.removeprefix(MARK).rpartition(":")
            file = _file(tree, PACKAGE + where)
            try:
                value = ABSENT if file is None else value_of_source(_tree_of(file), name)
            except ValueError as error:  # computed, so never known
                value = str(error)
            told.setdefault(seam, {})[place] = digest_of(value)
    return told


def parsers(tree: Path) -> dict[tuple[str, str, Path], dict[str, ast.AST]]:
    """By class and streaming method, that method of a tree's parsers and those that it calls."""
    told = {}
    for file in sorted(one for folder in FOLDERS for one in (tree / folder).glob("*.py")):
        for cls in [one for one in _tree_of(file).body if isinstance(one, ast.ClassDef)]:
            own = {
                one.name: one for one in cls.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))
            }
            for start in own.keys() & STREAMED:
                reached, waiting = {}, [start]
                while waiting:
                    name = waiting.pop()
                    if name in own and name not in reached:
                        reached[name] = own[name]
                        waiting += asked_of_self(own[name])
                told[cls.name, start, file] = reached
    return told


def files() -> set[str]:
    """Names of the modules' files that rows name, without an ending."""
    places = {place.removeprefix(MARK) for row in SEAMS.values() for place in row.stands_for}
    named = {PACKAGE + place.rpartition(":")[0] for place in places if ":" in place}
    named |= {module for row in SEAMS.values() if row.stands_for for module in row.modules}
    return {one.replace(".", "/") for one in named}


def _file(tree: Path, module: str) -> Path | None:
    path = tree / module.replace(".", "/")
    return next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.exists()), None)


@functools.lru_cache(maxsize=64)
def _tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _nodes(file: Path, name: str) -> list[tuple[str, ast.AST]]:
    """The functions of a file by a place's name; ``*`` stands for every class."""
    owner, _, attribute = name.rpartition(".")
    module = _tree_of(file)
    if not owner:
        return [("", one) for one in module.body if _is_function(one, attribute)]
    classes = {one.name: one for one in module.body if isinstance(one, ast.ClassDef)}
    while owner in classes and not any(_is_function(one, attribute) for one in classes[owner].body):
        owner = next((one.id for one in classes[owner].bases if isinstance(one, ast.Name)), "")  # inherited
    named = [one for one in classes.values() if owner in ("*", one.name)]
    return [(one.name, each) for one in named for each in one.body if _is_function(each, attribute)]


def _is_function(node: ast.AST, name: str) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name


def _helpers(found: list[Found]) -> list[Found]:
    """Methods that only replaced methods of the token processor call: ours do not call them."""
    ours = called_by_ours()
    known = {one.name for one in found}
    todo, more = (
        [one for one in found if one.seam == PROCESSOR and one.name.startswith("TokenProcessor.")],
        [],
    )
    while todo:
        one = todo.pop()
        for name in asked_of_self(one.node):
            place = f"TokenProcessor.{name}"
            if name in ours or place in known:
                continue
            known.add(place)
            for _, node in _nodes(one.file, place):
                more.append(Found(PROCESSOR, place, one.file, node))
                todo.append(more[-1])
    return more


def asked_of_self(node: ast.AST) -> set[str]:
    return {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self"
    }


@functools.cache
def called_by_ours() -> frozenset[str]:
    """Methods of FastDeploy's that ours call: their text decides, whatever it is."""
    texts = "\n".join(one.read_text() for one in OURS.rglob("*.py"))
    return frozenset(
        {*re.findall(r"\b(?:self\.host|self|host)\.(\w+)", texts)} - {*re.findall(r"def (\w+)", texts)}
    )


def value_of_source(tree, name):
    """The text of a name in a module's source."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _class_text(node)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(getattr(one, "id", None) == name for one in targets):
            return repr(ast.literal_eval(node.value))
    return ABSENT


def _class_text(node):
    bases = [one for one in map(_last_name, node.bases) if one != "object"]
    is_dataclass = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    body = {}
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and is_dataclass:
            continue
        targets = one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]
        if not isinstance(one, (ast.Assign, ast.AnnAssign)) or one.value is None:
            continue
        try:
            value = ast.literal_eval(one.value)
        except ValueError:
            if _last_name(getattr(one.value, "func", None)) != "auto":
                continue
            value = len(body) + 1
        body |= {each.id: value for each in targets if isinstance(each, ast.Name) and is_plain(value)}
    return text_of("enum" if "Enum" in "".join(bases) else "class", bases, body)


def _last_name(node):
    if isinstance(node, ast.Subscript):
        node = node.value
    return str(getattr(node, "attr", getattr(node, "id", "")))


def new_lines(node, known):
    """First and last line of a function's statements that are not known.

    Left out are those that are new only by their place: in a new statement, or right after one that was put
    in.  After a changed one the next is shown, too: a digest does not say what came before it.
    """
    return list(_new_in([bare(node)], "", known))


def _new_in(body, above, known):
    before, is_new, any_new, lines = [""], False, False, (0, 0)
    for one in body:
        place = getattr(one, "pattern", one)  # of a case
        lines = place.lineno, getattr(one, "end_lineno", place.lineno)
        header, chain, blocks = parts_of(one, above)
        digests = [digest(chain, each) for each in before]
        was_new, is_new = is_new, digests[-1] not in known
        if is_new and not (was_new and any(each in known for each in digests)):
            yield lines
            any_new = True
        else:
            is_new = False
            inner = [each for name, value in blocks for each in _new_in(value, digest(chain, name), known)]
            any_new |= bool(inner)
            yield from inner
        before.append(header)
    if not any_new and body and digest(above, before[-1], "end") not in known:  # what came last is gone
        yield lines
