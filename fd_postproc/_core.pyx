# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True, auto_pickle=False, autotestdict=False
"""Steps, and the way from a message to a step.

Bytes are understood in ``wire.h`` and the headers above it, queues in ``sysv.h``; the files included here,
one idea each, own the memory, hold or drop the GIL, and turn both into Python objects.  They are one
translation unit, so that calls between them are direct.
"""
from fd_postproc.headers.sysv cimport fds_watch_forks

import math
import os
import sys

import numpy as np

# Running without the GIL is refused, not promised: the flags that guard a Receiver or Sender rely on the GIL.
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "fd_postproc needs the GIL, which PYTHON_GIL=0 or -X gil=0 keeps off: without them, Python turns it "
        "on for this import")

from . import queues
from .support import checks
from .core import arrays, tensors
from .support.environment import CHECKSUM
from .errors import (
    MalformedMessage, QueueError, ReceiverBusy, ReceiverClosed, Refusal, SenderBusy, SenderClosed,
    queue_error, too_big,
)
from .core.layout import GPU, Layout

if fds_watch_forks() != 0:
    raise MemoryError

include "core/names.pxi"
include "core/sizes.pxi"
include "core/environment.pxi"
include "core/numbers.pxi"
include "core/queue/deadlines.pxi"
include "core/step/part.pxi"
include "core/step/sections.pxi"
include "core/step/rebuild.pxi"
include "core/step/logprobs.pxi"
include "core/step/step.pxi"
include "core/codec.pxi"
include "core/queue/pieces.pxi"
include "core/queue/looks.pxi"
include "core/queue/receiver.pxi"
include "core/queue/attendance.pxi"
include "core/host.pxi"
include "core/device.pxi"
include "core/queue/sender.pxi"
include "core/stream.pxi"
include "core/flight.pxi"
