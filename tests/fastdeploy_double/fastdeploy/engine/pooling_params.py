"""Pooling parameters; the token processor only asks whether there are any."""

from dataclasses import dataclass


@dataclass
class PoolingParams:
    dimensions: int | None = None
    normalize: bool | None = None
