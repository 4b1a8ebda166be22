"""A place where a fault happens: an engine's token thread on the double, a queue, workers, each a process.

A stage has an IPC namespace of its own, with a new kernel's limits, so that limits may be changed and the
doctor sees nobody else's queues.  It is a process, too (`played`): it looks from outside, as an operator.
"""

import contextlib
import ctypes
import io
import json
import logging
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import fd_postproc as fp
from fd_postproc import doctor, queues
from fd_postproc.cli import main as command
from fd_postproc.flight import files
from fd_postproc.needed_limits import Load
from tests.lib import simulated_worker
from tests.lib.rig import Rig
from tests.lib.waiting import until

CLONE_NEWIPC = 0x08000000
QUEUE_ID = 8002
REQUESTS = 8
LOOK = 0.05  # seconds between two looks at the health


@dataclass
class Outcome:
    """What became of a fault.

    Attributes
    ----------
    told : dict
        The fields of `explain --json`.
    reason : str or None
        What `health` said; the first that it said after the fault.
    seconds : float or None
        After how long.
    log : list of str
        First lines of the engine's warnings and errors since the fault, and of what a worker printed.
    doctor : list of (str, str, str)
        Severity, code and text of what the doctor finds, and did not find before.
    error : str
        Why there is no outcome.
    """

    told: dict = field(default_factory=dict)
    reason: str | None = None
    seconds: float | None = None
    log: list = field(default_factory=list)
    doctor: list = field(default_factory=list)
    error: str = ""

    @property
    def findings(self):
        """By code, the first of each."""
        found = {}
        for one in self.told.get("findings", ()):
            found.setdefault(one["code"], one["text"])
        return found


class Stage:
    """What a fault's script uses.

    Attributes
    ----------
    outcome : Outcome
    """

    def __init__(self, folder):
        self.folder, self.outcome = folder, Outcome()
        self._children, self._fault_at, self._sound = [], None, []
        self._workers, self._wall = 0, 0.0
        self.channel = "plain"

    # ---- processes -----------------------------------------------------------------------------------

    def child(self, work, *arguments):
        """Run something in a process of its own; its number."""
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                work(*arguments)
                os._exit(0)
            except BaseException as error:
                with open(f"{self.folder}/trouble", "a") as file:
                    file.write(f"{work}: {type(error).__name__}: {error}\n")
                os._exit(1)
        self._children.append(pid)
        return pid

    def engine(self, channel="plain", prepare=None, requests=REQUESTS, slots=REQUESTS):
        """Start a token thread; wait until it has its queue.  `prepare` gets the rig before."""
        self.channel = channel
        names = [f"r{n}" for n in range(requests)]
        known = set(files.listed())
        pid = self.child(_engine, self.folder, channel, names, slots, prepare)
        until(lambda: self._status(pid) or os.path.exists(f"{self.folder}/trouble"), 60)
        (self.path,) = [path for path in files.listed() if path not in known] or [None]
        return pid

    def worker(self, *arguments, channel=None, load=f"{REQUESTS},1,1", pace=0.02, dialect="packed"):
        """Start a simulated worker; its process."""
        self._workers += 1
        channel = channel or self.channel
        given = [f"key:{queues.locate(channel):#x}", "--channel", channel, "--load", load]
        given += ["--pace", str(pace), "--dialect", dialect]
        return self.child(_simulate, f"{self.folder}/worker-{self._workers}", [*given, *arguments])

    def kill(self, pid, number=signal.SIGKILL):
        os.kill(pid, number)
        if number == signal.SIGKILL:
            os.waitpid(pid, 0)
            self._children.remove(pid)

    def reap(self, pid):
        """Wait for a process that ends by itself."""
        os.waitpid(pid, 0)
        self._children.remove(pid)

    # ---- what is seen --------------------------------------------------------------------------------

    def _status(self, pid):
        """Lines of (time, reason, steps) that an engine has written."""
        with contextlib.suppress(FileNotFoundError), open(f"{self.folder}/status-{pid}") as file:
            return [json.loads(line) for line in file.read().splitlines()]
        return []

    def until_steps(self, engine, least):
        """Wait until an engine has processed so many, and the flight recorder has looked at the queue."""
        until(lambda: (self._status(engine) or [[0, None, 0]])[-1][2] >= least, 30)

    def sound(self, engine, steps=60):
        """All is well so far: what the doctor says now is none of the fault's."""
        self.until_steps(engine, steps)
        self._sound = [(one[0], one[1]) for one in self._doctor()]

    def happens(self):
        """The fault happens now."""
        self._fault_at, self._wall = time.monotonic(), time.time() - LOOK

    def until_worker_says(self, word):
        """Wait until a worker has begun its fault."""
        path = f"{self.folder}/worker-{self._workers}"
        until(lambda: os.path.exists(path) and word in Path(path).read_text(), 60)
        self.happens()

    def look(self, engine, after, reason=True):
        """See what there is to see, `after` seconds after the fault, or once `health` has said something."""
        assert self._fault_at is not None
        outcome, end = self.outcome, self._fault_at + after
        while time.monotonic() < end:
            if reason and outcome.reason is None:
                said = [line for line in self._status(engine) if line[0] >= self._fault_at and line[1]]
                if said:
                    outcome.reason, outcome.seconds = said[0][1], said[0][0] - self._fault_at
            time.sleep(0.02)
        found = self._doctor()
        time.sleep(0.2)  # what is there twice is no message on its way
        again = {(one[0], one[1]) for one in self._doctor()}.difference(self._sound)
        outcome.doctor = [one for one in found if (one[0], one[1]) in again]
        outcome.told = self.explained()
        outcome.log = self._log()

    def explained(self):
        """What ``fd-postproc explain FILE --json`` says."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert command(["explain", self.path, "--json"]) == 0
        return json.loads(out.getvalue())

    def _doctor(self):
        scope = doctor.Scope(
            channels=(self.channel,), ids=frozenset([QUEUE_ID]), trial=False, load=Load(REQUESTS, 1, 1)
        )
        return [
            (one.severity, one.code, f"{one.subject}: {one.seen}")
            for one in doctor.examine(scope)
            if one.severity in ("warning", "error")
        ]

    def _log(self):
        lines = []
        for name in sorted(os.listdir(self.folder), key=lambda name: (not name.startswith("log-"), name)):
            if name.startswith("worker-"):
                with open(f"{self.folder}/{name}") as file:
                    lines += [f"worker: {line}" for line in file.read().splitlines()]
            elif name.startswith("log-"):
                with open(f"{self.folder}/{name}") as file:
                    found = [line.partition(" ") for line in file.read().splitlines()]
                lines += [text for created, _, text in found if float(created) >= self._wall]
        return lines

    def end(self):
        for pid in self._children:  # all, before one is waited for: an idle one dies when others are gone
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for one in queues.list_queues():
            with contextlib.suppress(fp.QueueError):
                queues.remove_queue(one.msqid)


def _engine(folder, channel, names, slots, prepare):
    """A process with a token thread, which tells of its health."""
    handler = logging.FileHandler(f"{folder}/log-{os.getpid()}")
    handler.setFormatter(logging.Formatter("%(created).3f %(message)s"))
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: _first_line(record))
    logging.getLogger("fastdeploy").addHandler(handler)
    rig = Rig(channel, names, slots=slots)
    if prepare is not None:
        prepare(rig)
    rig.start()
    with open(f"{folder}/status-{os.getpid()}", "a", buffering=1) as file:
        while True:
            verdict = rig.processor.health()
            line = [time.monotonic(), verdict and verdict.reason, rig.processor.counters.steps]
            file.write(json.dumps(line) + "\n")
            time.sleep(LOOK)


def _first_line(record):
    record.msg, record.args, record.exc_info = record.getMessage().partition("\n")[0], (), None
    return True


def _simulate(path, arguments):
    """The simulated worker in this process."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 2)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    simulated_worker.main(arguments)


def short_of_memory(rig, after=60):
    """From some step on there is no memory for what is delivered: the kernel refuses it."""
    real, put = rig.sink.put_results, []

    def put_results(results):
        put.append(None)
        if len(put) != after:
            return real(results)
        before = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), before[1]))
        try:
            return bytearray(1 << 30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    rig.sink.put_results = put_results


def at_step(rig, after, call):
    """Make a call in the delivery of a step's results."""
    real, put = rig.sink.put_results, []

    def put_results(results):
        put.append(None)
        if len(put) == after:
            call()
        return real(results)

    rig.sink.put_results = put_results


def hang(seconds=3600.0):
    threading.Event().wait(seconds)


def can_be_staged():
    """Why no fault can be played here; None if that is possible."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ctypes.CDLL(None).unshare(CLONE_NEWIPC) == 0 else 1)
    if os.waitpid(pid, 0)[1]:
        return "an IPC namespace of one's own is not permitted here"
    return None


def set_limit(name, value):
    """Of this namespace."""
    with open(f"/proc/sys/kernel/{name}", "w") as file:
        file.write(str(value))


def _stage(script, folder):
    os.environ.update(
        FD_POSTPROC_FLIGHT="1", FD_POSTPROC_FLIGHT_FOLDER=f"{folder}/flights",
        INFERENCE_MSG_QUEUE_ID=str(QUEUE_ID),
    )  # fmt: skip
    for name in ("INFERENCE_MSG_ID", "FD_POSTPROC_DIALECT", "FD_POSTPROC_PEER", "FD_POSTPROC_QUEUE_MODE"):
        os.environ.pop(name, None)
    if ctypes.CDLL(None).unshare(CLONE_NEWIPC) != 0:
        return Outcome(error="no IPC namespace of its own")
    for name, value in (("msgmax", 8192), ("msgmnb", 16384)):
        set_limit(name, value)
    stage = Stage(folder)
    try:
        script(stage)
    except BaseException as error:
        stage.outcome.error = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError), open(f"{folder}/trouble") as file:
            stage.outcome.error += f" ({file.read()})"
    finally:
        stage.end()
    return stage.outcome


def played(scripts, at_once=14):
    """Play faults side by side.

    Parameters
    ----------
    scripts : mapping of str to function
        Called with a `Stage`, each in a process of its own.
    at_once : int

    Returns
    -------
    dict of str to Outcome
    """
    outcomes, running, waiting = {}, {}, dict(scripts)
    with tempfile.TemporaryDirectory(prefix="fd_postproc-faults-") as top:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = next(iter(waiting))
                script, folder = waiting.pop(name), os.path.join(top, name)
                os.mkdir(folder)
                pid = os.fork()
                if pid == 0:
                    status = 1
                    try:
                        outcome = _stage(script, folder)
                        with open(f"{folder}/outcome", "w") as file:
                            json.dump(asdict(outcome), file)
                        status = 0
                    finally:
                        os._exit(status)
                running[pid] = name, folder
            pid, _ = os.wait()
            name, folder = running.pop(pid)
            with open(f"{folder}/outcome") as file:
                outcomes[name] = Outcome(**json.load(file))
    return {name: outcomes[name] for name in scripts}
