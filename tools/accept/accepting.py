"""Finds what is new in a tree, tries it beside ours in a process of its own, and records what is equal."""

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import warnings
from typing import NamedTuple

from fd_postproc.fastdeploy.gate.record import joined, signs_of
from fd_postproc.fastdeploy.gate.seams import SEAMS
from tools.accept import prove, reading

SOCKET = {
    f"TokenProcessor.{name}"
    for name in (
        *("process_sampling_results_use_zmq", "_process_batch_output_use_zmq", "_process_per_token"),
        "_reschedule_preempt_task_use_zmq",
    )
} | {"inter_communicator.zmq_server:ZmqIpcServer.recv_pyobj"}
"""Functions that only steps over ZeroMQ need: recorded where ours is equal on that path."""
BEFORE = (
    *("paddle", "paddleformers.transformers", "transformers", "numpy", "msgpack", "prometheus_client", "zmq"),
    *("fastapi", "openai", "aiohttp", "aiozmq", "fd_postproc.ops"),
)


class New(NamedTuple):
    """What a record does not know of a tree.

    Attributes
    ----------
    parts : set of str
        Seams, and `prove.OVER_ZEROMQ`, with something new.
    statements : list of tuple
        New statements: function, file, first and last line.
    data : list of str
        Places of data with a value that is not known.
    """

    parts: set
    statements: list
    data: list


class Verdict(NamedTuple):
    """What became of a tree's new parts.

    Attributes
    ----------
    record : dict
        With the statements that were accepted.
    accepted : list of str
        The new parts in which both do the same.
    left : dict
        By reason, the parts that FastDeploy's own code keeps.
    error : str
        Why nothing could be tried.
    """

    record: dict
    accepted: list
    left: dict
    error: str = ""


def part_of(one):
    """The part that a function is tried in: its seam, or steps over ZeroMQ."""
    return prove.OVER_ZEROMQ if one.seam == reading.PROCESSOR and one.name in SOCKET else one.seam


def new_in(tree, record, found):
    """What a record does not know of a tree's functions and data."""
    parts, shown, data, marks = set(), {}, [], set()
    for one in found:
        known = record.get(one.seam, {}).get(one.name, {})
        if not {each.digest for each in one.statements} <= known.keys():
            parts.add(part_of(one))
            for first, last in one.new_lines(known):
                shown.setdefault((one.file, first), (one.name, one.file, first, last))
        if part_of(one) == reading.PROCESSOR:
            marks |= {known.get(each.digest, "") for each in one.statements}
    signs = signs_of(marks, SEAMS[reading.PROCESSOR].facts).values()
    if any(len(each) != 1 for each in signs) and any(one.seam == reading.PROCESSOR for one in found):
        # known statements, of versions that do different things
        parts.add(reading.PROCESSOR)
    for seam, places in reading.data(tree).items():
        for place, digest in places.items():
            if digest not in record.get(seam, {}).get(place, {}):
                parts.add(seam)
                data.append(place.removeprefix(reading.MARK))
    return New(parts, list(shown.values()), data)


def accepted(tree, record, found, new, rounds, progress):
    """Try the new parts of a tree; return a `Verdict`."""
    told = _in_a_fork(tree, sorted(new.parts), rounds, progress)
    if "error" in told:
        return Verdict(record, [], {}, told["error"])
    mark = told["facts"].get("mark", "")
    more, left, odd = {}, {}, prove.parsers(tree) | told.get("parsers", {})
    for one in found:
        part = part_of(one)
        if part not in new.parts:
            continue
        reason = told["parts"].get(part, "not tried")
        if part == reading.PARSERS and not reason:
            reason = odd.get(one.name.partition(".")[0], "")
        if reason:
            left.setdefault(reason, set()).add(part)
            continue
        into = more.setdefault(one.seam, {}).setdefault(one.name, {})
        for each in one.statements:
            into[each.digest] = mark if part == reading.PROCESSOR else ""
    data = {
        seam: {place: {digest: ""} for place, digest in places.items()}
        for seam, places in reading.data(tree).items()
        if seam in more
    }
    kept = sorted(new.parts - {part for parts in left.values() for part in parts})
    return Verdict(with_texts(joined(record, more, data), found), kept, left)


def with_texts(record, found):
    """The record with the whole texts of functions whose statements are known: a start reads no more then."""
    more = {}
    for one in found:
        known = record.get(one.seam, {}).get(one.name, {})
        marks = {known.get(each.digest) for each in one.statements}
        if None in marks:
            continue
        signs = signs_of(marks, SEAMS[one.seam].facts).values()
        if all(len(each) < 2 for each in signs):
            mark = "".join("".join(each) or "." for each in signs).rstrip(".")
            more.setdefault(one.seam, {}).setdefault(one.name, {})[one.whole] = mark
    return joined(record, more)


def beyond(record, package):
    """What a record knows that the package's does not, or knows otherwise."""
    told = {}
    for seam, functions in record.items():
        for name, digests in functions.items():
            known = package.get(seam, {}).get(name, {})
            more = {digest: mark for digest, mark in digests.items() if known.get(digest) != mark}
            if more:
                told.setdefault(seam, {})[name] = more
    return told


def import_before():
    """Import once what each of many trees needs, without what these packages print."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in BEFORE:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _in_a_fork(tree, parts, rounds, progress):
    """What `prove.proven` says of a tree, in a process of its own; a line for each step of its progress."""
    sys.stdout.flush()
    reading_end, writing_end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading_end)
            with os.fdopen(writing_end, "w") as out:
                _try(tree, parts, rounds, out)
        finally:
            os._exit(0)
    os.close(writing_end)
    told = {"error": "the trial's process ended without an answer (no memory? dmesg says)"}
    with os.fdopen(reading_end) as lines:
        for line in lines:
            answer = json.loads(line)
            if "at" in answer:
                progress(*answer["at"])
            else:
                told = answer
    os.waitpid(pid, 0)
    return told


def _try(tree, parts, rounds, out):
    def say(**what):
        out.write(json.dumps(what) + "\n")
        out.flush()

    sys.path.insert(0, str(tree))
    os.environ.update(FD_POSTPROC_API="0", FD_PLUGINS="none", PYTHONWARNINGS="ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FD_LOG_DIR"] = folder
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                say(**prove.proven(parts, rounds, lambda *at: say(at=at)))
            except ImportError as error:
                say(error=f"{error}: FastDeploy's requirements, or its GPU build, are not there")
            except BaseException as error:
                say(error=f"{type(error).__name__}: {error}")
