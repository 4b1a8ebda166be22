"""The surroundings of ``fd-postproc demo``: private queues, the second process, the comparison."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import sysv_ipc

from .._core import Receiver, Step
from ..layout import Channel
from ..queues import not_made
from ..subprocess_json import python_command
from .tables import plural
from .terminal import CommandError, note, undisturbed

if TYPE_CHECKING:
    from .workload import Item

_SILENCE_S = 30.0
_LOOK_S = 0.2


@contextlib.contextmanager
def private_queues(channels: list[Channel]) -> Iterator[dict[Channel, Receiver]]:
    """A Receiver for each channel, on queues with a random key, which are removed in any case."""
    made: list[sysv_ipc.MessageQueue] = []
    try:
        for _ in channels:
            with undisturbed():  # between the kernel's making it and our noting it
                try:
                    made.append(sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX, mode=0o600))
                except OSError as error:
                    raise not_made(error, "making a private queue") from None
        yield {
            channel: Receiver(channel, key=queue.key) for channel, queue in zip(channels, made, strict=True)
        }
    finally:
        with undisturbed():
            for queue in made:
                with contextlib.suppress(sysv_ipc.ExistentialError):
                    queue.remove()


def _opened(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise AssertionError("a pipe was requested")
    return pipe


class SenderProcess:
    """The second process.

    Parameters
    ----------
    orders : dict
        For `sender.main`.
    """

    def __init__(self, orders: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            python_command(f"{__package__}.sender"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._orders = _opened(self._process.stdin)
        self._errors = _opened(self._process.stderr)
        try:
            self._orders.write(json.dumps(orders) + "\n")
            self._orders.flush()
        except BrokenPipeError:
            raise CommandError(self.obituary("anything was sent")) from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        # Not Popen.poll(): a Ctrl-C right after it took its lock leaves the lock held, and wait() hangs.
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def obituary(self, before: str) -> str:
        """The reason why the process has ended, as a sentence."""
        status = self._process.wait()
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        last = self._errors.read().strip().splitlines()[-1:]
        return f"the sender process {how} before {before}" + (f": {last[0]}" if last else "")

    def __enter__(self) -> SenderProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is not None:
            with undisturbed():
                self._process.kill()
                self._process.wait()
        self._process.wait()
        self._errors.close()
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()


@dataclass
class Incoming:
    """Comparison of received steps with the expected ones."""

    receivers: dict[Channel, Receiver]
    sender: SenderProcess
    different: list[str] = field(default_factory=list)

    def next(self, item: Item) -> Step:
        """Check the step of `item`, which is the next one on its channel.

        Raises
        ------
        CommandError
            If the sender is gone, or nothing arrives for half a minute.
        """
        receiver = self.receivers[item.step.channel]
        give_up = time.monotonic() + _SILENCE_S
        ended = False
        while True:
            step = receiver.receive(0 if ended else _LOOK_S)
            if step is not None:
                if step != item.step:
                    self.different.append(item.name)
                return step
            if ended:
                raise CommandError(self.sender.obituary(f"message '{item.name}' arrived"))
            if time.monotonic() > give_up:
                raise CommandError(f"nothing came for {_SILENCE_S:.0f} s; message '{item.name}' is missing")
            ended = self.sender.ended  # then once more: what it sent before it ended is still in the queue

    def verdict(self) -> int:
        """Exit status, after a report of differences on stderr."""
        if not self.different:
            return 0
        names = ", ".join(dict.fromkeys(self.different))
        note(
            f"fd-postproc demo: {plural(len(self.different), 'message')} arrived different from what was "
            f"sent: {names}"
        )
        return 1
