"""What moves a prefill node's cache: the worker's signal of each layer, and the ops of FastDeploy's messager.

The signal is FastDeploy's message on a System V queue by FastDeploy's rule; see the shim's `rdma_comm` for
the network card.
"""

import os
import struct

MOST = 512  # requests of a signal
_SIZE = 4 * (3 * MOST + 2)
_queues = {}


def _queue(rank):
    """FastDeploy's queue of this rank; ``<<`` binds less than ``+`` there."""
    import sysv_ipc

    if rank not in _queues:
        number = int(os.environ.get("INFERENCE_MSG_QUEUE_ID", "1024")) << (4 + rank)
        place = os.stat("/opt/")
        key = (place.st_dev & 0xF) << 28 | (place.st_ino & 0xFF) << 20 | number & 0xFFFFF
        key -= (key & 1 << 31) << 1
        _queues[rank] = sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREAT, mode=0o666, max_message_size=_SIZE)
    return _queues[rank]


def signal(requests, layers, rank):
    """One message a layer, as the attention layers of a prefill node send it.

    Parameters
    ----------
    requests : list of (int, int, int)
        Slot, tokens before this step, tokens of this step.
    """
    for layer in range(layers):
        numbers = [len(requests), layer, *(n for one in requests for n in one)]
        _queue(rank).send(struct.pack(f"<{len(numbers)}i", *numbers).ljust(_SIZE, b"\0"))


def get_output_kv_signal(x, rank, wait):
    """FastDeploy's op of this name."""
    import sysv_ipc

    try:
        payload, _ = _queue(rank).receive(block=bool(wait))
    except sysv_ipc.BusyError:
        x[:2] = -1
        return
    numbers = struct.unpack(f"<{len(payload) // 4}i", payload)
    numbers = numbers[: 3 * numbers[0] + 2]
    for place, number in enumerate(numbers):
        x[place] = number


def imitate(ops):
    """``fastdeploy.cache_manager.ops`` with blocks in the host's memory."""
    ops.set_device = lambda device: None
    ops.set_data_ipc = lambda tensor, name: None
    ops.get_output_kv_signal = get_output_kv_signal
