"""An engine whose exit hangs, as one did that waited for a ZeroMQ context to end."""

import functools
import os


def hang(module):
    """From now on FastDeploy's finalizer of an engine does not return, where that is wanted."""
    if not os.environ.get("FD_SERVICE_EXIT_HANGS"):
        return
    process, real = os.getpid(), module.EngineService._exit_sub_services

    @functools.wraps(real)
    def ends(self):
        if os.getpid() == process:  # not gunicorn's children, which run it, too
            _wait_for_context()  # before FastDeploy closes sockets, by which ZeroMQ may abort the process
        real(self)

    module.EngineService._exit_sub_services = ends


def _wait_for_context():
    import zmq

    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.connect("tcp://127.0.0.1:9")  # nobody takes it
    socket.send(b"")
    socket.close(linger=-1)
    context.term()
