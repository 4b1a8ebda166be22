"""The benchmarks' own extensions, built when they are first asked for: import them from here."""

from .extensions import ensure

ensure()

from . import _floor  # noqa: E402
from ._objects import Objects  # noqa: E402

__all__ = ["Objects", "_floor"]
