"""The benchmarks' own extension, built when it is first asked for: import it from here."""

from .extensions import ensure

ensure()

from . import _floor  # noqa: E402

__all__ = ["_floor"]
