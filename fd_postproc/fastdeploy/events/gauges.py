"""The plug-in's gauges: one sample of each for all processes of a service.

FastDeploy's processes write their metrics into files of one folder, and a scrape reads all of them.  Gauges
of prometheus_client's own would mislead there: a forked child repeats each gauge of its parent as 0, the file
of a killed process counts for ever, and a process that gets its number goes on with its values.  Each process
of ours has files of a new name, and holds a lock on them, which the kernel takes back
whatever the process dies of, in any PID namespace.  Files without a lock are removed by the others.

A file of FastDeploy's that cannot be read makes its page an HTTP 500, for as long as the folder lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...support.process_stat import has_ended
from ..gate.judgements import gate
from ..gate.seams import SEAMS


class _About(NamedTuple):
    text: str
    mode: str  # of prometheus_client: which process's value is the sample


ABOUT = {
    "active": _About("Whether this side of fd_postproc is used (1) or FastDeploy's own (0)", "livemin"),
    "known": _About(
        "Whether the code that this side replaces is one that this release knows (1) or new to it (0)",
        "livemin",
    ),
    "unhealthy": _About(
        "Whether this is why steps are not being processed (1) or not (0); all 0: they are", "livemax"
    ),
    "busy": _About(
        "Whether the worker sends nothing and is at work (1), which is no fault, or not (0)", "livemax"
    ),
    "waiting_first_tokens": _About("Requests of this decode node that wait for their first token", "livesum"),
    "fast_path": _About(
        "Whether fd_postproc takes this fast path (1), or leaves it to FastDeploy's code (0)", "livemin"
    ),
}
"""The gauges ``fd_postproc_NAME``."""

SWEEP_S = 2.0  # seconds between two looks for files of processes that have ended
_MARK = "-fdpostproc.db"
_FILE_SIZE = 1 << 16  # as prometheus_client makes it
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_OF_PROCESS = re.compile(r"(?:counter|histogram|summary|gauge_[a-z]+)_(\d{1,10})\.db")
ASIDE = ".unreadable"
"""What the name of a file that was moved aside ends with; no scrape reads it."""


class _Files:
    """This process's files in FastDeploy's folder."""

    def __init__(self, folder: str) -> None:
        # FastDeploy's own modes need version 0.18, which has all that is used here.
        from prometheus_client import values

        self.folder = folder
        self._name = name = f"{os.getpid()}-{secrets.token_hex(4)}{_MARK}"
        made: Any = values.MultiProcessValue  # has no types
        self._make = made(lambda: name.removesuffix(".db"))
        self._values: dict[tuple[str, str], Any] = {}
        self._locks: dict[str, int] = {}  # descriptors, by mode

    def set(self, name: str, label: str, value: str, number: float) -> None:
        """Set a gauge's sample."""
        found = self._values.get((name, value))
        if found is None:
            text, mode = ABOUT[name]
            if mode not in self._locks:
                self._locks[mode] = self._locked(f"gauge_{mode}_{self._name}")
            full = f"fd_postproc_{name}"
            found = self._make("gauge", full, full, (label,), (value,), text, multiprocess_mode=mode)
            self._values[name, value] = found
        found.set(number)

    def _locked(self, name: str) -> int:
        """Make a file, which gets its name when it is locked; return the descriptor with the lock."""
        first = os.path.join(self.folder, f".{name}.new")
        descriptor = os.open(first, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, _FILE_SIZE)
            os.rename(first, os.path.join(self.folder, name))
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(first)
            raise
        return descriptor

    def unlock(self) -> None:
        """Close the descriptors: all of them, a parent's too, have to be closed before a lock ends."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks.clear()


class _Samples:
    """This process's samples, for its own registry."""

    def __init__(self) -> None:
        self.numbers: dict[str, dict[tuple[str, str], float]] = {name: {} for name in ABOUT}

    def describe(self) -> list[Any]:
        return list(self._families())

    def collect(self) -> Iterator[Any]:
        return self._families(with_numbers=True)

    def _families(self, with_numbers: bool = False) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        for name, about in ABOUT.items():
            numbers = dict(self.numbers[name]) if with_numbers else {}
            label = next((label for label, _ in numbers), "")
            family = GaugeMetricFamily(f"fd_postproc_{name}", about.text, labels=[label])
            for (_, value), number in numbers.items():
                family.add_metric([value], number)
            if numbers or not with_numbers:
                yield family


_lock = threading.RLock()
_files: _Files | None = None
_samples: _Samples | None = None
_due = 0.0


def export(name: str, label: str, value: str, number: float) -> None:
    """Set the gauge ``fd_postproc_NAME{LABEL="VALUE"}`` of `ABOUT`, with prometheus_client only.

    The sample of a service is the largest value of `unhealthy` and `busy`, the sum of
    `waiting_first_tokens`, and the smallest of the others, over the processes that live.
    """
    global _files
    # None, no file to share, the name is taken, or a prometheus_client that FastDeploy cannot use either.
    with contextlib.suppress(ImportError, OSError, ValueError, TypeError), _lock:
        _registered().numbers[name][label, value] = float(number)
        folder = os.environ.get(_FOLDER)
        if folder:
            if _files is None or _files.folder != folder:
                _remove_files_of_ended(folder)
                _files = _Files(folder)
            _files.set(name, label, value, float(number))


def export_active(side: str, active: bool) -> None:
    """Set the gauge ``fd_postproc_active{side=...}`` of the engine, the worker or the api.

    Workers of all ranks write for the page of rank 0's engine, which starts them: from rank 1 on a worker
    names its rank, ``"worker 1"``, so that none hides another's fall-back.
    """
    rank = os.environ.get("PADDLE_TRAINER_ID", "")
    if side == "worker" and rank not in ("", "0"):
        side = f"worker {rank}"
    export("active", "side", side, active)


def report(used: dict[str, bool]) -> None:
    """Note of seams whether ours is used, and set their gauges."""
    for name, is_used in used.items():
        gate.used[name] = is_used
        if SEAMS[name].has_path:
            export("fast_path", "path", name, is_used)
        else:
            export_active(SEAMS[name].side, is_used)


def sweep() -> None:
    """Remove the files of ended processes, once in `SWEEP_S`; each look at the health calls it."""
    global _due
    folder, now = os.environ.get(_FOLDER), time.monotonic()
    if folder and now >= _due:
        _due = now + SWEEP_S
        _remove_files_of_ended(folder)


def _remove_files_of_ended(folder: str) -> None:
    for path in glob.glob(os.path.join(glob.escape(folder), f"gauge_*{_MARK}")):
        with contextlib.suppress(OSError):  # another removes it
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its process lives
                os.unlink(path)
            finally:
                os.close(descriptor)


def set_unreadable_aside(say: Callable[[str], object]) -> None:
    """Move the files of ended processes that prometheus_client cannot read aside; `say` what is done.

    One process of a service calls it, when it starts.  Files of living processes and of other names stay, and
    are named if they cannot be read.
    """
    folder = os.environ.get(_FOLDER)
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.db"))) if folder else ():
        why = _why_unreadable(path)
        if why:
            say(f"{path} cannot be read ({why}), and {_moved_aside(path)}")


def _moved_aside(path: str) -> str:
    """Move a file aside if its process has ended; in words, what has become of it."""
    name = os.path.basename(path)
    of = _OF_PROCESS.fullmatch(name)
    if of is None:
        stays = "its name is not one of prometheus_client's"
    elif not has_ended(int(of[1])):
        stays = f"process {of[1]} lives"
    else:
        try:
            os.rename(path, path + ASIDE)
            return f"was moved aside, for its process has ended: it is {name}{ASIDE} now"
        except OSError as error:  # another engine has moved it, or the folder is another user's
            stays = f"it cannot be moved: {error.strerror}"
    return f"stays, for {stays}; /metrics answers 500 as long as it is there"


def _why_unreadable(path: str) -> str:
    """Why prometheus_client cannot read a file; empty if it can, or the file has gone."""
    from prometheus_client.multiprocess import MultiProcessCollector

    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return "it is no file"
        MultiProcessCollector.merge([path])  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _registered() -> _Samples:
    global _samples
    if _samples is None:
        from prometheus_client import REGISTRY

        samples = _Samples()
        REGISTRY.register(samples)
        _samples = samples
    return _samples


def _begin_anew() -> None:
    """Leave the parent's gauges to the parent."""
    global _files
    if _files is not None:
        _files.unlock()
        _files = None
    if _samples is not None:
        for numbers in _samples.numbers.values():
            numbers.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_begin_anew)
