"""Send FastDeploy messages through a real queue from a second process, and say what that gains.

They are messages of all kinds as FastDeploy's own ops send them; every one that arrives is compared with its
recording.  Of one step more, FastDeploy's results, restated in Python, and ours are compared, then timed.
The queue is private (mode 0600) and removed at the end.  Nothing needs root: a message that is too long for
this machine's limits goes as a compact frame, in pieces.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.resources
import subprocess
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import NamedTuple

import sysv_ipc

from .._core import CHANNELS, Receiver, Step, decode, encode, payload_size
from .._version import __version__
from ..core.layout import GPU
from ..queues import not_made
from ..recording import Recording
from ..support.child_python import python_command
from .tables import print_labels
from .terminal import CommandError, console, positive_int, stop_on_signal

HELP = "send FastDeploy messages through a real queue, end to end"
EXAMPLES = """examples:
  fd-postproc demo
"""
_BATCH, _ACCEPTED, _COLUMNS = 256, 2, 21  # what README's table is about
_SILENCE_S, _LOOK_S = 30.0, 0.2


class Item(NamedTuple):
    """One message to send: what must arrive, and FastDeploy's bytes, cut after the last live slot."""

    name: str
    step: Step
    payload: bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeat",
        type=positive_int,
        default=200,
        help="how often the recorded messages are sent again to measure their rate (default: 200)",
    )


def recorded_items() -> Iterator[Item]:
    """The messages shipped with the package, channel by channel."""
    for channel in CHANNELS:
        file = importlib.resources.files(__package__).joinpath("demo_data", f"{channel}.fdrec")
        if not file.is_file():  # a new channel, of which nothing has been recorded yet
            continue
        with Recording(file.open("rb")) as recording:
            for message in recording:
                step = decode(message.payload, channel, mtype=message.mtype, layout=recording.layout)
                payload = encode(step, step.dialect or "packed", layout=recording.layout)
                yield Item(f"{channel} {message.index}", step, payload)


def example_item() -> Item:
    """A step of seeded numbers, as large as that of README's table."""
    import numpy as np

    random = np.random.default_rng(0)
    cells = (_BATCH * _ACCEPTED, _COLUMNS)
    ids = random.integers(0, 150_000, cells, dtype=np.int32)
    scores = -random.exponential(2.0, cells).cumsum(axis=1).astype(np.float32)
    counts, ranks = np.full(_BATCH, _ACCEPTED, np.int32), np.ones(len(ids), np.int32)
    step = Step.from_arrays("spec_topk", counts, ids, scores, ranks)
    return Item("example", step, encode(step))


def run(args: argparse.Namespace) -> int:
    items, example = list(recorded_items()), example_item()
    with stop_on_signal() as signals, _private_queue() as key, _second_process(key, args.repeat) as sender:
        receivers = {channel: Receiver(channel, key=key) for channel in CHANNELS}

        def receive(item: Item) -> Step:
            return _receive(receivers[item.step.channel], item.name, sender, signals)

        different = [item.name for item in items if receive(item) != item.step]
        began = time.perf_counter()  # the first messages waited for the process to start
        for _ in range(args.repeat):
            different += [item.name for item in items if receive(item) != item.step]
        rate = args.repeat * len(items) / (time.perf_counter() - began)
        before = receivers["spec_topk"].stats["fragments"]
        arrived = receive(example)
        pieces = int(receivers["spec_topk"].stats["fragments"] - before)
    if arrived != example.step:
        different.append(example.name)
    if different:
        names = ", ".join(dict.fromkeys(different))
        raise CommandError(f"{len(different)} messages arrived different from what was sent: {names}")
    topk = next(item.step for item in items if item.step.channel == "topk" and item.step.cols > 1)
    rows = [
        ("carried", f"{len(items)} of {len(items)} messages as FastDeploy sends them, "
                    f"{args.repeat + 1} times, from process {sender.pid}; every one arrived equal"),
        ("", f"{rate:,.0f} messages a second; one of them: {_in_a_line(topk)}"),
        *_gains(arrived, pieces),
    ]  # fmt: skip
    screen = console()
    screen.print("Tokens and log-probabilities of a language model server, from the worker to the engine")
    print_labels(screen, f"fd_postproc {__version__}, a plug-in for PaddlePaddle FastDeploy 2.x", rows)
    return 0


def _stock_results(step: Step) -> Callable[[], list[SimpleNamespace]]:
    """FastDeploy's Python for a step of ``spec_topk``, restated over NumPy: a lower bound of its own time.

    Its get op fills arrays for all slots.  It makes lists of all draft positions, whatever was accepted,
    copies a request's eight time stamps, and formats a debug line that is off.  Its tensors are Paddle's,
    whose elements take longer to read.  It also writes traces and metrics, and ends requests.
    """
    import numpy as np

    cells = (GPU.max_batch, GPU.max_draft, GPU.top_k + 1)
    ids, scores, ranks = np.zeros(cells, np.int64), np.zeros(cells, np.float32), np.zeros(cells[:2], np.int64)
    counts = np.array(step.counts, np.int64)
    for slot, count in enumerate(counts):
        lists = step.logprobs(slot).tolists()
        ids[slot, :count, : step.cols], scores[slot, :count, : step.cols], ranks[slot, :count] = lists
    names = [f"chatcmpl-{slot:032x}" for slot in range(step.batch)]
    stamps = [SimpleNamespace(**dict.fromkeys(map("time_{}".format, range(8)), 0.0)) for _ in names]

    def results() -> list[SimpleNamespace]:
        id_rows, score_rows = (part[: step.batch, :, : step.cols].tolist() for part in (ids, scores))
        rank_rows, made = ranks[: step.batch].tolist(), []
        for slot, name in enumerate(names):
            result = SimpleNamespace(request_id=name, index=slot, metrics=copy.copy(stamps[slot]))
            result.token_ids, result.top_logprobs = [], []
            for row in range(int(counts[slot])):
                result.token_ids.append(id_rows[slot][row][0])
                result.logprob = score_rows[slot][row][0]
                result.top_logprobs.append((id_rows[slot][row], score_rows[slot][row], rank_rows[slot][row]))
            _ = f"result of the step: {result}"
            made.append(result)
        return made

    return results


def _gains(step: Step, pieces: int) -> list[tuple[str, str]]:
    """The cost of one step both ways: bytes, and time until its results are there."""
    payload, make_results = encode(step, "compact"), _stock_results(step)

    def make_lists() -> tuple[object, ...]:
        return decode(payload, "spec_topk", mtype=2).tolists()

    results = [list(map(list, zip(*result.top_logprobs, strict=True))) for result in make_results()]
    if tuple(map(list, zip(*results, strict=True))) != make_lists():
        raise CommandError("FastDeploy's results, restated, are not those of the step that arrived")
    stock, ours = _microseconds(make_results, loops=1), _microseconds(make_lists, loops=20)
    way = f"in {pieces} pieces that fit this machine's limit" if pieces else "whole"
    return [
        ("a step", f"{_BATCH} requests, {_ACCEPTED} tokens each, {_COLUMNS - 1} likeliest beside each token"),
        ("smaller", f"FastDeploy sends {payload_size('spec_topk'):,} bytes for it, "
                    f"fd_postproc {len(payload):,}, {way}"),
        ("faster", f"FastDeploy's results take {stock / 1e3:.1f} ms of Python, fd_postproc's lists "
                   f"{ours / 1e3:.2f} ms, equal: {stock / ours:.0f} times as fast, measured here and now"),
        ("unfair", "FastDeploy's step is restated over NumPy, without its metrics and traces: a lower bound"),
        ("next", "fd-postproc doctor: would FastDeploy use it here?"),
    ]  # fmt: skip


def _microseconds(call: Callable[[], object], loops: int) -> float:
    """CPU time of one call: the best of a few batches, with the least disturbance."""

    def batch() -> float:
        start = time.thread_time()
        for _ in range(loops):
            call()
        return time.thread_time() - start

    return min(batch() for _ in range(7)) / loops * 1e6


def _in_a_line(step: Step) -> str:
    """The first request with a token of a step with logprobs."""
    i = next(i for i, count in enumerate(step.counts) if count > 0)
    ids, scores, ranks = step.logprobs(i).tolists()
    likeliest = ", ".join(map("{} ({:.2f})".format, ids[0][1:4], scores[0][1:4]))
    return f"token {ids[0][0]} (log-probability {scores[0][0]:.2f}, rank {ranks[0]}), likeliest {likeliest}"


@contextlib.contextmanager
def _private_queue() -> Iterator[int]:
    """The random key of a queue that is removed in any case."""
    try:
        queue = sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX, mode=0o600)
    except OSError as error:
        raise not_made(error, "making a private queue") from None
    try:
        yield queue.key
    finally:
        with contextlib.suppress(sysv_ipc.ExistentialError):
            queue.remove()


@contextlib.contextmanager
def _second_process(key: int, repeat: int) -> Iterator[subprocess.Popen[str]]:
    """The process that sends; where this one ends before it, it ends, too, since its stdin is closed."""
    command = python_command(f"{__package__}.sender", str(key), str(repeat))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def _receive(receiver: Receiver, name: str, sender: subprocess.Popen[str], signals: list[int]) -> Step:
    """The next step; it must come within half a minute."""
    give_up, ended = time.monotonic() + _SILENCE_S, False
    while not signals:
        step = receiver.receive(0 if ended else _LOOK_S)
        if step is not None:
            return step
        if ended:
            raise CommandError(_obituary(sender, name))
        if time.monotonic() > give_up:
            raise CommandError(f"nothing came for {_SILENCE_S:.0f} s; message '{name}' is missing")
        ended = sender.poll() is not None  # then once more: what it had sent is still in the queue
    raise SystemExit(128 + signals[0])


def _obituary(process: subprocess.Popen[str], name: str) -> str:
    """The reason why the process has ended, as a sentence."""
    status, errors = process.returncode, process.stderr.read() if process.stderr else ""
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    last = errors.strip().rpartition("\n")[2]
    return f"the sender process {how} before message '{name}' arrived" + (f": {last}" if last else "")
