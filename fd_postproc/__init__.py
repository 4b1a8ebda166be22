"""fd_postproc: the host side of sampled tokens and logprobs, for PaddlePaddle FastDeploy.

What lies in this folder:

* The library: `_core` (``core/`` and ``headers/`` are its sources), `ops`, `queues`, `recording`, `errors`.
* The plug-in: `fastdeploy`, and `flight`, the recorder that it writes.
* Tools: `cli` (the command ``fd-postproc``) with `doctor` and `explain`.
* What all of them share: `support`.
"""

from __future__ import annotations

import os
import signal
import sys

from ._checkout import module_path

# Python's -m imports a package before it has the program's name.
_NAME = " ".join(sys.orig_argv[-len(sys.argv) - 1 :][:2]) if sys.argv[:1] == ["-m"] else (sys.argv or [""])[0]
_IS_COMMAND = os.path.basename(_NAME) in ("fd-postproc", "-m fd_postproc")
if _IS_COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Our own command: until `cli.main` begins, Ctrl-C ends it without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

__path__[:] = module_path(__path__)  # before anything else is imported from there

from ._core import Logprobs, Receiver, Sender, Step, decode, encode
from ._version import __version__
from .core.cuda import cuda_available, why_no_cuda
from .core.layout import GPU, XPU, Layout
from .errors import (
    CudaError,
    MalformedMessage,
    MessageTooBig,
    QueueError,
    QueueMissing,
    QueuePermission,
    QueueRemoved,
    QueueTimeout,
    ReceiverBusy,
    ReceiverClosed,
    SenderBusy,
    SenderClosed,
)

__all__ = [
    "GPU",
    "XPU",
    "CudaError",
    "Layout",
    "Logprobs",
    "MalformedMessage",
    "MessageTooBig",
    "QueueError",
    "QueueMissing",
    "QueuePermission",
    "QueueRemoved",
    "QueueTimeout",
    "Receiver",
    "ReceiverBusy",
    "ReceiverClosed",
    "Sender",
    "SenderBusy",
    "SenderClosed",
    "Step",
    "__version__",
    "cuda_available",
    "decode",
    "encode",
    "why_no_cuda",
]
