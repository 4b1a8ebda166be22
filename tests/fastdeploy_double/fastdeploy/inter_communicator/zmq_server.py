"""FastDeploy's zmq ends over queues of bytes in this process; the bytes are what FastDeploy sends."""

import pickle
import queue
import threading
import time

import msgpack

from fastdeploy import envs
from fastdeploy.utils import llm_logger

PUSH, PULL, ROUTER = "PUSH", "PULL", "ROUTER"
_endpoints = {}


def endpoint(name):
    """The queue of bytes behind an ipc name."""
    return _endpoints.setdefault(name, queue.SimpleQueue())


class Socket:
    """One end, as far as results need it."""

    def __init__(self, name):
        self.queue = endpoint(name)

    def send(self, content, flags=0, copy=True):
        self.queue.put(bytes(content))

    def recv(self, flags=0):
        return self.queue.get()


def _msgpack_default(value):
    """For values that msgpack does not know."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be packed")


class ZmqServerBase:
    """Sends results."""

    def _send_batch_response(self, batch_data, worker_pid=None):
        """One message of all requests of a client process."""
        try:
            packed = msgpack.packb(
                [[output.to_dict() for output in outputs] for outputs in batch_data], default=_msgpack_default
            )
            start = time.time()
            socket = self.socket if worker_pid is None else self._get_worker_push_socket(worker_pid)
            with self.response_token_lock:
                socket.send(packed, copy=False)
            llm_logger.debug(f"{len(batch_data)} requests sent to {worker_pid} in {time.time() - start}")
        except Exception as error:
            llm_logger.error(f"sending to {worker_pid} failed: {error}")

    def _get_worker_push_socket(self, worker_pid):
        """All processes of the API server read the same socket here."""
        return self.socket

    def send_response(self, req_id, data, worker_pid=None):
        """Send results: a list of lists in one message, or one request's list in a message of its own."""
        if envs.ZMQ_SEND_BATCH_DATA:
            self._send_batch_response(data, worker_pid=worker_pid)
        else:
            self.socket.send(msgpack.packb([result.to_dict() for result in data]))


class ZmqIpcServer(ZmqServerBase):
    """The engine's end of a socket."""

    def __init__(self, name, mode):
        self.name, self.mode = name, mode
        self.socket = Socket(name)
        self.running = True
        self.response_token_lock = threading.Lock()

    def recv_pyobj(self):
        """Wait for a pickled object, in FastDeploy's envelope or without one."""
        told = pickle.loads(self.socket.recv())
        return told["data"] if isinstance(told, dict) and "__meta" in told else told

    def receive_pyobj_once(self, block=False):
        """(error text or None, object or None)."""
        try:
            return None, pickle.loads(self.socket.queue.get(block=block))
        except queue.Empty:
            return None, None
        except Exception as error:
            return str(error), None

    def close(self):
        self.running = False
        _endpoints.pop(self.name, None)
