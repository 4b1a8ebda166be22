"""Checks of environment variables, the installed FastDeploy and the CUDA driver.

FastDeploy is not imported here: that takes long, and may fail for reasons of its own (see `trial`).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from contextlib import suppress
from glob import glob
from pathlib import Path

from ..core.cuda import driver_version, why_no_cuda
from ..fastdeploy.api.engine_process import NoEngine, peer_of
from ..flight.files import fault_of, folders, listed, temporary_folder
from ..flight.reading import Flight, FlightError, read
from ..support.environment import (
    API,
    CUDA,
    FLIGHT,
    FLIGHT_FOLDER,
    FLIGHT_TOKENS,
    PREFIX,
    STREAM_INTERVAL,
    VARIABLES,
    Switch,
    misspelt,
)
from .findings import Finding
from .plugins import check_plugins

_KNOWN = ", ".join(name for name in VARIABLES if name.startswith(PREFIX))
# A variable, and the one that turns off what it is about.
_NEEDED = (FLIGHT_TOKENS, FLIGHT), (STREAM_INTERVAL, API)
# Settings of FastDeploy's with which a stream interval does nothing (`engine.lifecycle`, `api.text`).
_NEVER_JOINED = (
    *("ZMQ_SEND_BATCH_DATA=0", "FD_ENABLE_INTERNAL_ADAPTER=1", "FD_USE_HF_TOKENIZER=1"),
    "FD_ENABLE_RETURN_TEXT=1",
)
# A file that FastDeploy has and the unrelated projects of similar names do not.
FASTDEPLOY_FILE = "fastdeploy/output/token_processor.py"


def check_environment(is_ours: bool = False) -> list[Finding]:
    """Check for invalid variables; one finding is about those that are set.

    `is_ours`: the engine and the worker use the plug-in.
    """
    found = [
        Finding("warning", "environment", "variable-unknown", name, seen, (f"known: {_KNOWN}",))
        for name, seen in misspelt().items()
    ]
    good = []
    for name in sorted(name for name in VARIABLES if os.environ.get(name)):  # an empty one counts as unset
        variable = VARIABLES[name]
        try:
            variable.of(os.environ[name])
        except ValueError as error:
            seen = str(error).removeprefix(f"{name}=")
            if isinstance(variable, Switch):
                seen += f"; the plug-in takes it for {'yes' if variable.safe else 'no'}"
            remedy: tuple[str, ...] = ("unset it, or set it to a valid value",)
            if name.startswith("INFERENCE_"):
                remedy += ("FastDeploy's own ops end their process at a value like this one",)
            found.append(Finding("error", "environment", "variable-invalid", name, seen, remedy))
        else:
            good.append(f"{name}={os.environ[name]}")
    for variable, needed in _NEEDED:
        if variable.complaint or needed.complaint or needed.value or variable.value == variable.of(None):
            continue
        seen = f"it has no effect: {needed}={needed.text} turns off what it needs"
        remedy = (f"unset one of the two: {variable}={variable.text}, {needed}={needed.text}",)
        found.append(Finding("warning", "environment", "variable-idle", str(variable), seen, remedy))
    interval = STREAM_INTERVAL
    if not interval.complaint and interval.value != interval.of(None):
        for setting in filter(_is_set, _NEVER_JOINED):
            seen = f"it has no effect: with {setting} no results are joined"
            remedy = (f"unset one of the two: {interval}={interval.text}, {setting}",)
            found.append(Finding("warning", "environment", "variable-idle", str(interval), seen, remedy))
    if os.environ.get("FD_USE_GET_SAVE_OUTPUT_V1") == "1":
        seen = (
            "FastDeploy uses ZeroMQ, as it does by itself for every pooling model: nothing arrives on any of "
            "its queues.  Without both sides of the plug-in, a step of 256 requests with 21 columns costs "
            "its worker 20 ms in the model runner's thread and its engine 200 ms, by way of 768 files in "
            "/dev/shm, and speculative decoding is refused; with them 0.02 and 0.3 ms, and no file"
        )
        remedy = (
            "turn the plug-in on (FD_PLUGINS) on both sides, or unset it to use the queues, unless a pooling "
            "model, prompt log-probabilities or more than 20 candidates are wanted",
        )
        severity, remedy = ("info", ()) if is_ours else ("warning", remedy)
        subject = "FD_USE_GET_SAVE_OUTPUT_V1=1"
        found.append(Finding(severity, "environment", "zeromq", subject, seen, remedy))
    found += _check_temporary_folder()
    found += _check_flight_folder()
    if not found:
        seen = ", ".join(good) if good else "INFERENCE_MSG_QUEUE_ID is not set: the queue id is 1"
        found.append(Finding("ok", "environment", "environment", "variables", seen))
    return found


def _check_temporary_folder() -> list[Finding]:
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        seen = f"{error.strerror}: FastDeploy does not start, for Paddle cannot be imported without one"
        remedy = ("TMPDIR=/dev/shm, or another folder that the service's user may write to",)
        return [Finding("warning", "environment", "no-temporary-folder", "temporary folder", seen, remedy)]
    return []


def _is_set(setting: str) -> bool:
    name, _, value = setting.partition("=")
    return os.environ.get(name) == value


def _check_flight_folder() -> list[Finding]:
    """Whether the flight recorder can make its files; their folder may be made by the first process."""
    if FLIGHT.complaint or not FLIGHT.value:
        return []
    faults = {folder: fault_of(folder, FLIGHT.value << 20) for folder in folders()}
    if not all(faults.values()):
        return []
    seen = "; ".join(f"{folder}: {fault}" for folder, fault in faults.items())
    place = "$HOME" if os.path.isdir(os.path.expanduser("~")) else temporary_folder()
    remedy = (
        f"set {FLIGHT_FOLDER} to a folder of the service's user alone, for all its processes: "
        f"mkdir -m 700 {place}/fd_postproc-flights",
        f"or {FLIGHT}=0: no recorder",
    )
    subject = "flight recorder"
    seen = f"no process can record what it does: {seen}"
    return [Finding("warning", "environment", "flight-folder", subject, seen, remedy)]


def check_fastdeploy() -> list[Finding]:
    """Whether FastDeploy is installed, and what it does with the plug-ins."""
    return [installed(), *check_plugins()]


def installed() -> Finding:
    """The installed FastDeploy: its distributions and their versions."""
    distributions = []
    for one in importlib.metadata.distributions():
        if not os.path.exists(str(one.locate_file(FASTDEPLOY_FILE))):  # Path's raises where it may not look
            continue  # before its metadata is read, which takes a hundred times longer
        name = (one.metadata["Name"] or "").lower()
        if name.startswith("fastdeploy"):
            distributions.append((name, one.version))
    if distributions:
        seen = ", ".join(f"{name} {version}" for name, version in sorted(set(distributions)))
        severity, code = "info", "fastdeploy"
        if len(set(distributions)) > 1:
            severity, code, seen = "warning", "fastdeploy-twice", f"installed more than once: {seen}"
        return Finding(
            severity, "fastdeploy", code, "FastDeploy", seen, data={"versions": sorted(set(distributions))}
        )
    spec = importlib.util.find_spec("fastdeploy")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if os.path.exists(Path(folder).parent / FASTDEPLOY_FILE):
            seen = f"a source tree at {folder}, without a version"
            return Finding("info", "fastdeploy", "fastdeploy", "FastDeploy", seen, data={"versions": []})
    seen = (
        f"not installed for this Python ({sys.executable}): what is said of the sides is what they would be"
    )
    remedy = ("run doctor with the Python that FastDeploy is installed for",)
    return Finding(
        "info", "fastdeploy", "fastdeploy-missing", "FastDeploy", seen, remedy, data={"versions": []}
    )


def check_peers(sockets: str = "/dev/shm/[0-9]*.socket") -> list[Finding]:
    """Report engines that the kernel does not name; see `fastdeploy.api.engine_process`."""
    seen = (
        "the kernel names each process that asks as the listener, as gVisor did before June 2026: an API "
        "process watches its parent process instead, or the socket, if the engine has not forked it"
    )
    found = []
    for path in sorted(glob(sockets)):
        with suppress(NoEngine):
            if peer_of(path) == os.getpid():
                found.append(Finding("info", "environment", "engine-unnamed", path, seen))
    return found


def check_cuda() -> list[Finding]:
    """Whether the save ops take tensors on a CUDA device, and which workers have stopped using the kernel."""
    return [_kernel(), *_turned_off()]


def _kernel() -> Finding:
    mode = "auto" if CUDA.complaint else CUDA.value
    if mode == "0":
        seen = f"{CUDA}=0: the save ops copy tensors to the host, and no driver is asked"
        return Finding("info", "cuda", "cuda-off", "CUDA", seen, data={"driver": None, "available": False})
    why, version = why_no_cuda(), driver_version()
    text = None if version is None else "{}.{}".format(*version)
    data = {"driver": text, "available": not why}
    if not why:
        seen = f"a driver for CUDA {text} and a device: the save ops take its tensors"
        seen += "" if mode == "1" else ", once the kernel has proved itself in a worker"
        return Finding("ok", "cuda", "cuda", "CUDA", seen, data=data)
    if version is None or "no device" in why:
        seen = f"{why}; tensors in host memory need none"
        return Finding("info", "cuda", "cuda-missing", "CUDA", seen, data=data)
    copied = "the save ops copy tensors to the host"
    remedy = (f"unset {CUDA}: then {copied}" if mode == "1" else f"until then {copied}",)
    return Finding("warning", "cuda", "cuda-unusable", "CUDA", why, remedy, data=data)


def _turned_off() -> list[Finding]:
    """Report each queue whose newest worker has turned the kernel off, by its flight recorder's file."""
    heads: dict[int, Flight] = {}
    for path in listed():  # the newest first
        if os.path.basename(path).startswith("worker"):
            with contextlib.suppress(FlightError, OSError):
                head = read(path, 0)
                heads.setdefault(head.queue_id, head)
    remedy = ("report it, with this line and the file of doctor --report", f"{CUDA}=0: it is not tried again")
    return [
        Finding(
            "warning", "cuda", "cuda-turned-off", "save kernel", head.note, remedy, data={"pid": head.pid}
        )
        for head in heads.values()
        if head.note
    ]
