"""Pooling parameters; the token processor only asks whether there are any."""

from dataclasses import dataclass


@dataclass
class PoolingParams:
    task: str | None = None
    dimensions: int | None = None
    normalize: bool | None = None
