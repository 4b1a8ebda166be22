"""This module builds the stand-in of a pydantic model's class from the fields of that class."""

from __future__ import annotations

import importlib
import types
import typing
from typing import Any

from ...notes import NotPlain
from . import whole_answers
from ._chunks import Field, FloatStyle, Models

_PLAIN_CONFIG = frozenset({"arbitrary_types_allowed"})
_HOOKS = (
    *("validators", "field_validators", "root_validators", "field_serializers", "model_serializers"),
    *("model_validators", "computed_fields"),
)
_METHODS = (*("__init__", "__setattr__", "__getattr__", "model_dump_json", "model_dump", "model_post_init"),)


_NAMED_ELSEWHERE = ("alias", "validation_alias", "serialization_alias", "exclude")


def float_style() -> FloatStyle | None:
    """How the installed pydantic prints floats; None if the style is not supported."""
    adapter = importlib.import_module("pydantic").TypeAdapter(float)
    return FloatStyle.of(lambda value: adapter.dump_json(value).decode())


def models_of(cls: Any, stood_in: dict[Any, Any], style: FloatStyle) -> Models:
    """Build the stand-in of a class.

    Parameters
    ----------
    cls : type
        A subclass of ``pydantic.BaseModel``.
    stood_in : dict
        Classes that have stand-ins: instances of theirs may be what a field of this one holds.
    style : FloatStyle
        How pydantic prints floats.

    Raises
    ------
    NotPlain
        With the reason.
    """
    cls.model_rebuild()
    check_plain(cls)
    models = Models(
        cls, [_field(cls, name, info, stood_in) for name, info in cls.model_fields.items()], style
    )
    if cls.__name__ in whole_answers.NAMES:
        models.answer = whole_answers.answer_class(models)
    return models


def check_plain(cls: Any) -> None:
    """Raise NotPlain for a class that does more than hold fields."""
    more = sorted(set(cls.model_config) - _PLAIN_CONFIG)
    if more:
        raise NotPlain(f"{cls.__name__} is configured: {', '.join(more)}")
    for kind in _HOOKS:
        if getattr(cls.__pydantic_decorators__, kind, None):
            raise NotPlain(f"{cls.__name__} has {kind.replace('_', ' ')}")
    base = importlib.import_module("pydantic").BaseModel
    for name in _METHODS:
        if getattr(cls, name, None) is not getattr(base, name, None):
            raise NotPlain(f"{cls.__name__} has its own {name}")


def _field(cls: Any, name: str, info: Any, stood_in: dict[Any, Any]) -> Field:
    if any(getattr(info, name, None) for name in _NAMED_ELSEWHERE):
        raise NotPlain(f"{cls.__name__}.{name} goes by another name, or is left out")
    inner, optional = _without_none(info.annotation)
    kind, more = _kind(inner, stood_in)
    if info.metadata:  # constraints
        kind, more = "other", None
    if kind == "other":
        pydantic = importlib.import_module("pydantic")
        whole: Any = typing.Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        more = pydantic.TypeAdapter(whole, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
    default = _default(info)
    return Field(name, kind, optional, default, info.is_required(), more)


def _default(info: Any) -> Any:
    """The default if it is a constant of a supported type, otherwise ``...``."""
    if info.is_required() or info.default_factory is not None:
        return ...
    return info.default if info.default is None or type(info.default) in (str, int) else ...


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """An annotation without None, and whether None was in it."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = typing.get_args(annotation)
        others = [member for member in members if member is not type(None)]
        if len(others) == 1:
            return _without_none(others[0])[0], True
        return annotation, type(None) in members
    return annotation, False


def _kind(annotation: Any, stood_in: dict[Any, Any]) -> tuple[str, Any]:
    """The name that `Field` has for a type, and the details that it needs."""
    simple = {str: "str", int: "int", float: "float"}.get(annotation)
    if simple:
        return simple, None
    if annotation in stood_in:
        return "model", annotation
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list and inside == (int,):
        return "ints", None
    if origin is list and inside in ((list[int],), (typing.List[int],)):  # noqa: UP006
        return "masks", None
    if origin is list and len(inside) == 1 and inside[0] in stood_in:
        return "models", inside[0]
    if origin is typing.Literal and all(type(value) is str for value in inside):
        return "choice", frozenset(inside)
    return "other", None
