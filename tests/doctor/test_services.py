"""Does the process at each end of a queue use the plug-in?  Real processes, looked at from outside."""

import os
import subprocess

import pytest

import fd_postproc as fp
from fd_postproc import doctor
from fd_postproc.doctor import Scope
from fd_postproc.doctor.services import check_services
from tests.lib.children import python

SEND = """
import sys, time
import fd_postproc as fp
fp.Sender("plain", key=int(sys.argv[1])).send(fp.Step.from_arrays("plain", [1], [[5]]))
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def running(queue_key):
    """Start a worker with some environment, and look at the queue between it and this process."""
    children = []

    def start(**variables):
        environment = {name: value for name, value in os.environ.items() if name != "FD_POSTPROC_PEER"}
        child = subprocess.Popen(
            python(SEND, queue_key),
            env=environment | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        children.append(child)
        assert child.stdout.readline() == b"sent\n"
        with fp.Receiver("plain", key=queue_key) as receiver:
            assert receiver.receive(10) is not None
            scope = Scope(keys=frozenset([queue_key]), trial=False)
            return check_services(doctor.take(scope))

    yield start
    for child in children:
        child.stdin.close()
        child.stdout.close()
        child.wait()


def test_an_active_engine_has_told_its_workers(running):
    (found,) = running(FD_POSTPROC_PEER="compact/1")
    assert (found.code, found.severity) == ("service", "ok")
    assert f"engine process {os.getpid()}" in found.seen
    assert "fd_postproc is active" in found.seen
    assert "fd_postproc is loaded" in found.seen.partition("worker process")[2]


def test_an_engine_that_stands_aside_has_not(running):
    (found,) = running()
    assert found.severity == "info"
    assert "loaded and stands aside" in found.seen
    assert "grep fd_postproc" in found.remedy[0]


def test_one_process_at_both_ends_is_no_service(queue_key):
    with fp.Sender("plain", key=queue_key) as sender, fp.Receiver("plain", key=queue_key) as receiver:
        sender.send(fp.Step.from_arrays("plain", [1], [[5]]))
        assert receiver.receive(10) is not None
        assert check_services(doctor.take(Scope(keys=frozenset([queue_key]), trial=False))) == []


def test_who_floods_a_queue_is_not_taken_for_the_worker(queue, live_user):
    code = "q = sysv_ipc.MessageQueue(int(sys.argv[1]))\nfor _ in range(300): q.send(b'')\nprint(flush=True)"
    flooder = live_user(code, queue.key, stdout=subprocess.PIPE)
    flooder.stdout.readline()
    queue.receive()
    (found,) = check_services(doctor.take(Scope(keys=frozenset([queue.key]), trial=False)))
    flooder.stdout.close()
    assert f"engine process {os.getpid()}" in found.seen
    assert found.data["worker"] is None
    assert "worker" not in found.seen
