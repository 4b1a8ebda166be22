"""An engine whose exit hangs, as one did that waited for a ZeroMQ context to end."""

import atexit
import os
import sys


def hang():
    """From now on, in the engine's process: its last callback does not return."""
    if os.environ.get("FD_SERVICE_EXIT_HANGS") and any("api_server" in word for word in sys.orig_argv):
        atexit.register(_wait_for_context, os.getpid())


def _wait_for_context(process):
    if os.getpid() == process:  # not gunicorn's children
        import zmq

        context = zmq.Context()
        socket = context.socket(zmq.PUSH)
        socket.connect("tcp://127.0.0.1:9")  # nobody takes it
        socket.send(b"")
        socket.close(linger=-1)
        context.term()
