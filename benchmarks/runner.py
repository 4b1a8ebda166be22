"""Runs comparisons: every contender in fresh processes, the contenders of a comparison in turn."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fd_postproc.support.child_python import python_command

from . import FULL_ROUNDS, QUESTIONS, QUEUE_QUESTIONS, QUICK_ROUNDS
from .cases import Comparison
from .worker import UNAVAILABLE

if TYPE_CHECKING:
    import pyperf


class BenchmarkFailed(Exception):
    """A worker process failed; the text is what it printed."""


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Parameters
    ----------
    rounds : int
        Processes for each contender; the contenders of a comparison take turns.
    values : int
        Timings in each process, after one that is thrown away.
    min_time : float
        Seconds that one timing lasts at least; it sets the loop count.
    """

    rounds: int
    values: int
    min_time: float


QUICK = Effort(rounds=QUICK_ROUNDS, values=3, min_time=0.005)
FULL = Effort(rounds=FULL_ROUNDS, values=3, min_time=0.02)


class Result:
    """The timings of one contender.

    Attributes
    ----------
    benchmark : pyperf.Benchmark
        All of them; one run for each round.
    """

    def __init__(self, benchmark: pyperf.Benchmark) -> None:
        self.benchmark = benchmark

    @cached_property
    def values(self) -> tuple[float, ...]:
        """All timings, in seconds."""
        return tuple(self.benchmark.get_values())

    @cached_property
    def rounds(self) -> list[float]:
        """Median of each round, in seconds."""
        return [statistics.median(run.values) for run in self.benchmark.get_runs()]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What pyperf and the contender noted beside the timings."""
        noted: dict[str, Any] = self.benchmark.get_metadata()
        return noted

    @property
    def message_bytes(self) -> int:
        return int(self.facts.get("message_bytes", 0))

    @cached_property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        return min(self.values)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a part of the median."""
        low, _, high = statistics.quantiles(self.values, n=4)
        return (high - low) / 2 / self.median

    def ratio(self, other: Result) -> float:
        """Median over the rounds of this contender's time by the other's in the same round."""
        return statistics.median(a / b for a, b in zip(self.rounds, other.rounds, strict=True))


@dataclass
class Compared:
    """One comparison, measured: a result for each contender, or why there is none.

    Attributes
    ----------
    case : str
    results : dict of str to Result
    missing : dict of str to str
        Contenders that could not run, and why.
    """

    case: str
    results: dict[str, Result]
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, text: str) -> None:
        """Take a round of a contender, as pyperf's JSON."""
        import pyperf

        got = pyperf.Benchmark.loads(text)
        if name in self.results:
            got_before = self.results[name].benchmark
            got_before.add_runs(got)
            got = got_before
        self.results[name] = Result(got)


Found = list[tuple[str, Compared]]


def require(package: str) -> None:
    """Raise `ModuleNotFoundError` with the remedy if a package of the extra ``bench`` is not installed."""
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        why = f"the benchmarks need {package}: pip install 'fd-postproc[bench]' (or: pip install {package})"
        raise ModuleNotFoundError(why, name=package) from None


def own_namespace() -> list[str]:
    """Command prefix for an IPC namespace in which a process may raise limits; empty if none can be made."""
    if shutil.which("unshare"):
        for options in (["--ipc"], ["--user", "--map-root-user", "--ipc"]):
            prefix = ["unshare", *options, "--"]
            writable = [*prefix, "sh", "-c", "test -w /proc/sys/kernel/msgmax"]
            if subprocess.run(writable, capture_output=True).returncode == 0:
                return prefix
    return []


def plan(questions: tuple[str, ...]) -> list[tuple[str, Comparison]]:
    """All comparisons of some questions, in order.

    Raises
    ------
    ValueError
        If there is no such question.
    """
    for question in questions:
        if question not in QUESTIONS:
            raise ValueError(f"no question {question!r}; there are {', '.join(QUESTIONS)}")
    return [
        (question, comparison)
        for question in questions
        for comparison in importlib.import_module(f"{__package__}.{question}").comparisons()
    ]


class Server:
    """A process that has loaded some questions' modules and forks one for each contender; see `worker`."""

    def __init__(self, questions: list[str], prefix: list[str], outside: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        command = [*prefix, *python_command(f"{__package__}.worker", *questions, f"--outside={outside}")]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # NumPy need not start threads here
        )

    def wait(self) -> None:
        """Until it has loaded; what kept it from that is told when it is first asked."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def time(self, order: dict[str, Any]) -> dict[str, Any]:
        """Have a contender timed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        return {"status": status or 1, "errors": said or f"exit status {status}"}

    def close(self) -> None:
        self._process.communicate()
        self._errors.close()


def _place(question: str) -> str:
    """Where a question runs: questions of one place, asked one after the other, share their processes.

    Loading FastDeploy's classes takes seconds, so what needs them is loaded once.
    """
    module = importlib.import_module(f"{__package__}.{question}")
    if hasattr(module, "load"):
        return "beside FastDeploy's classes"
    return "with queues" if question in QUEUE_QUESTIONS else ""


def measure(todo: list[tuple[str, Comparison]], effort: Effort) -> Iterator[tuple[str, Compared]]:
    """Measure comparisons one after the other.

    Parameters
    ----------
    todo : list of (str, Comparison)
        From `plan`.
    effort : Effort

    Yields
    ------
    (str, Compared)
        The question, and what was found.

    Raises
    ------
    BenchmarkFailed
        If a contender gave a wrong answer, or crashed.
    """
    require("pyperf")
    prefix = own_namespace()
    outside = os.readlink("/proc/self/ns/ipc") if prefix else ""
    for place, group in groupby(todo, key=lambda pair: _place(pair[0])):
        some = list(group)
        questions = list(dict.fromkeys(question for question, _ in some))
        apart = (prefix, outside) if place else ([], "")
        servers: list[Server] = []
        try:
            for _ in range(effort.rounds):  # one a round: no two rounds share a memory layout
                servers.append(Server(questions, *apart))
            for server in servers:
                server.wait()
            for question, comparison in some:
                yield question, _compare(question, comparison, servers, effort)
        finally:
            for server in servers:
                server.close()


def _compare(question: str, comparison: Comparison, servers: list[Server], effort: Effort) -> Compared:
    done = Compared(comparison.case, {})
    names = list(comparison.contenders)
    for turn, server in enumerate(servers):
        first = turn % len(names)  # no contender is always the first after a pause
        for name in names[first:] + names[:first]:
            if name in done.missing:
                continue
            answer = server.time(
                {
                    "question": question,
                    "case": comparison.case,
                    "contender": name,
                    "min_time": effort.min_time,
                    "values": effort.values,
                }
            )
            said = answer["errors"].strip()
            if answer["status"] == UNAVAILABLE:
                done.missing[name] = said
            elif answer["status"]:
                what = said or f"exit status {answer['status']}"
                raise BenchmarkFailed(f"{question} / {comparison.case} / {name}: {what}")
            else:
                done.add(name, answer["benchmark"])
    done.results = {name: done.results[name] for name in names if name in done.results}
    return done


def save(found: Found, path: os.PathLike[str]) -> None:
    """Write all timings as a pyperf suite; ``python -m pyperf compare_to`` reads it, and so does `load`."""
    import pyperf

    benchmarks = [result.benchmark for _, compared in found for result in compared.results.values()]
    if benchmarks:
        pyperf.BenchmarkSuite(benchmarks).dump(os.fspath(path))


def load(path: os.PathLike[str]) -> Found:
    """Read what `save` wrote.

    Raises
    ------
    ValueError
        If the file holds something else.
    """
    require("pyperf")
    import pyperf

    try:
        suite = pyperf.BenchmarkSuite.load(os.fspath(path))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no timings of the benchmarks: {error}") from None
    found: dict[tuple[str, str], Compared] = {}
    for benchmark in suite:
        question, _, rest = benchmark.get_name().partition("/")
        case, _, contender = rest.rpartition("/")
        if question not in QUESTIONS or not case:
            raise ValueError(f"{path}: {benchmark.get_name()!r} is no timing of the benchmarks")
        one = found.setdefault((question, case), Compared(case, {}))
        one.results[contender] = Result(benchmark)
    return [(question, compared) for (question, _), compared in found.items()]


MACHINE = ("cpu_model_name", "python_version", "platform")


def differences(before: Found, now: Found) -> list[str]:
    """In what two runs cannot be compared: "cpu_model_name (x, now y)"."""
    then, later = (
        [result.facts for _, one in run for result in one.results.values()] for run in (before, now)
    )
    if not then or not later:
        return []
    pairs = ((name, then[0].get(name), later[0].get(name)) for name in MACHINE)
    return [f"{name} ({old}, now {new})" for name, old, new in pairs if old != new]
