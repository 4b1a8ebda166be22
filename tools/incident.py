"""Which message made it raise?  A recording's, put through the plug-in at full speed, without a service.

``python -m tools.incident FILE`` takes a recording (``fd-postproc record``), or a flight recorder's file
that has messages (``FD_POSTPROC_FLIGHT_TOKENS=1``).  Every slot has a request that stands in for the one that
was there; one that ends is followed by the next.  What a message says is the recording's, everything else is
not: a fault that lies in the requests, or in FastDeploy's other threads, does not come again.

Exit status: 0 nothing raised, 1 something did.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.cases import Unavailable
from benchmarks.processors import OURS, processor_class, token_processor_module
from fd_postproc._core import DRAFT, Step, decode
from fd_postproc.cli.streams import open_input
from fd_postproc.errors import MalformedMessage
from fd_postproc.recording import Message, Recording, RecordingError
from tests.restated.workload import Case as LoadCase
from tests.restated.workload import Load

SLOTS = 512


class Trouble(NamedTuple):
    """What a message has led to.

    Attributes
    ----------
    index : int
        The message's, in the recording.
    kind : {"refused", "lost step", "failed request"}
    text : str
    """

    index: int
    kind: str
    text: str


class Manager:
    """Slots that are never empty for long.  What FastDeploy's resource manager does besides is left out."""

    def __init__(self, new_task: Callable[[int], Any]) -> None:
        self._new_task = new_task
        self.max_num_seqs = SLOTS
        self.stop_flags = [False] * SLOTS
        self.tasks_list: list[Any] = [None] * SLOTS
        self.to_be_rescheduled_request_id_set: set[str] = set()
        self.to_be_aborted_req_id_set: set[str] = set()
        self.abort_req_ids_set: set[str] = set()
        self.requests: dict[str, Any] = {}

    def fill(self, batch: int) -> None:
        """Put a request into every slot of a step that has none."""
        for slot in range(min(batch, SLOTS)):
            if self.stop_flags[slot] or self.tasks_list[slot] is None:
                self.stop_flags[slot] = False
                self.tasks_list[slot] = self._new_task(slot)

    def free(self, slot: int) -> None:
        self.stop_flags[slot] = True
        self.tasks_list[slot] = None

    def info(self) -> str:
        return ""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_named: None


class Replay:
    """A token processor of ours, with requests that stand in.

    Parameters
    ----------
    channel : str
    has_drafts : bool
    """

    def __init__(self, channel: str, has_drafts: bool) -> None:
        module = token_processor_module()
        kind = channel if channel != "spec_topk" else f"spec_topk_{'draft' if has_drafts else 'target'}"
        self._load = Load(module, processor_class(OURS, module), LoadCase(kind, 1, 1, 1))
        self._module, self._serial = module, 0
        self.processor = self._load.processor
        self._manager = Manager(self._task)
        self.processor.resource_manager = self._manager  # instead of the load's
        self.processor._recycle_resources = self._recycle
        self._failures: list[BaseException] = []
        give_up = self.processor.parts.ending.give_up

        def note(slot: int, task: Any, error: Exception) -> Any:
            self._failures.append(error)
            return give_up(slot, task, error)

        self.processor.parts.ending.give_up = note

    def _task(self, slot: int) -> Any:
        self._serial += 1
        task = self._load._task(self._module, slot)
        task.request_id = f"request-{self._serial}-of-slot-{slot}"
        self.processor.tokens_counter[task.request_id] = 1
        return task

    def _recycle(self, name: str, slot: int, *_arguments: Any) -> None:
        self._manager.free(slot)

    def put(self, index: int, step: Step) -> list[Trouble]:
        """Process a step; what it has led to."""
        self._manager.fill(step.batch)
        found: list[Trouble] = []
        try:
            self.processor.parts.steps.process(step)
        except Exception as error:
            found.append(Trouble(index, "lost step", _text(error)))
        found += [Trouble(index, "failed request", _text(error)) for error in self._failures]
        self._failures.clear()
        return found


def _text(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def steps_of(recording: Recording) -> tuple[list[tuple[int, Step]], list[Trouble]]:
    """The steps of a recording by its messages' places, and what is none.

    Raises
    ------
    RecordingError
        If it does not say what its messages are.
    """
    channel = recording.channel
    if channel is None:
        raise RecordingError(f"{recording.name} does not say what its messages are: record with --channel")
    steps: list[tuple[int, Step]] = []
    troubles: list[Trouble] = []
    for message in recording:
        try:
            step = decode(message.payload, channel, mtype=message.mtype, layout=recording.layout)
            steps.append((message.index, step))
        except MalformedMessage as error:
            troubles.append(Trouble(message.index, "refused", _why(message, error)))
    return steps, troubles


def _why(message: Message, error: MalformedMessage) -> str:
    piece = "; pieces are not put together here" if error.field == "fragment" else ""
    return f"{len(message.payload):,} bytes of type {message.mtype}: {error}{piece}"


def replayed(recording: Recording) -> tuple[int, float, list[Trouble]]:
    """Put a recording through the plug-in.

    Returns
    -------
    steps : int
    seconds : float
    troubles : list of Trouble
        In the order of the messages.
    """
    steps, troubles = steps_of(recording)
    assert recording.channel is not None
    replay = Replay(recording.channel, any(step.flag == DRAFT for _, step in steps))
    began = time.perf_counter()
    for index, step in steps:
        troubles += replay.put(index, step)
    return len(steps), time.perf_counter() - began, sorted(troubles, key=lambda one: one.index)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.incident", description=__doc__)
    parser.add_argument("file", metavar="FILE", help="a recording, or a flight recorder's file")
    args = parser.parse_args(argv)
    try:
        with Recording(open_input(args.file)) as recording:
            recording.name = args.file
            steps, seconds, troubles = replayed(recording)
    except (OSError, RecordingError, Unavailable) as error:
        print(f"tools.incident: {error}", file=sys.stderr)
        return 2
    print(f"{steps:,} steps in {seconds:.3f} s")
    for trouble in troubles:
        print(f"message {trouble.index}: {trouble.kind}: {trouble.text}")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
