"""What a sandbox takes away: system calls (a seccomp filter), and files of ``/proc``."""

import ctypes
import os
import struct
import subprocess

import pytest

# Numbers of msgrcv and msgctl, and for each call the argument that a filter looks at: the size, the command.
_CALLS = {"x86_64": {"msgrcv": 70, "msgctl": 71}, "aarch64": {"msgrcv": 188, "msgctl": 187}}
_ARGUMENT = {"msgrcv": 2, "msgctl": 1}
IPC_INFO = 3
ONE_OF, ABOVE = 0x15, 0x25  # BPF_JEQ, BPF_JGT
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_ERRNO, _ALLOW = 0x50000, 0x7FFF0000

PIDS_ONLY = [
    "unshare",
    "-m",
    "-p",
    "-f",
    "sh",
    "-c",
    'mount -t proc -o subset=pid proc /proc && exec "$@"',
    "sh",
]
"""Command prefix: ``/proc`` has processes only, as under systemd's ``ProcSubset=pid``."""


def refuse(call, how, number, code):
    """From now on, and for good, this process gets an errno for a system call with such an argument."""
    calls = _CALLS.get(os.uname().machine)
    if calls is None:
        pytest.skip("the numbers of this machine's system calls are not known here")
    steps = [
        (0x20, 0, 0, 0),  # the call
        (ONE_OF, 0, 3, calls[call]),
        (0x20, 0, 0, 16 + 8 * _ARGUMENT[call]),
        (how, 0, 1, number),
        (0x06, 0, 0, _ERRNO | code),
        (0x06, 0, 0, _ALLOW),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    filters = ctypes.create_string_buffer(struct.pack("H6xQ", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(_PR_SET_SECCOMP, _FILTER, filters, 0, 0) == 0, os.strerror(ctypes.get_errno())


def need(prefix):
    """Skip the test where a command prefix is not permitted."""
    done = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{prefix[0]} is not permitted here: {done.stderr.strip()}")
