"""Checks whether the processes at the ends of a running service's queue use the plug-in.

FastDeploy's log says so, but among thousands of lines; the processes themselves can be examined.
"""

from __future__ import annotations

from ..environment import PEER
from .findings import Finding
from .processes import User
from .snapshot import Queue, Snapshot

_CORE = "fd_postproc/_core."  # the extension module, as it is mapped into a process that uses it


def check_services(snapshot: Snapshot) -> list[Finding]:
    """Return one finding for each queue whose sender and receiver are alive and readable."""
    return [finding for queue in snapshot.queues if (finding := _service(queue)) is not None]


def _service(queue: Queue) -> Finding | None:
    sender, receiver = queue.sender, queue.receiver
    if "alive" not in (sender.state, receiver.state) or sender.pid == receiver.pid:
        return None
    engine, worker, told = _has_core(receiver), None, None
    if not queue.flooded:  # otherwise the last writer is hardly the worker
        worker, told = _has_core(sender), _was_told(sender)
    if engine is None and worker is None:
        return None
    words = []
    if engine is not None:
        words.append(f"engine process {receiver.pid} ({receiver.name}): {_engine(engine, told)}")
    if worker is not None:
        has = "fd_postproc is loaded" if worker else "fd_postproc is not loaded, FastDeploy's own ops send"
        words.append(f"worker process {sender.pid} ({sender.name}): {has}")
    aside = engine is False or (engine and told is False)
    remedy = ("grep fd_postproc: in the engine's log, or on its standard error",) if aside else ()
    data = {"engine": engine, "told": told, "worker": worker}
    severity = "info" if aside else "ok"
    subject = f"running service, {queue.short}"
    return Finding(
        severity, "fastdeploy", "service", subject, "; ".join(words), remedy, queue.info.msqid, data
    )


def _engine(loaded: bool, told: bool | None) -> str:
    if not loaded:
        return "fd_postproc is not loaded"
    if told is None:
        return "fd_postproc is loaded"
    if told:
        return "fd_postproc is active"
    return "fd_postproc is loaded and stands aside (its workers were not told of compact frames)"


def _has_core(user: User) -> bool | None:
    """Whether a process has our extension module; None if that is unreadable."""
    text = _contents(user, "maps")
    return None if text is None else _CORE in text


def _was_told(user: User) -> bool | None:
    """Whether an engine with our plug-in started a worker, by the worker's environment."""
    text = _contents(user, "environ")
    return None if text is None else any(one.startswith(f"{PEER}=compact") for one in text.split("\0"))


def _contents(user: User, name: str) -> str | None:
    if user.state != "alive":
        return None
    try:
        with open(f"/proc/{user.pid}/{name}", errors="replace") as file:
            return file.read() or None
    except OSError:
        return None
