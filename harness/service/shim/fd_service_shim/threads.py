"""Each thread carries the name of what it runs, and the engine's process tells how long each has run."""

import ctypes
import json
import os
import socket
import threading
import time
from pathlib import Path

_SET_NAME = 15  # PR_SET_NAME
_ENGINES = "process_sampling_results"

beside = {}
"""Processes of the engine whose CPU time `clocks` tells, too: by name, their number."""


def name_them():
    """From now on, in this process: ``/proc/PID/task/TID/comm`` has the name of a thread's function."""
    prctl = ctypes.CDLL(None).prctl
    run = threading.Thread.run

    def named(self):
        target = getattr(self, "_target", None)
        name = getattr(target, "__name__", None) or self.name
        prctl(_SET_NAME, name.encode()[:15], 0, 0, 0)
        for variable, watch in ("FD_SERVICE_CLOCKS", tell_clocks), ("FD_SERVICE_ENDS_THREAD", end_threads):
            path = os.environ.get(variable)
            if path and name == _ENGINES:
                threading.Thread(target=watch, args=(path,), daemon=True).start()
        run(self)

    threading.Thread.run = named


def end_threads(path):
    """SystemExit in the thread whose function a file names; a thread that waits gets it when it goes on."""
    while True:
        time.sleep(0.1)
        if os.path.exists(path):
            wanted = Path(path).read_text()
            os.unlink(path)
            for thread in threading.enumerate():
                if getattr(getattr(thread, "_target", None), "__name__", "") == wanted:
                    number = ctypes.c_ulong(thread.ident)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(SystemExit))


def tell_clocks(path):
    """A client gets names and CPU seconds: a process can read its own threads' clocks only."""
    with socket.socket(socket.AF_UNIX) as server:
        Path(path).unlink(missing_ok=True)
        server.bind(path)
        server.listen()
        while True:
            with server.accept()[0] as client:
                client.sendall(json.dumps(clocks()).encode())


def clocks():
    """Name and CPU seconds of each thread of this process, and of processes `beside`, by id."""
    found = {}
    for entry in Path("/proc/self/task").iterdir():
        thread = int(entry.name)
        try:
            name = (entry / "comm").read_text().strip()
            found[thread] = name, time.clock_gettime((~thread << 3) | 6)  # its CPUCLOCK_SCHED
        except OSError:
            continue
    for name, pid in beside.items():
        found[pid] = name, time.clock_gettime((~pid << 3) | 2)
    return found
