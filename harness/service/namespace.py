"""System V queues of one's own: an IPC namespace with its own kernel limits.  Needs root."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

DEFAULT = {"msgmax": 8192, "msgmnb": 16384}
"""What a new kernel has."""
RAISED = {"msgmax": 1 << 20, "msgmnb": 4 << 20}
"""Room for seven of FastDeploy's longest messages."""


class Namespace:
    """An IPC namespace that lives until it is closed, through all that enter and leave it.

    Parameters
    ----------
    limits : mapping of str to int
        Kernel limits in it, in bytes: ``msgmax`` and ``msgmnb``.

    Raises
    ------
    PermissionError
        If this user may not make one.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        writes = "; ".join(f"echo {value} > /proc/sys/kernel/{name}" for name, value in limits.items())
        self._process = subprocess.Popen(
            ["unshare", "--ipc", "sh", "-ec", f"{writes}; echo ready; exec sleep infinity"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        if not self._process.stdout.readline():
            said = self._process.stderr.read().decode(errors="replace").strip()
            self.close()
            raise PermissionError(f"an IPC namespace with limits of its own cannot be made here: {said}")
        self._path = f"/proc/{self._process.pid}/ns/ipc"

    @property
    def enter(self) -> list[str]:
        """A command that runs the one after it in here."""
        return ["nsenter", f"--ipc={self._path}", "--"]

    def queues(self) -> dict[int, tuple[int, int]]:
        """Its queues by key: bytes and messages that wait."""
        command = [*self.enter, "cat", "/proc/sysvipc/msg"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        rows = (list(map(int, line.split())) for line in listed[1:])
        return {key: (waiting, messages) for key, _, _, waiting, messages, *_ in rows}

    def waiting(self) -> int:
        """How many messages wait in its queues."""
        return sum(messages for _, messages in self.queues().values())

    def close(self) -> None:
        """It cannot be entered any more; its queues go with the last process in it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for pipe in self._process.stdout, self._process.stderr:
            pipe.close()

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def possible() -> str | None:
    """Why namespaces cannot be made here, or None."""
    if not Path("/proc/sys/kernel/msgmax").exists():
        return "this kernel has no System V queues"
    try:
        Namespace(RAISED).close()
    except (PermissionError, FileNotFoundError) as error:
        return str(error)
    return None
