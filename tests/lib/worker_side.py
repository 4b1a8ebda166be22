"""What the tests of the plug-in's worker side share: steps to save, lines of the log, FastDeploy's ops.

Full-size messages of type 1 are sent whatever they hold, a failed send is one printed line.  An independent
library moves the bytes.
"""

import logging
import sys
import time

import numpy as np
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc._core import payload_size
from fd_postproc.fastdeploy.events import log
from fd_postproc.fastdeploy.worker import entry as worker
from fd_postproc.fastdeploy.worker import kernel_warmup
from fd_postproc.fastdeploy.worker.save_ops import SaveOp
from fd_postproc.ops.table import SAVE_OPS
from tests import reference
from tests.lib.frameworks import Paddle
from tests.lib.rows import each
from tests.lib.sampled_steps import KINDS, Requests
from tests.lib.save_cases import CHANNELS

CHANNEL = each("channel", KINDS)
LOGPROBS = each("channel", ["topk", "spec_topk"])


class Called(list):
    """Names of FastDeploy's own ops that were called."""

    def anew(self):
        """Turn the worker side on again for the next row of a table: nothing is decided yet."""
        restore_save_ops()
        self.clear()
        worker.register()


def lines(log, level, *words):
    """What FastDeploy's log got of a level, with all these words."""
    own = [one for one in log.records if one.name.startswith("fastdeploy") and one.levelname == level]
    return [text for text in (one.getMessage() for one in own) if all(word in text for word in words)]


def sampled(channel, seed=1, batch=5, cols=3):
    return Requests(np.random.default_rng(seed), batch, cols, 6, plain=False)


def save(double, channel, requests, masks=None, **keywords):
    """What FastDeploy's worker does after sampling."""
    calls = double.model_executor__pre_and_post_process
    inputs = KINDS[channel](requests, tensor=Paddle().tensor)
    inputs.share["last_preempted_idx"], inputs.sampler.sampling_mask = inputs.preempted, masks
    if channel.startswith("spec"):
        calls.save_output_specualate(
            inputs.sampler, inputs.model, inputs.share, inputs.proposer, 0, 0, **keywords
        )
    else:
        calls.save_output_normal(inputs.model, inputs.sampler, inputs.share, **keywords)
    return inputs


def arrives(double, channel, *which):
    """A step of sampled requests, by seed, that is saved and received by our Receiver."""
    requests = sampled(channel, *which)
    save(double, channel, requests)
    requests.check(receive_ours(channel))


def restore_save_ops():
    """FastDeploy's own save ops again, wherever ours went; nothing that the worker side has begun goes on."""
    kernel_warmup.end()
    for name, module in list(sys.modules.items()):
        if name.startswith("fastdeploy.") and hasattr(module, "__dict__"):
            for op in SAVE_OPS:
                bound = vars(module).get(op)
                if isinstance(bound, SaveOp):
                    setattr(module, op, bound.original)
    logging.getLogger("fd_postproc").removeHandler(log._forward)


# ---- FastDeploy's own ops, as its packed builds have them -------------------------------------------

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


STOCK_OPS = {name: save_op(name) for name in CHANNELS}


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
