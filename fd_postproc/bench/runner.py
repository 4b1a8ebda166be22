"""Runs comparisons: every contender in fresh processes, the contenders of a comparison in turn."""

from __future__ import annotations

import importlib
import os
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .._child import python_command
from . import FULL_ROUNDS, QUESTIONS, QUEUE_QUESTIONS, QUICK_ROUNDS
from .cases import Comparison
from .worker import UNAVAILABLE

if TYPE_CHECKING:
    import pyperf

MISSING_PYPERF = (
    "the benchmarks need pyperf: pip install 'fd-postproc[bench]' (or: pip install 'pyperf>=2.7')"
)


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


QUICK = Effort(rounds=QUICK_ROUNDS, values=3, min_time=0.02)
FULL = Effort(rounds=FULL_ROUNDS, values=3, min_time=0.03)


@dataclass
class Result:
    """The timings of one contender.

    Attributes
    ----------
    benchmark : pyperf.Benchmark
        All of them; one run for each round.
    rounds : list of float
        Median of each round, in seconds.
    """

    benchmark: pyperf.Benchmark
    message_bytes: int
    objects: int
    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.benchmark.get_values())

    @property
    def best(self) -> float:
        return min(self.benchmark.get_values())

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a part of the median."""
        low, _, high = statistics.quantiles(self.benchmark.get_values(), n=4)
        return (high - low) / 2 / self.median

    def ratio(self, other: Result) -> float:
        """Median over the rounds of this contender's time by the other's in the same round."""
        return statistics.median(a / b for a, b in zip(self.rounds, other.rounds, strict=True))


@dataclass
class Compared:
    """One comparison, measured: a result for each contender, or why there is none."""

    case: str
    results: dict[str, Result]
    skipped: str | None = None


def require_pyperf() -> None:
    """Raise `ModuleNotFoundError` with the remedy if pyperf is not installed."""
    try:
        importlib.import_module("pyperf")
    except ModuleNotFoundError as error:
        if error.name != "pyperf":
            raise
        raise ModuleNotFoundError(MISSING_PYPERF, name="pyperf") from None


def own_namespace() -> list[str]:
    """Command prefix for an IPC namespace in which a process may raise limits; empty if none can be made."""
    if shutil.which("unshare"):
        for options in (["--ipc"], ["--user", "--map-root-user", "--ipc"]):
            prefix = ["unshare", *options, "--"]
            writable = [*prefix, "sh", "-c", "test -w /proc/sys/kernel/msgmax"]
            if subprocess.run(writable, capture_output=True).returncode == 0:
                return prefix
    return []


def plan(questions: tuple[str, ...], quick: bool) -> list[tuple[str, Comparison]]:
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
        for comparison in importlib.import_module(f"{__package__}.{question}").comparisons(quick)
    ]


def measure(
    todo: list[tuple[str, Comparison]], effort: Effort, tick: Callable[[str], None] = lambda label: None
) -> Iterator[tuple[str, Compared]]:
    """Measure comparisons one after the other.

    Parameters
    ----------
    todo : list of (str, Comparison)
        From `plan`.
    effort : Effort
    tick : callable, optional
        Called before every process with what it measures.

    Yields
    ------
    (str, Compared)
        The question, and what was found.

    Raises
    ------
    BenchmarkFailed
        If a contender gave a wrong answer, or crashed.
    """
    require_pyperf()
    prefix = own_namespace()
    outside = os.readlink("/proc/self/ns/ipc") if prefix else ""
    for question, comparison in todo:
        done = Compared(comparison.case, {})
        for turn in range(effort.rounds):
            names = list(comparison.contenders)
            first = turn % len(names)  # no contender is always the first after a pause
            for name in names[first:] + names[:first]:
                tick(f"{question}: {comparison.case}: {name}")
                arguments = (question, comparison.case, name, f"--outside={outside}")
                command = [
                    *(prefix if question in QUEUE_QUESTIONS else []),
                    *python_command(f"{__package__}.worker", *arguments),
                ]
                try:
                    _one_round(command, effort, done.results, name)
                except _Skip as reason:
                    done.skipped = str(reason)
                    break
            if done.skipped:
                for _ in range(effort.rounds * len(names) - 1):
                    tick("")
                break
        yield question, done


class _Skip(Exception):
    pass


def _one_round(command: list[str], effort: Effort, results: dict[str, Result], name: str) -> None:
    got = _worker([*command, f"--min-time={effort.min_time}", "-w1", f"-n{effort.values}"])
    known = results.get(name)
    if known is None:
        metadata = got.get_metadata()
        known = results[name] = Result(got, metadata["message_bytes"], metadata["objects_made"])
    else:
        known.benchmark.add_runs(got)
    known.rounds.append(got.median())


def _worker(command: list[str]) -> pyperf.Benchmark:
    import pyperf

    read_end, write_end = os.pipe()
    with (
        os.fdopen(read_end) as pipe,
        subprocess.Popen(
            [*command, "--worker", f"--pipe={write_end}"],
            pass_fds=[write_end],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # NumPy need not start threads here
        ) as process,
    ):
        os.close(write_end)
        answer = pipe.read()
        _, errors = process.communicate()
    if process.returncode == UNAVAILABLE:
        raise _Skip(errors.strip())
    if process.returncode:
        what = " / ".join(command[command.index("-c") + 2 :][:3])  # question, case, contender
        raise BenchmarkFailed(f"{what}: {errors.strip() or f'exit status {process.returncode}'}")
    return pyperf.Benchmark.loads(answer)


def save(found: list[tuple[str, Compared]], path: os.PathLike[str]) -> None:
    """Write all timings as a pyperf suite; ``python -m pyperf compare_to`` reads it."""
    import pyperf

    benchmarks = [result.benchmark for _, compared in found for result in compared.results.values()]
    if benchmarks:
        pyperf.BenchmarkSuite(benchmarks).dump(os.fspath(path))
