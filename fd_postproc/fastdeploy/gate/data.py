"""Data of FastDeploy that ours restates, as texts that are the same from a source and from what is loaded.

An enum is its bases and its members by name; another class its bases and the plain values in its body,
without a dataclass's fields, which are read where they are used; a constant its ``repr``.
"""

from __future__ import annotations

import ast
import enum
from hashlib import blake2b
from typing import Any

MARK = "="
ABSENT = "not there"
_PLAIN = (int, float, str, bytes, bool, type(None))


def digest_of(text: str) -> str:
    """The digest of such a text."""
    return blake2b(f"data\0{text}".encode(), digest_size=5).hexdigest()


def value_in(module: Any, name: str) -> str:
    """The text of a name of a loaded module."""
    if not hasattr(module, name):
        return ABSENT
    value = getattr(module, name)
    if not isinstance(value, type):
        return repr(value)
    bases = [one.__name__ for one in value.__bases__ if one is not object]
    if issubclass(value, enum.Enum):
        return _text("enum", bases, {name: one.value for name, one in value.__members__.items()})
    fields = getattr(value, "__dataclass_fields__", {})
    body = {name: one for name, one in vars(value).items() if name not in fields and _is_plain(one)}
    return _text("class", bases, body)


def value_of_source(tree: ast.Module, name: str) -> str:
    """The text of a name in a module's source."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _class_text(node)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(getattr(one, "id", None) == name for one in targets):
            return repr(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    return ABSENT


def _class_text(node: ast.ClassDef) -> str:
    bases = [one for one in map(_last_name, node.bases) if one != "object"]
    is_dataclass = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    body: dict[str, Any] = {}
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
        body |= {each.id: value for each in targets if isinstance(each, ast.Name) and _is_plain(value)}
    return _text("enum" if "Enum" in "".join(bases) else "class", bases, body)


def _last_name(node: Any) -> str:
    if isinstance(node, ast.Subscript):
        node = node.value
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def _text(kind: str, bases: list[str], body: dict[str, Any]) -> str:
    values = ", ".join(f"{name}={value!r}" for name, value in sorted(body.items()) if name[:2] != "__")
    return f"{kind}({', '.join(bases)}): {values}"
