"""What the tests of the doctor share: processes that use queues, and findings by code."""

import subprocess

import pytest

from fd_postproc import doctor
from fd_postproc.doctor import Scope
from tests.lib.children import FD_POSTPROC, python
from tests.lib.waiting import PATIENCE

PROGRAM = [FD_POSTPROC, "doctor"]


ID = 8002


def by_hand(code, *arguments, **options):
    """Start another process with sysv_ipc and fd_postproc at hand."""
    source = f"import sys, time, sysv_ipc\nimport fd_postproc as fp\n{code}"
    return subprocess.Popen(python(source, *arguments), stdin=subprocess.PIPE, **options)


def dead_user(key, code="q.send(b'x' * 100)\nq.receive()"):
    """A process that uses a queue and is gone."""
    script = (
        f"import sys, sysv_ipc\nq = sysv_ipc.MessageQueue(int(sys.argv[1]), max_message_size=1 << 20)\n{code}"
    )
    command = python(script, key)
    process = subprocess.Popen([command[0], "-S", *command[1:]], stdin=subprocess.DEVNULL)
    assert process.wait(timeout=PATIENCE) == 0
    return process.pid


def scope_of(queue, **options):
    """One queue; FastDeploy's double, which the tests can import, is not tried again and again."""
    return Scope(keys=frozenset([queue.key]), **{"trial": False, **options})


def examined(queue, **options):
    """Findings about a queue by code."""
    findings = doctor.examine(scope_of(queue, **options))
    return {
        finding.code: finding
        for finding in findings
        if finding.msqid == queue.id and finding.group == "queues"
    }


def in_namespaces(code, *arguments, flags):
    """Run code as root of new namespaces; skip where that is not permitted."""
    command = ["unshare", *flags, *python(code, *arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if "unshare failed" in done.stderr or "unshare: " in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout
