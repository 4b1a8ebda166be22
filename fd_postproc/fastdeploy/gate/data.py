"""Data of FastDeploy that ours restates, as texts that are the same from a source and from what is loaded.

An enum is its bases and its members by name; another class its bases and the plain values in its body,
without a dataclass's fields, which are read where they are used; a constant its ``repr``.
"""

from __future__ import annotations

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
        return text_of("enum", bases, {name: one.value for name, one in value.__members__.items()})
    fields = getattr(value, "__dataclass_fields__", {})
    body = {name: one for name, one in vars(value).items() if name not in fields and is_plain(one)}
    return text_of("class", bases, body)


def is_plain(value: Any) -> bool:
    """Whether a value's ``repr`` says all of it."""
    return type(value) in _PLAIN or (type(value) is tuple and all(map(is_plain, value)))


def text_of(kind: str, bases: list[str], body: dict[str, Any]) -> str:
    """The text of a class, by the names of its bases and the values in its body."""
    values = ", ".join(f"{name}={value!r}" for name, value in sorted(body.items()) if name[:2] != "__")
    return f"{kind}({', '.join(bases)}): {values}"
