"""What the tests of the flight recorder have in common."""

import logging
import os
from pathlib import Path

from fd_postproc.flight import reading
from fd_postproc.flight.codes import HEAD_SIZE, MAGIC, Kind
from fd_postproc.flight.reading import Event
from fd_postproc.flight.recorder import Recorder

LOG = logging.getLogger("tests.flight")


def begun(**options):
    return Recorder.begin("engine", "topk", 7, LOG, **{"size": 1 << 14, **options})


def file_of(folder, process):
    return str(folder / f"engine-7-{process}.flight")


def is_made(path):
    return os.path.exists(path) and Path(path).read_bytes()[: len(MAGIC)] == MAGIC


def numbered(entries):
    return [entry.numbers[0] for entry in entries if isinstance(entry, Event) and entry.kind == Kind.STALE]


class Task:
    def __init__(self, request_id):
        self.request_id = request_id


def kinds(recorder):
    return [
        (Kind(entry.kind).name, entry.slot, entry.numbers[0])
        for entry in reading.read(recorder.path).entries
        if isinstance(entry, Event)
    ]


def bytes_of(recorder):
    """A file's bytes, and where the entry with a number lies in them."""
    data = bytearray(Path(recorder.path).read_bytes())
    places = (len(data) - HEAD_SIZE) // 64
    return data, lambda number: HEAD_SIZE + 64 * (number % places)
