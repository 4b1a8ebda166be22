"""What the tests of the doctor share: processes that use queues, and findings by code."""

import subprocess

from fd_postproc import doctor
from fd_postproc.doctor import Scope
from tests.lib.children import python
from tests.lib.waiting import PATIENCE


def queue_user(key, code, **options):
    """Start a process that uses a queue, ``q``, and imports nothing else."""
    source = f"import sys, sysv_ipc\nq = sysv_ipc.MessageQueue({key}, max_message_size=1 << 20)\n{code}"
    program, *arguments = python(source)
    return subprocess.Popen([program, "-S", *arguments], **{"stdin": subprocess.PIPE, **options})


def dead_user(key, code="q.send(b'x' * 100)\nq.receive()"):
    """A process that uses a queue and is gone."""
    process = queue_user(key, code, stdin=subprocess.DEVNULL)
    assert process.wait(timeout=PATIENCE) == 0
    return process.pid


def examined(queue, **options):
    """Findings about a queue by code."""
    findings = doctor.examine(Scope(keys=frozenset([queue.key]), trial=False, **options))
    return {one.code: one for one in findings if one.msqid == queue.id and one.group == "queues"}
