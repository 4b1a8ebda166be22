"""Count of messages that the save ops have handed over: to the kernel's queue, or to the thread that sends.

The class of an op's exception says whether FastDeploy's op may send the step instead.
"""

from __future__ import annotations


class Sent:
    """Number of messages of this process that were handed over; none is once an op has raised before."""

    count = 0


sent = Sent()
