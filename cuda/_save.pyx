# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True, auto_pickle=False, autotestdict=False
"""Messages from tensors on a CUDA device: the driver, the ring of buffers, and the sender thread behind it.

For `fd_postproc.ops`, which turns the results of this module into exceptions and texts.  There is one
ring per process, made at the first save: messages are sent in the order of the saves, whatever their queue
and device.
"""
from fd_postproc.headers.sysv cimport fds_watch_forks

import os
import threading

from fd_postproc import queues
from fd_postproc._core import _CHANNEL_NUMBERS, _DIALECT_NUMBERS, _OP_NUMBERS, _REASONS, HostInput
from fd_postproc.support.environment import CHECKSUM, is_on
from fd_postproc.errors import CudaError, NotForKernel, Refusal, UnsentSave
from fd_postproc.core.tensors import ROLES

if fds_watch_forks() != 0:
    raise MemoryError

include "_headers.pxi"
include "_driver.pxi"
include "_ring.pxi"
include "_lane.pxi"
include "_job.pxi"
