"""FastDeploy's zmq ends over queues of bytes in this process; the bytes are what FastDeploy sends."""

import pickle
import queue

import msgpack

from fastdeploy import envs

PUSH, PULL, ROUTER = "PUSH", "PULL", "ROUTER"
_endpoints = {}


def endpoint(name):
    """The queue of bytes behind an ipc name."""
    return _endpoints.setdefault(name, queue.SimpleQueue())


class ZmqIpcServer:
    """The engine's end of a socket."""

    def __init__(self, name, mode):
        self.name, self.mode = name, mode
        self.socket = endpoint(name)
        self.running = True

    def recv_pyobj(self):
        """Wait for a pickled object."""
        return pickle.loads(self.socket.get())

    def receive_pyobj_once(self, block=False):
        """(error text or None, object or None)."""
        try:
            return None, pickle.loads(self.socket.get(block=block))
        except queue.Empty:
            return None, None
        except Exception as error:
            return str(error), None

    def send_response(self, req_id, data, worker_pid=None):
        """Send results: a list of lists in one message, or one request's list in a message of its own."""
        if envs.FD_ENABLE_INTERNAL_ADAPTER or envs.ZMQ_SEND_BATCH_DATA:
            self.socket.put(msgpack.packb([[result.to_dict() for result in results] for results in data]))
        else:
            self.socket.put(msgpack.packb([result.to_dict() for result in data]))

    def close(self):
        self.running = False
        _endpoints.pop(self.name, None)


class ZmqIpcClient:
    """The API server's end."""

    def __init__(self, name, mode):
        self.name, self.mode = name, mode
        self.socket = endpoint(name)

    def receive(self, timeout=None):
        """One message, unpacked to what the API server sees; queue.Empty after `timeout` seconds."""
        return msgpack.unpackb(self.socket.get(timeout=timeout))

    def send_pyobj(self, data):
        self.socket.put(pickle.dumps(data))
