"""What the engine does with requests of an API process that is gone: real processes that stop and die."""

import os
import signal
import socket
import subprocess
import threading
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.engine.health import api_processes
from fd_postproc.fastdeploy.engine.health.api_processes import GONE_S, LOOK_S, ApiProcesses
from fd_postproc.support.process_stat import KnownProcess, process_stat
from tests.lib.children import python
from tests.lib.restores import restores
from tests.lib.rows import each
from tests.lib.waiting import until

LISTEN = """
import socket, sys, time
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print(flush=True)
time.sleep(600)
"""


class Push:
    linger = None

    def close(self, linger):
        self.linger = linger


@pytest.fixture
def scene(tmp_path):
    """An engine, its clock, and functions that start an API process with requests, and look."""
    made = SimpleNamespace(now=0.0, log=[], processes=[], pushes={})
    made.envs = SimpleNamespace(FD_ENABLE_REQUEST_DISCONNECT_STOP_INFERENCE=1, ENABLE_V1_KVCACHE_SCHEDULER=1)
    made.server = SimpleNamespace(
        worker_push_sockets={}, worker_push_addresses={}, worker_push_lock=threading.Lock(),
        response_token_lock=threading.Lock(),
    )  # fmt: skip
    made.manager, made.scheduler = SimpleNamespace(requests={}, aborted=[]), SimpleNamespace(requests={})
    made.manager.add_abort_req_ids = made.manager.aborted.extend
    made.engine = SimpleNamespace(
        request_worker_map={}, send_response_server=made.server, resource_manager=made.manager,
        scheduler=made.scheduler, llm_logger=SimpleNamespace(error=made.log.append),
    )  # fmt: skip
    made.seen = ApiProcesses(lambda: made.now)

    def ask(pid, *names):
        made.engine.request_worker_map.update(dict.fromkeys(names, pid))
        made.manager.requests.update(dict.fromkeys(names))
        made.path = tmp_path / f"response_w{pid}.pull"
        made.pushes[pid] = made.server.worker_push_sockets[pid] = Push()
        made.server.worker_push_addresses[pid] = f"ipc://{made.path}"

    def start(*names):
        process = subprocess.Popen(python(LISTEN, str(tmp_path / "socket")), stdout=subprocess.PIPE)
        made.processes.append(process)
        process.stdout.readline()
        ask(process.pid, *names)
        (tmp_path / "socket").rename(made.path)
        return process

    def look(seconds=LOOK_S, times=1):
        for _ in range(times):
            made.now += seconds
            made.seen.look(made.engine, made.envs)

    made.ask, made.start, made.look = ask, start, look
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
        process.stdout.close()


def kill(process):
    process.kill()
    process.wait()


def test_requests_of_a_process_that_was_killed_are_aborted_once(scene):
    dead, alive = scene.start("a_0", "b_0"), scene.start("c_0")
    scene.manager.requests.pop("b_0")
    scene.scheduler.requests["b_0"] = None  # it waits for a slot
    gone = scene.server.worker_push_addresses[dead.pid].removeprefix("ipc://")
    scene.look(times=3)
    kill(dead)
    scene.look(times=int(GONE_S))
    assert scene.manager.aborted == []
    scene.look(times=3)
    assert scene.manager.aborted == ["a_0", "b_0"]
    assert (scene.seen.requests, scene.seen.gone) == (2, {dead.pid})
    assert scene.pushes[dead.pid].linger == 0
    assert not os.path.exists(gone)
    assert os.path.exists(scene.path)
    assert list(scene.server.worker_push_sockets) == [alive.pid]
    assert [str(dead.pid) in line for line in scene.log] == [True]
    scene.engine.request_worker_map["late_0"] = dead.pid  # was on its way
    scene.manager.requests["late_0"] = None
    scene.look()
    assert scene.manager.aborted[2:] == ["late_0"]


def test_what_is_left_of_it_goes(scene):
    """FastDeploy's map keeps a name of each abort for ever; a later process may have the number."""
    dead = scene.start("a_0")
    scene.look()
    kill(dead)
    scene.look(times=int(GONE_S) + 1)
    scene.manager.requests.clear()
    scene.look()
    assert scene.engine.request_worker_map == {"a_0": dead.pid}
    scene.look(times=2)
    assert scene.engine.request_worker_map == {}
    assert scene.seen.gone == set()


def test_a_stopped_process_is_alive(scene):
    process = scene.start("a_0")
    scene.look()
    process.send_signal(signal.SIGSTOP)
    until(lambda: process_stat(process.pid)[0] == "T")
    scene.look(times=60)
    assert (scene.manager.aborted, scene.seen.gone, scene.pushes[process.pid].linger) == ([], set(), None)


def test_restores_end_nothing_and_hide_nothing(scene, monkeypatch):
    """Numbers stay, start times are new; a process that is killed afterwards is gone in time."""
    restore, process, other = restores(monkeypatch), scene.start("a_0"), scene.start("b_0")
    scene.look()
    for _ in range(3):
        restore()
        scene.look(times=int(GONE_S) + 1)
    assert (scene.manager.aborted, scene.seen.gone, scene.pushes[process.pid].linger) == ([], set(), None)
    kill(process)
    restore()
    scene.look(times=int(GONE_S) + 2)
    assert (scene.manager.aborted, scene.seen.gone) == (["a_0"], {process.pid})
    assert scene.pushes[other.pid].linger is None


@each(
    "name, runs_on", [("FD_ENABLE_REQUEST_DISCONNECT_STOP_INFERENCE", 0), ("ENABLE_V1_KVCACHE_SCHEDULER", 0)]
)
def test_where_a_disconnect_does_not_abort_only_the_socket_is_closed(name, runs_on, scene):
    setattr(scene.envs, name, runs_on)
    before = scene.seen.requests
    process = scene.start("a_0")
    scene.look()
    kill(process)
    scene.look(times=int(GONE_S) + 1)
    assert (scene.manager.aborted, scene.seen.requests - before) == ([], 1)
    assert scene.pushes[process.pid].linger == 0
    assert scene.seen.gone == {process.pid}
    scene.envs.__dict__.update(dict.fromkeys(vars(scene.envs), 1))
    scene.engine.request_worker_map.clear()
    scene.look()


@each("listens", [True, False])
def test_a_process_that_cannot_be_seen_is_alive_while_its_socket_is(listens, scene, tmp_path):
    """It may be in another PID namespace."""
    scene.ask(2**22 + 5, "a_0")  # no process has that number
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(scene.path))
        if listens:
            listening.listen()
        scene.look(times=int(GONE_S) + 2)
    scene.path.unlink(missing_ok=True)
    assert scene.manager.aborted == ([] if listens else ["a_0"])
    scene.manager.aborted.clear()
    scene.engine.request_worker_map.clear()
    scene.seen._forget(2**22 + 5)


def test_the_file_of_a_socket_at_which_another_process_listens_stays(scene, monkeypatch):
    """That of the next API process, which has another number and the same path."""
    process = scene.start("a_0")
    scene.look()
    kill(process)
    monkeypatch.setattr(api_processes, "_listens", lambda address: True)
    scene.look(times=int(GONE_S) + 1)
    assert (scene.seen.gone, scene.path.exists()) == ({process.pid}, True)


@each("listens", [True, False])
def test_a_number_that_another_process_has_got(listens, scene, monkeypatch):
    """One that listens is the next API process, whose requests go on; else it is another program."""
    process = scene.start(name := f"{listens}_0")
    scene.look()
    kill(process)
    other = KnownProcess(process.pid, 1, 1)
    monkeypatch.setattr(KnownProcess, "of", classmethod(lambda cls, pid: other))
    monkeypatch.setattr(KnownProcess, "is_alive", lambda self: self is other)
    monkeypatch.setattr(api_processes, "_listens", lambda address: listens)
    if listens:
        scene.engine.request_worker_map["b_0"] = process.pid
        scene.manager.requests["b_0"] = None
    scene.look(times=int(GONE_S) + 3)
    assert scene.manager.aborted == [name]
    assert scene.seen.gone == (set() if listens else {process.pid})
    assert scene.pushes[process.pid].linger == (None if listens else 0)
    monkeypatch.setattr(api_processes, "_listens", lambda address: True)
    scene.ask(process.pid, "c_0")  # of the next API process
    scene.look(times=2)
    assert scene.seen.gone == set()
    scene.manager.aborted.clear()
    scene.server.worker_push_addresses.clear()
    scene.engine.request_worker_map.clear()
    scene.seen._forget(process.pid)


def test_a_look_that_fails_is_logged(scene):
    scene.engine.request_worker_map = None
    scene.look()
    assert "the look at the API processes failed" in scene.log[0]
