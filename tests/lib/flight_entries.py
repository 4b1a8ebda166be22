"""Entries of a flight recorder's file, as `fd_postproc.flight.reading` gives them, written down by hand."""

import os

from fd_postproc.explain.findings import findings
from fd_postproc.explain.timeline import Picture
from fd_postproc.flight.reading import Event, Flight, QueueEntry, StepEntry

ME = os.getpid()


def flight(*entries, writer=ME, side="engine", busy=None, overwritten=0, damaged=0):
    """A file of these entries, of a process that lives."""
    return Flight(
        "a.flight", side, "spec_topk", "1.0", ME, 8002, 5, 1_700_000_000_000_000_000, 100.0, busy, writer,
        1 << 20, overwritten, 0, damaged, sorted(entries, key=lambda entry: entry.at),
    )  # fmt: skip


def step(
    at, frame=None, sender=1, *, channel="topk", receive=0.009, build=0.001, put=0.0, rows=2, batch=2, live=2,
):  # fmt: skip
    """A step; compact if it has a number."""
    return StepEntry(
        at, frame, channel, 100, batch, live, rows, 7, receive, build, put, live, sender
    )  # fmt: skip


def look(at, **other):
    usual = {
        "messages": 0, "bytes": 0, "max_bytes": 16384, "msgmax": 8192, "last_sender": 50, "last_receiver": ME,
        "running": 2, "transfers": 0, "state": "S", "ticks": 0, "error": 0, "reader_is_foreign": False,
    }  # fmt: skip
    return QueueEntry(at, **{**usual, **other})


def event(at, kind, *numbers, slot=-1, text=""):
    return Event(at, kind, slot, (*numbers, 0, 0, 0, 0, 0)[:5], text)


def steady(n=200, first=100.0, gap=0.01, **other):
    """Steps at an even pace."""
    return [step(first + gap * k, k, **other) for k in range(n)]


def looks(first, last, **other):
    """One look a second."""
    return [look(first + k, **other) for k in range(int(last - first) + 1)]


def codes(entries, now=102.0, **options):
    """The words of the findings of a file with these entries."""
    return [one.code for one in findings(Picture(flight(*entries, **options), now))]
