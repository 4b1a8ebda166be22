"""Counts of what FastDeploy would have lost of an answer, and the switch that leaves it lost.

``FD_POSTPROC_MENDS=0``: every byte is FastDeploy's.  docs/fastdeploy.md lists what is mended.
"""

from __future__ import annotations

from ....support.environment import MENDS, is_on
from ...events import counters

SEGMENTS = "segments"
"""A result with several tokens, worked on in segments (`segments`)."""
END = "end"
"""Text that was held back when the answer ended."""
MARK = "mark"
"""Text that was held back when a parser's mark came."""
BROKEN = "broken"
"""Text beside a broken character."""
THOUGHT = "thought"
"""A whole answer in which the reasoning parser found no reasoning."""


def are_on() -> bool:
    """Whether the mends are on."""
    return is_on(MENDS)


def count(kind: str) -> None:
    """Count a mend in ``fd_postproc_mended_total``."""
    counters.count("mended", kind)
