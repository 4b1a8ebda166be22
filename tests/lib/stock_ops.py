"""FastDeploy's own save ops as its packed builds have them, and its engine's end of their queues.

Full-size messages of type 1 are sent whatever they hold, a failed send is one printed line.  An independent
library moves the bytes.
"""

import time

import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc._core import payload_size
from tests import reference
from tests.lib.save_cases import CHANNELS

NOTHING_CAME = (-2).to_bytes(4, "little", signed=True)


def queue_of(channel):
    """The channel's queue, made as FastDeploy's ops make it."""
    return sysv_ipc.MessageQueue(
        queues.locate(channel), sysv_ipc.IPC_CREAT, mode=0o666, max_message_size=payload_size(channel)
    )


def save_op(name):
    """FastDeploy's save op of this name."""

    def save(*arguments):
        saved = reference.save(name, *(_plain(argument) for argument in arguments))
        if saved is not None:
            size = payload_size(CHANNELS[name])
            try:
                queue_of(CHANNELS[name]).send(saved.payload.ljust(size, b"\0"))
            except (OSError, ValueError):
                print("full msg buffer")

    save.__name__ = name
    return save


def _plain(argument):
    return argument.numpy() if hasattr(argument, "numpy") else argument


SAVE_OPS = {name: save_op(name) for name in CHANNELS}


class Nothing(Exception):
    """No message came."""


def _payload(channel, patience):
    """The next message, whatever its type, in a buffer of the full size."""
    deadline = time.monotonic() + patience
    while True:
        try:
            message, _ = queue_of(channel).receive(block=False)
        except sysv_ipc.BusyError:
            if time.monotonic() > deadline:
                raise Nothing from None
            time.sleep(0.002)
        else:
            return message.ljust(payload_size(channel), b"\0")


def receive(channel, patience=10):
    """One step as FastDeploy's engine gets it, which passes over compact frames by their first word."""
    while True:
        payload = _payload(channel, patience)
        if payload[:4] != NOTHING_CAME:
            return fp.decode(payload, channel)


def receive_ours(channel, patience=10):
    """One step as our Receiver gets it."""
    with fp.Receiver(channel) as receiver:
        step = receiver.receive(patience)
    if step is None:
        raise Nothing
    return step
