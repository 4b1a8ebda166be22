"""The transports between a Sender and a Receiver, so that one test runs over each."""

import contextlib
import shutil
import tempfile

import sysv_ipc
import zmq

import fd_postproc as fp


class Road:
    """One private way, from any number of Senders to one Receiver.

    Parameters
    ----------
    kind : {"sysv", "ipc", "tcp"}
    new_key : callable
        Gives keys of queues that do not exist.
    """

    def __init__(self, kind, new_key):
        self.kind = kind
        self._open = contextlib.ExitStack()
        if kind == "sysv":
            self.end = {"key": new_key()}
        elif kind == "ipc":
            folder = tempfile.mkdtemp(prefix="fd-road-")
            self._open.callback(shutil.rmtree, folder)
            self.end = {"address": f"ipc://{folder}/road"}
        else:
            self.end = {"address": "tcp://127.0.0.1:*"}

    @property
    def is_queue(self):
        return self.kind == "sysv"

    def receiver(self, channel="plain", **more):
        receiver = self._open.enter_context(fp.Receiver(channel, **self.end, **more))
        if receiver.address:
            self.end = {"address": receiver.address}  # with the port that it has
        return receiver

    def sender(self, channel="plain", **more):
        if self.is_queue:
            more = {"dialect": "compact"} | {
                name: more[name] for name in more if name not in ("hwm", "linger")
            }
        else:
            more = {"linger": 0.0} | more
        return self._open.enter_context(quietly(fp.Sender(channel, **self.end, **more)))

    def inject(self, *messages):
        """Put bytes in the way as messages of their own, through an independent library."""
        if self.is_queue:
            queue = sysv_ipc.MessageQueue(self.end["key"], max_message_size=1 << 20)
            for message in messages:
                queue.send(message, type=2)
            return
        context = zmq.Context()
        self._open.callback(context.destroy, linger=0)
        socket = context.socket(zmq.PUSH)
        self._open.callback(socket.close, linger=0)
        socket.connect(self.end["address"])
        for message in messages:  # they wait in it until the receiver receives
            socket.send_multipart(message if isinstance(message, list) else [message])

    def close(self):
        self._open.close()


class quietly:
    """A Sender, closed at the end whatever it has left."""

    def __init__(self, sender):
        self.sender = sender

    def __enter__(self):
        return self.sender

    def __exit__(self, *exc):
        with contextlib.suppress(fp.QueueTimeout):
            self.sender.close()


def numbered(k):
    return fp.Step.from_arrays("plain", [1], [k])


def large(k):
    """As large as a step of one token may be: few of them fill what a kernel keeps of a connection."""
    return fp.Step.from_arrays("plain", [1] * 256, [k] * 256)


def token(step):
    return step.token_ids(0)[0]


def arriving(receiver, count):
    return [token(receiver.receive(20)) for _ in range(count)]


def filled(sender, step):
    """Send until nothing more goes for a while, not even into the kernel; how many went."""
    for n in range(1 << 20):
        try:
            sender.send(step, 0.3)
        except fp.QueueTimeout:
            return n
    raise AssertionError("it never filled up")
