"""Times of a save, without a framework's own cost, and floors: what the parts cost at the least.

Each number is a median, in microseconds.

* caller: in the save call.
* readable: from the beginning of the call to the message's being in the hands of another process, which
  waits in msgrcv.
* cpu: processor time of the saving process, all threads, a save.
* stream: on the device alone.  The stream is held up until everything is queued, so that no gap of the host
  is in it.
* blocked, late: the stream has 2 ms of other work, as a decode step's.  How long the call takes then, and
  how long after that work's end the message is in the other process's hands.
* upstream's pattern, restated: six tensors copied to pageable host memory one after another, FastDeploy's
  loop in C (benchmarks/_stock.h), msgsnd of 530,448 bytes.
* "copied" contenders: what the same could be without a kernel.  "made both ways": a save that is compared.

Tensors are PyTorch's where it is there: the tests' own kinds answer through Python callbacks, which cost a
save tens of microseconds.
"""

import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
import types

from common import STUB, note, on_torch

STEPS, HELD, WARM = (3, 2, 1) if STUB else (200, 60, 20)
CASES = [(1, 1), (32, 21), (256, 21)] if STUB else [(b, c) for b in (1, 32, 256, 512) for c in (1, 21)]
BUSY_US = 2000


RECEIVER = """
import sys, time
import fd_postproc as fp
with fp.Receiver("spec_topk", key=int(sys.argv[1])) as receiver:
    print("ready", flush=True)
    for step in receiver:
        print(time.monotonic_ns(), flush=True)
"""


class Case:
    """One batch and number of logprob columns; 2 tokens of each request are accepted."""

    def __init__(self, batch, cols):
        import numpy as np
        import sysv_ipc

        from benchmarks import cases
        from benchmarks.built import _floor
        from benchmarks.save import OPS
        from fd_postproc import ops, queues
        from tests.lib import real_cuda, stub_cuda

        made = self.tensor if on_torch() else stub_cuda.Exchange
        note(f"batch {batch}, {cols} columns")
        self.driver, self.ops, self.batch, self.cols = real_cuda.use(), ops, batch, cols
        self.begin, self.end = self.driver.event(), self.driver.event()
        os.environ["INFERENCE_MSG_QUEUE_ID"] = str(int.from_bytes(os.urandom(2), "little") + 70000)
        key = queues.locate("spec_topk")
        self.queue = sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=1 << 20)
        arrays, (_, wanted) = cases.Case(batch=batch, columns=cols).inputs(), OPS["spec_topk"]
        device = {name: made(array) for name, array in arrays.items() if name != "not_need_stop"}
        self.upstreams = [
            (np.zeros_like(arrays[name]), device[name])
            for name in ("tokens", "ids", "scores", "ranks", "counts", "offsets")
        ]
        self.stock = _floor.Stock("spec_topk", arrays, self.queue.id)
        large = {name: device[name] for name in ("tokens", "ids", "scores", "ranks")}
        self.calls = {
            where: [{**arrays, **on_device}[one] if isinstance(one, str) else one for one in wanted]
            for where, on_device in (("host", large), ("device", device))
        }

        self.until = 0
        self.callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._over)
        names = ("tokens", "ids", "scores", "ranks", "counts", "offsets")
        self.arrays = dict(zip(names, self.upstreams, strict=True))

    @staticmethod
    def tensor(array):
        import torch

        made = torch.from_numpy(array.copy()).cuda()
        made.memory = types.SimpleNamespace(address=made.data_ptr())
        return made

    def upstream(self):
        for array, tensor in self.upstreams:
            self.driver.call(
                "cuMemcpyDtoH_v2",
                ctypes.c_void_p(array.ctypes.data),
                ctypes.c_uint64(tensor.memory.address),
                ctypes.c_size_t(array.nbytes),
            )
        self.stock.save()

    # Work of others on the stream.

    def _over(self, microseconds):
        time.sleep((microseconds or 0) / 1e6)
        self.until = time.monotonic_ns()

    def hold(self, microseconds):
        """The stream is busy for so long; `until` is when it was over."""
        self.until = 0
        self.driver.call(
            "cuLaunchHostFunc", ctypes.c_void_p(None), self.callback, ctypes.c_void_p(microseconds)
        )
        return time.monotonic_ns() + microseconds * 1000

    def both_ways(self):
        """A save that is compared, as each of the first is."""
        from fd_postproc.ops import proof
        from fd_postproc.ops.device import saves

        usual, os.environ["FD_POSTPROC_CUDA"] = saves.proof, "auto"
        saves.proof = proof.Proof()
        try:
            self.ops.speculate_save_output_topk(*self.calls["host"])
        finally:
            saves.proof, os.environ["FD_POSTPROC_CUDA"] = usual, "1"

    # Without a kernel.

    def pinned(self):
        """Copies of the six tensors in page-locked memory: (address there, array) each."""
        import numpy as np

        made = {}
        for name, (array, _) in self.arrays.items():
            at = ctypes.c_void_p()
            self.driver.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(max(array.nbytes, 1)), 3)
            buffer = (ctypes.c_char * array.nbytes).from_address(at.value)
            made[name] = np.frombuffer(buffer, array.dtype).reshape(array.shape)
        return made

    def copy(self, to):
        for name, (array, tensor) in self.arrays.items():
            self.driver.call(
                "cuMemcpyDtoHAsync_v2",
                ctypes.c_void_p(to[name].ctypes.data),
                ctypes.c_uint64(tensor.memory.address),
                ctypes.c_size_t(array.nbytes),
                ctypes.c_void_p(None),
            )
        self.driver.call("cuStreamSynchronize", ctypes.c_void_p(None))

    def contenders(self):
        op, found = self.ops.speculate_save_output_topk, {}
        for dialect in "compact", "packed":
            for where, given in self.calls.items():
                found[f"op, {dialect}, numbers on the {where}"] = dialect, lambda given=given: op(*given)
        found["op, compact, made both ways"] = "compact", self.both_ways
        found["upstream's pattern"] = "packed", self.upstream
        if hasattr(self.driver.library, "cuMemcpyDtoHAsync_v2"):
            from benchmarks import cases
            from benchmarks.save import OPS

            to, (_, wanted) = self.pinned(), OPS["spec_topk"]
            host = {**cases.Case(batch=self.batch, columns=self.cols).inputs(), **to}
            given = [host[one] if isinstance(one, str) else one for one in wanted]

            def pinned():
                self.copy(to)
                self.stock.save()

            def ours():
                self.copy(to)
                op(*given)

            found["upstream's, copied to pinned memory"] = "packed", pinned
            found["op, compact, copied to pinned memory"] = "compact", ours
        return found

    def measure(self):
        found, busy, failed = {}, {}, {}
        contenders = self.contenders()
        command = [sys.executable, "-c", RECEIVER, str(self.queue.key)]
        try:
            receiver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/")
            try:
                if receiver.stdout.readline() != "ready\n":
                    raise RuntimeError("the receiving process did not start")
                for name, (dialect, call) in contenders.items():
                    os.environ["FD_POSTPROC_DIALECT"] = dialect
                    try:
                        found[name], busy[name] = self.times(call, receiver.stdout)
                    except Exception:
                        failed[name] = traceback.format_exc(limit=-2)
            finally:
                receiver.kill()
                receiver.wait()
            sizes = {dialect: self._size(dialect, contenders) for dialect in ("compact", "packed")}
        finally:
            self.queue.remove()
        return {
            "batch": self.batch,
            "cols": self.cols,
            "times": found,
            "behind_work": busy,
            "sizes": sizes,
            **({"failed": failed} if failed else {}),
        }

    def times(self, call, received):
        """Microseconds: caller, readable, processor time, stream; and behind other work: blocked, late."""
        caller, readable, stream, blocked, late = [], [], [], [], []
        used = 0
        for n in range(STEPS + WARM):
            if n == WARM:
                used = time.process_time()
            began = time.monotonic_ns()
            call()
            returned = time.monotonic_ns()
            arrived = int(received.readline())
            if n >= WARM:
                caller.append((returned - began) / 1e3)
                readable.append((arrived - began) / 1e3)
        used = (time.process_time() - used) / STEPS * 1e6
        for _ in range(HELD):
            self.hold(500)
            self.driver.record(self.begin)
            call()
            self.driver.record(self.end)
            stream.append(self.driver.elapsed_us(self.begin, self.end))
            received.readline()
        for _ in range(HELD):
            planned = self.hold(BUSY_US)
            began = time.monotonic_ns()
            call()
            returned = time.monotonic_ns()
            arrived = int(received.readline())
            blocked.append((returned - began) / 1e3)
            late.append((arrived - (self.until or planned)) / 1e3)
        self.ops.flush()
        return (*map(statistics.median, (caller, readable)), used, statistics.median(stream)), (
            statistics.median(blocked),
            statistics.median(late),
        )

    def _size(self, dialect, contenders):
        """Bytes of a message, all frames."""
        import sysv_ipc

        os.environ["FD_POSTPROC_DIALECT"] = dialect
        contenders[f"op, {dialect}, numbers on the host"][1]()
        self.ops.flush()
        size = 0
        try:
            while True:
                size += len(self.queue.receive(block=False)[0])
        except sysv_ipc.BusyError:
            return size


def wake():
    """An idle card's clock is a fifth of a busy one's: half a second of work before what is timed."""
    if on_torch():
        import torch

        x, end = torch.randn(4096, 4096, device="cuda"), time.monotonic() + 0.5
        while time.monotonic() < end:
            x = torch.nn.functional.normalize(x @ x)
            torch.cuda.synchronize()


def stage_times():
    """A line of JSON for each case."""
    for batch, cols in CASES:
        wake()
        print("CASE " + json.dumps(Case(batch, cols).measure()), flush=True)


# ---- Floors ----------------------------------------------------------------------------------------------

NOTHING = b"""
.version 7.8
.target sm_70
.address_size 64
.visible .entry nothing(.param .u64 at, .param .u32 value)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [at];
    ld.param.u32 %r1, [value];
    st.volatile.global.u32 [%rd1], %r1;
    ret;
}
"""


class Floors:
    """What the parts of a save cost at the least, through ctypes (each call about a microsecond more)."""

    def __init__(self):
        from tests.lib import real_cuda

        self.driver = real_cuda.use()
        self.call = self.driver.call
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(NOTHING))
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), module, ctypes.c_char_p(b"nothing"))
        self.memory, self.address = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuMemHostAlloc", ctypes.byref(self.memory), ctypes.c_size_t(1 << 26), 3)
        self.call("cuMemHostGetDevicePointer_v2", ctypes.byref(self.address), self.memory, 0)
        self.word = ctypes.c_uint32.from_address(self.memory.value)

    def launch(self, value=1):
        at, number = ctypes.c_uint64(self.address.value), ctypes.c_uint32(value)
        given = (ctypes.c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(number))
        one = ctypes.c_uint(1)
        self.call(
            "cuLaunchKernel", self.kernel, one, one, one, one, one, one, ctypes.c_uint(0), None, given, None
        )

    def median(self, work, times=300):
        spent = []
        for n in range(times + 30):
            began = time.perf_counter_ns()
            work(n)
            if n >= 30:
                spent.append((time.perf_counter_ns() - began) / 1e3)
        return statistics.median(spent)

    def event(self, flags):
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), flags)
        return event

    def waited(self, event):
        def work(_):
            self.launch()
            self.driver.record(event)
            self.call("cuEventSynchronize", event)

        return self.median(work)

    def polled(self):
        def work(n):
            self.launch(n + 1)
            while self.word.value != n + 1:
                pass

        self.word.value = 0
        return self.median(work)

    def launched(self):
        spent = []
        for _ in range(330):
            began = time.perf_counter_ns()
            self.launch()
            spent.append((time.perf_counter_ns() - began) / 1e3)
            self.call("cuStreamSynchronize", None)
        return statistics.median(spent[30:])

    def copied(self, size, pinned):
        device = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(size))
        pageable = ctypes.create_string_buffer(size)
        to = self.memory if pinned else ctypes.cast(pageable, ctypes.c_void_p)
        try:
            return self.median(lambda _: self.call("cuMemcpyDtoH_v2", to, device, ctypes.c_size_t(size)), 50)
        finally:
            self.call("cuMemFree_v2", device)

    def alone(self, work):
        """On the device, behind other work: nothing of the host is in it."""
        begin, end, spent = self.driver.event(), self.driver.event(), []
        for _ in range(40):
            self.driver.busy(None, 500)
            self.driver.record(begin)
            work()
            self.driver.record(end)
            spent.append(self.driver.elapsed_us(begin, end))
        return statistics.median(spent)


FLOORS = {
    "the launch call": lambda f: f.launched(),
    "empty kernel, then an event that spins": lambda f: f.waited(f.event(2)),
    "empty kernel, then an event that blocks, as the ring's": lambda f: f.waited(f.event(3)),
    "empty kernel, its word polled in pinned memory": lambda f: f.polled(),
    "empty kernel on the device": lambda f: f.alone(f.launch),
    "89,152 bytes to pinned memory": lambda f: f.copied(89152, True),
    "89,152 bytes to pageable memory": lambda f: f.copied(89152, False),
    "64 MiB to pinned memory": lambda f: f.copied(1 << 26, True),
}


def stage_floors():
    wake()
    floors, found = Floors(), {}
    for name, measured in FLOORS.items():
        try:
            found[name] = measured(floors)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    print("FLOORS " + json.dumps(found))
