"""Whether messages from tensors on the device are those of the same tensors on the host."""

import json
import os
import random
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from common import STUB, on_torch
from timings import Case

MESSAGES = 200 if STUB else 20_000


def check_messages(count):
    """Save so many random steps from the device and from the host: the messages must say the same.

    Prints how many were compared, or which step differs; the exit status.
    """
    parts = min(8, os.cpu_count() or 1)
    seeds = [range(part, count, parts) for part in range(parts)]
    with ProcessPoolExecutor(parts, mp_context=get_context("spawn")) as pool:
        wrong = [*filter(None, pool.map(first_difference, seeds))]
    print(wrong[0] if wrong else f"{count} messages are those of the CPU's packer")
    return 1 if wrong else 0


def first_difference(seeds):
    """The first step whose message is not the CPU packer's, in words; None if there is none.

    Op, dialect, sizes, strides and the place of each tensor are random.
    """
    import fd_postproc as fp
    from fd_postproc import ops, queues
    from tests.lib import real_cuda
    from tests.lib.device_saves import LAYOUT
    from tests.lib.save_cases import CHANNELS, arguments, random_inputs
    from tests.lib.stub_cuda import Exchange, Other

    real_cuda.use()
    os.environ["INFERENCE_MSG_QUEUE_ID"] = str(int.from_bytes(os.urandom(2), "little") + 70000)
    kinds = [(op, dialect) for op in CHANNELS for dialect in ("packed", "legacy", "compact")]
    receivers = {}

    def message(op, given):
        channel = CHANNELS[op]
        getattr(ops, op)(*arguments(op, given), layout=LAYOUT)
        ops.flush()
        if channel not in receivers:
            receivers[channel] = fp.Receiver(channel, layout=LAYOUT)
        return fp.encode(receivers[channel].receive(10), "packed", layout=LAYOUT)

    try:
        for seed in seeds:
            rng = random.Random(seed)
            op, os.environ["FD_POSTPROC_DIALECT"] = rng.choice(kinds)
            inputs = random_inputs(op, rng.randrange(1, 16), rng.randrange(1, 7), seed, LAYOUT)
            kind, gap, first = rng.choice([Exchange, Other]), rng.randrange(2), next(iter(inputs))
            tensors = {
                name: value
                if name == "not_need_stop" or (name != first and rng.random() < 0.3)
                else kind(value, gap=gap)
                for name, value in inputs.items()
            }
            if message(op, inputs) != message(op, tensors):
                return f"step {seed} ({op}, {os.environ['FD_POSTPROC_DIALECT']}) is not the CPU packer's"
    finally:
        for msqid in {receiver.msqid for receiver in receivers.values()}:
            queues.remove_queue(msqid)
    return None


# ---- Frameworks' own tensors -------------------------------------------------------------------------------


def stage_frameworks():
    """Messages from PyTorch's and CuPy's tensors are those from the host's: op, stream and seed vary."""
    import numpy as np

    import fd_postproc as fp
    from fd_postproc import ops, queues
    from tests.lib.device_saves import LAYOUT, placed
    from tests.lib.save_cases import CHANNELS, arguments, random_inputs

    os.environ.update(INFERENCE_MSG_QUEUE_ID="70123", FD_POSTPROC_DIALECT="compact")
    kinds, told = {}, {}
    if not STUB:
        try:
            import torch

            kinds["PyTorch " + torch.__version__] = lambda array: torch.from_numpy(array.copy()).cuda()
        except ImportError as error:
            told["PyTorch"] = str(error)
        try:
            import cupy

            kinds["CuPy " + cupy.__version__] = cupy.asarray
        except ImportError as error:
            told["CuPy"] = str(error)
    else:
        from tests.lib import real_cuda, stub_cuda

        real_cuda.use()
        kinds.update({"CuPy's interface": stub_cuda.Other, "PyTorch's interface": stub_cuda.Exchange})

    def message(op, inputs):
        channel = CHANNELS[op]
        with fp.Receiver(channel, layout=LAYOUT) as receiver:
            getattr(ops, op)(*arguments(op, inputs), layout=LAYOUT)
            return fp.encode(receiver.receive(10), "packed", layout=LAYOUT)

    os.environ["FD_POSTPROC_DIALECT"] = "compact"
    # The most requests that 48 KB of shared memory hold; a Hopper block keeps 1 KB more.
    many = fp.Layout(max_batch=2400)
    for name, kind in kinds.items():
        wrong = []
        try:
            tokens = np.arange(2292, dtype=np.int64)[:, None]
            zeros, goes_on = np.zeros(2292, np.int32), np.array([True])
            with fp.Receiver("plain", layout=many) as receiver:
                ops.save_output(kind(tokens), goes_on, zeros, 0, False, layout=many)
                step = receiver.receive(10)  # before everything is sent: the queue may hold less
                if [step.token_ids(i)[0] for i in (0, 1, 2291)] != [0, 1, 2291]:
                    wrong.append("a batch of 2292")
            for op in CHANNELS:
                for seed in range(20):
                    inputs = random_inputs(op, 1 + seed, 1 + seed % 6, seed, LAYOUT)
                    if message(op, inputs) != message(op, placed(inputs, kind)):
                        wrong.append((op, seed))
            told[name] = wrong or "same"
        except Exception:
            told[name] = traceback.format_exc(limit=-3)
    for channel in {*CHANNELS.values()}:
        queues.remove_queue(fp.Receiver(channel, layout=LAYOUT).msqid)
    print("FRAMEWORKS " + json.dumps(told))


def stage_proof():
    """FD_POSTPROC_CUDA=auto: the kernel proves itself for each op, and is used; 0, or 1 if it is not."""
    os.environ.update(INFERENCE_MSG_QUEUE_ID="70124", FD_POSTPROC_DIALECT="compact", FD_POSTPROC_CUDA="auto")
    from fd_postproc import Receiver, ops, queues
    from fd_postproc.ops.device import saves
    from fd_postproc.ops.proof import ENOUGH
    from tests.lib import real_cuda, stub_cuda
    from tests.lib.device_saves import placed
    from tests.lib.save_cases import CHANNELS, arguments, calm

    real_cuda.use()
    kind = Case.tensor if on_torch() else stub_cuda.Exchange
    for op, channel in CHANNELS.items():
        given = arguments(op, placed(calm(op, 64, 5), kind))
        with Receiver(channel) as receiver:
            for _ in range(2 * ENOUGH):
                getattr(ops, op)(*given)
                receiver.receive(10)
                ops.flush(20)
    for msqid in {lane.msqid for lane in saves.lanes}:
        queues.remove_queue(msqid)
    used = [sum(lane.stats["frames"] for lane in saves.lanes if lane.channel == c) for c in CHANNELS.values()]
    print(f"{saves.proof.compared} messages compared, {used} the kernel's; {saves.proof.why_off or 'in use'}")
    return 1 if saves.proof.why_off or not all(used) else 0


def stage_few():
    """A few saves of each kind, for the profiler."""
    os.environ["FD_POSTPROC_DIALECT"] = "compact"
    case = Case(256, 21)
    try:
        for given in case.calls.values():
            for _ in range(3):
                case.ops.speculate_save_output_topk(*given)
                case.ops.flush(20)
                while case.queue.current_messages:
                    case.queue.receive(block=False)
    finally:
        case.queue.remove()
