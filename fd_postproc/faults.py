"""The faults between worker and engine: one word, one threshold and one rule of evidence each.

The health of the engine (the gauge ``fd_postproc_unhealthy``), ``fd-postproc explain`` and ``fd-postproc
doctor`` take their words and numbers from here.
"""

from __future__ import annotations

from typing import NamedTuple

# ---- thresholds ----------------------------------------------------------------------------------------

STEP_S = 4.5
"""Seconds after which a step in progress is stuck."""

SILENCE_S = 4.0
"""Seconds without a step, or without any entry of the engine, that count as a fault."""

USUAL_TIMES = 3.0
"""Multiple of the usual step time after which a silence of the worker is a fault."""

LONGEST_S = 60.0
"""Seconds after which a silence of the worker is a fault, however slow steps were."""

REFUSED_S = 2.0
"""Seconds without a step, after refused messages or a removed queue, that count as a fault."""

REFUSALS = 3
"""Number of consecutive refused messages that count as a fault of the worker."""

SUSTAINED_S = 5.0
"""Seconds after which a change of the pace, or a lack of tokens, is reported."""

SUSTAINED_STEPS = 32
"""Number of steps after which it is reported."""

SLOWER_TIMES = 4.0
"""Factor of the step time from which the worker is called slower."""

SLOW_S = 0.05
"""Seconds of a step below which neither worker nor engine is called slow."""

BURST_TIMES = 8.0
"""Factor of the usual pace from which steps are a burst."""

MOSTLY = 0.5
"""Share of the time from which one side is the bottleneck."""

SLOW_SEND_S = 1.0
"""Seconds after which a message took long to send."""


# ---- faults --------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """One kind of fault.

    Attributes
    ----------
    side : {"worker", "engine", "queue", "messages", "requests", "file"}
        Where the cause is.
    meaning : str
        What has happened, in one sentence.
    evidence : str
        What decides that it is this fault, and of this side.
    """

    side: str
    meaning: str
    evidence: str


HEALTH = {
    "thread": Fault(
        "engine", "the token thread has ended",
        "The thread object of the engine is not alive.",
    ),
    "step": Fault(
        "engine", "the token thread is stuck in a step",
        f"A step is in hand for {STEP_S:g} s, while the engine's other threads write entries.",
    ),
    "queue": Fault(
        "queue", "the queue cannot be used",
        "The kernel refuses the engine's call; the entry has its error number.",
    ),
    "worker": Fault(
        "worker", "the process that sends is gone",
        "`/proc` has no such process, or a zombie, at a look while requests run.",
    ),
    "stopped": Fault(
        "worker", "the process that sends is stopped",
        f"`/proc` says T at each look for {SILENCE_S:g} s without a step; the engine goes on looking.",
    ),
    "silent": Fault(
        "worker", "the process that sends is there and sends nothing",
        f"No step comes for {SILENCE_S:g} s and {USUAL_TIMES:g} times the usual pace (at most "
        f"{LONGEST_S:g} s). "
        "The engine looks each second, and finds the queue empty: so it is the worker.",
    ),
    "removed": Fault(
        "queue", "the queue was removed",
        "The kernel says so to the engine (EIDRM).",
    ),
    "refused": Fault(
        "worker", "no message of the worker can be read",
        f"{REFUSALS} messages and more are refused within {REFUSED_S:g} s and longer, and no step comes "
        "between.",
    ),
    "engine": Fault(
        "engine", "the engine's process is gone",
        "The kernel has taken back the lock on its file, which has no last entry; or its process number "
        "is free.",
    ),
}  # fmt: skip
"""Faults of the gauge ``fd_postproc_unhealthy{reason="..."}``, by word."""

FAULTS = {
    **HEALTH,
    # ---- the engine
    "frozen": Fault(
        "engine", "the engine's process does nothing: it is stopped, or one of its threads holds the GIL",
        f"No entry for {SILENCE_S:g} s. The engine looks at the queue once a second whatever the worker "
        "does: "
        "a missing look is never the worker's.",
    ),
    "no-cpu": Fault(
        "engine", "the token thread wants to run and gets no processor",
        f"The kernel counts how long the thread waits for a processor: half of {SUSTAINED_S:g} s and more. "
        "The same entry has its policy and nice value.",
    ),
    "slow-engine": Fault(
        "engine", "the engine takes most of the time of each step",
        f"Building and delivering results takes half of {SUSTAINED_S:g} s and more, and {SLOW_S * 1e3:g} "
        "ms a "
        "step: the stages of each step tell which. Waiting for the worker is a stage of its own.",
    ),
    "lost-step": Fault("engine", "a step was lost to an exception", "The entry names it."),
    "undelivered": Fault("engine", "results were not delivered", "The entry names the exception."),
    "failed-request": Fault("engine", "a request was ended with an error", "The entry names the exception."),
    "no-memory": Fault("engine", "memory is exhausted", "The exception is a MemoryError."),
    "stood-aside": Fault("engine", "the plug-in leaves the work to FastDeploy", "The entry says why."),
    # ---- the worker
    "other-sender": Fault(
        "worker", "another process sends now", "The kernel names another last sender than at the look before."
    ),
    "two-senders": Fault(
        "worker", "two processes, or two ops, send in turn",
        "Frames' sender numbers, dialects, or the last senders of the queue come back after another's.",
    ),
    "restarted": Fault(
        "worker", "the worker began anew",
        "Frames have another sender number, and the former does not come back."
    ),
    "other-dialect": Fault(
        "worker", "messages are of another dialect than before",
        "The steps' dialect changes once, and does not come back.",
    ),
    "slower": Fault(
        "worker", "the worker becomes slower and slower",
        f"The time between steps grows at least {SLOWER_TIMES:g} times, in five steps or more, none of "
        "which makes "
        "most of it, and most of the time is waiting for the worker.",
    ),
    "slow-worker": Fault(
        "worker", "the worker is slower at once",
        f"The time between steps is {SLOWER_TIMES:g} times as long from one moment on, for "
        f"{SUSTAINED_S:g} s, with "
        "no more requests, while hardly any begins; most of it is waiting for the worker.",
    ),
    "burst": Fault(
        "worker", "many steps come at once",
        f"Steps come {BURST_TIMES:g} times as fast as usual, and all of them, with the pause before, in "
        "less than "
        "half of their usual time: steps that only make up for a pause are none.",
    ),
    "starved": Fault(
        "worker", "requests get no tokens while others do",
        f"Messages have fewer requests than their slot for {SUSTAINED_S:g} s; or steps have tokens of "
        "others only.",
    ),
    "empty": Fault(
        "worker", "steps come and have no token",
        f"All steps of {SUSTAINED_S:g} s have no token, though requests run that had some, and no prefill "
        "is due.",
    ),
    "permission": Fault(
        "queue", "the process that sends may not write to the queue",
        "The queue's mode and owner at a look, beside the user of the process.",
    ),
    "send-stuck": Fault(
        "engine", "a message waits to be sent",
        f"In the worker's file a message is in hand for {STEP_S:g} s: the queue is full, or the op hangs.",
    ),
    "send-failed": Fault("worker", "a message was not sent", "The entry names the exception."),
    "slow-sends": Fault(
        "engine", "messages took long to send",
        f"A call took {SLOW_SEND_S:g} s: nothing but a full queue waits."
    ),
    # ---- the queue
    "queue-full": Fault("queue", "the queue was full", "A look finds no room for another message."),
    "limits-low": Fault(
        "queue", "the kernel takes no message as long as FastDeploy's own",
        "Nothing comes, and the limits at the last look are below that length.",
    ),
    "limits-lowered": Fault("queue", "a limit was lowered", "It is lower than at the look before."),
    "two-readers": Fault(
        "queue", "another process takes messages out of the queue",
        "The kernel names a last receiver that is no thread of the engine.",
    ),
    # ---- messages
    "malformed": Fault("messages", "messages were refused", "The entry names field, value and limit."),
    "frames-missing": Fault("messages", "frames did not come", "Numbers of a sender's frames are left out."),
    "frames-doubled": Fault("messages", "frames came twice", "Numbers of a sender's frames come again."),
    "frames-reordered": Fault("messages", "frames came late",
    "Numbers of a sender's frames come after later ones."),
    "incomplete": Fault("messages", "frames came in part",
    "Pieces are missing, and no more come for a second."),
    "stale": Fault("messages", "messages of an earlier run were dropped",
    "They were there before the engine."),
    # ---- requests
    "left": Fault("requests", "requests left without an end",
    "Their slots are free, or others', without an end."),
    "no-first-token": Fault(
        "requests", "requests have had no token",
        f"They are in a slot for {SUSTAINED_S:g} s: a long prefill, or a worker that leaves them out.",
    ),
    # ---- the file
    "damaged": Fault("file", "entries of the file are damaged", "Their check words do not fit."),
}  # fmt: skip
"""Faults of `explain`, by word."""
