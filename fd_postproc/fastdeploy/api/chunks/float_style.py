"""Finds how the installed pydantic prints floats."""

from __future__ import annotations

import importlib

from ._chunks import FloatStyle


def float_style() -> FloatStyle | None:
    """The style; None if it is not supported."""
    adapter = importlib.import_module("pydantic").TypeAdapter(float)
    return FloatStyle.of(lambda value: adapter.dump_json(value).decode())
