"""fd_postproc: the host side of sampled tokens and logprobs, for PaddlePaddle FastDeploy."""

from __future__ import annotations

from ._checkout import module_path

__path__[:] = module_path(__path__)  # before anything else is imported from there

from ._core import Logprobs, Receiver, Sender, Step, decode, encode
from ._version import __version__
from .cuda import cuda_available, why_no_cuda
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
)
from .layout import GPU, XPU, Layout

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
    "Step",
    "__version__",
    "cuda_available",
    "decode",
    "encode",
    "why_no_cuda",
]
