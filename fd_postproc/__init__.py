"""fd_postproc: the host side of sampled tokens and logprobs, for PaddlePaddle FastDeploy."""

from ._core import Logprobs, Receiver, Sender, Step, decode, encode
from ._version import __version__
from .errors import (
    MalformedMessage,
    MessageTooBig,
    QueueError,
    QueueMissing,
    QueuePermission,
    QueueRemoved,
    QueueTimeout,
    ReceiverBusy,
    SenderBusy,
)
from .layout import GPU, XPU, Layout

__all__ = [
    "GPU",
    "XPU",
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
    "Sender",
    "SenderBusy",
    "Step",
    "__version__",
    "decode",
    "encode",
]
