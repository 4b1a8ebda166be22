"""A decoded message as plain lists."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class ReferenceStep:
    """A decoded message as plain lists; the fields are those of `fd_postproc.Step`."""

    channel: str
    dialect: str | None
    flag: int
    stop_flag: int
    batch: int
    cols: int
    rows: int
    counts: list[int]
    ids: list[list[int]]
    scores: list[list[float]] | None
    ranks: list[int] | None
    seq: int | None = None
    masks: dict[int, Any] | None = None
    weight_version: str | None = None

    @classmethod
    def from_step(cls, step: Any) -> ReferenceStep:
        """The content of an `fd_postproc.Step`."""
        return cls(
            channel=step.channel,
            dialect=step.dialect,
            flag=step.flag,
            stop_flag=step.stop_flag,
            batch=step.batch,
            cols=step.cols,
            rows=step.rows,
            counts=step.counts,
            ids=step.ids.tolist(),
            scores=None if step.scores is None else step.scores.tolist(),
            ranks=None if step.ranks is None else step.ranks.tolist(),
            seq=step.seq,
            masks=step.masks,
            weight_version=step.weight_version,
        )

    def __eq__(self, other: object) -> bool:
        """Every field; scores as the bits of a float32, so that NaN equals NaN and 0.0 differs from -0.0.

        `array` makes a signalling NaN quiet, as C does on its way to a double; `struct` of 3.14 does not.
        """
        if not isinstance(other, ReferenceStep):
            return NotImplemented
        return self._fields() == other._fields()

    def _fields(self) -> dict[str, Any]:
        bits = None if self.scores is None else [array("f", row).tobytes() for row in self.scores]
        return {**vars(self), "scores": bits}
