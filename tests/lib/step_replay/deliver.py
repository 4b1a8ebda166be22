"""Ways to give a message to a class that does not receive through FastDeploy's ops: see `Replay`.

Health stamps belong to the receive loop and are left alone.
"""

import os
import pickle

import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from tests.lib.plugged import take
from tests.lib.step_replay.tensors import fill
from tests.lib.step_replay.traces import payload
from tests.reference import ReferenceStep, encode_frame


def through_tensors(replay, event):
    """The message in the processor's tensors, and ``_process_batch_output()``."""
    if "message" not in event:
        return event.get("op")
    processor, mode = replay.processor, replay.trace.mode
    tensors = [processor.output_tokens]
    if mode["enable_logprob"]:
        tensors += [processor.output_scores, processor.output_ranks]
    fill(mode["channel"], tensors, payload(event))
    try:
        processor._process_batch_output()
    except Exception as error:
        replay.raised = type(error).__name__
    return event.get("op")


def through_bytes(replay, event):
    """The message decoded from its bytes, and `Steps.process`; a malformed one is refused whole."""
    if "message" not in event:
        return event.get("op")
    try:
        step = fp.decode(payload(event), replay.trace.mode["channel"])
    except fp.MalformedMessage:
        return event.get("op")
    try:
        replay.processor.parts.steps.process(step)
    except Exception as error:
        replay.raised = type(error).__name__
    return event.get("op")


def through_queue(replay, event):
    """The message through a System V queue, in a round of the receive loop."""
    if "message" in event:
        parts, key = replay.processor.parts, queues.locate(replay.trace.mode["channel"])
        sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREAT, max_message_size=1 << 20).send(payload(event))
        parts.loop.round(parts.queue, parts.steps, parts.journal.counters.stages)
    return event.get("op")


def through_socket(replay, event):
    """The message as a frame of FastDeploy's ZeroMQ socket, to an engine that has FD_USE_GET_SAVE_OUTPUT_V1.

    The processor is constructed with a queue, and taken for one with a socket from its first message on.
    """
    if "message" not in event:
        return event.get("op")
    processor, channel = replay.processor, replay.trace.mode["channel"]
    os.environ["FD_USE_GET_SAVE_OUTPUT_V1"] = "1"  # `Replay` has patched it, and restores it
    try:
        step = fp.decode(payload(event), channel)
        frame = encode_frame(ReferenceStep.from_step(step), sender=1, seq=replay.number)
    except (fp.MalformedMessage, ValueError):
        return event.get("op")
    take(processor, pickle.dumps(frame))  # without the envelope, whose metrics want a socket
    return event.get("op")
