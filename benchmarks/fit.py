"""A line through costs over rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Line(NamedTuple):
    """A line through costs - seconds, or instructions - over rows.

    Attributes
    ----------
    rows, costs : list
        The points.
    start, slope : float
        The cost without a row, and that of each.
    r2 : float
        Share of the costs' variance that the line explains; 1 if there is none.
    worst : float
        Largest distance of a point from the line, as a part of the point's cost.
    """

    rows: list[int]
    costs: list[float]
    start: float
    slope: float
    r2: float
    worst: float


def line(rows: list[int], costs: list[float]) -> Line:
    """Least squares of relative errors, so that no point counts more than another."""
    x, y = np.asarray(rows, float), np.asarray(costs, float)
    design = np.stack([1 / y, x / y], axis=1)
    (start, slope), *_ = np.linalg.lstsq(design, np.ones(len(y)), rcond=None)
    distance = start + slope * x - y
    variance = np.sum((y - y.mean()) ** 2)
    r2 = 1 - float(np.sum(distance**2) / variance) if variance else 1.0
    return Line(rows, costs, float(start), float(slope), r2, float(np.max(np.abs(distance / y))))
