"""Build, check and time the CUDA save kernels on a machine with a GPU, in one run of under ten minutes.

    python benchmarks/gpu.py > gpu.md

Needs PyTorch with CUDA, what building needs (docs/development.md), and pytest.  Progress goes to stderr,
Markdown for benchmarks/RESULTS.md to stdout.  Without a GPU it says so and ends with status 3.

Each number is a median.  What is timed:

* caller: seconds in the save call; the device is idle, the queue has room.
* readable: from the end of the work before it on the stream (about 1 ms of it) to the message's being in the
  hands of another process, which waits in msgrcv.
* upstream's pattern, restated: six tensors copied to pageable host memory one after another, FastDeploy's
  loop in C (fd_postproc/bench/_stock.h), msgsnd of 530,448 bytes.
"""

import argparse
import importlib.util
import inspect
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = [(batch, cols) for batch in (1, 32, 256, 512) for cols in (1, 21)]
STEPS, WARM_UP = 200, 20
NO_GPU = 3


def note(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def why_no_gpu():
    """Why nothing can be measured here; empty if it can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no CUDA device"
    return ""


# ---- Build and checks ------------------------------------------------------------------------------------


def build():
    note("building")
    command = [sys.executable, "-m", "pip", "install", "--quiet", str(ROOT)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def check():
    """Run the GPU tests, plainly and under compute-sanitizer; lines that tell how it went."""
    told = []
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "gpu",
        "tests/test_gpu.py",
    ]
    runs = {"tests": (pytest, 180)}
    sanitizer = shutil.which("compute-sanitizer")
    for tool in ("memcheck", "racecheck") if sanitizer else ():
        some = ["-k", "every_op or byte_for_byte"]
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", *pytest, *some]
        runs[f"compute-sanitizer {tool}"] = (command, 120)
    for name, (command, limit) in runs.items():
        note(name)
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
            last = (done.stdout.strip().splitlines() or ["no output"])[-1]
            told.append(f"* {name}: {'passed' if done.returncode == 0 else 'FAILED'} ({last.strip('= ')})")
            if done.returncode:
                print(done.stdout, done.stderr, file=sys.stderr)
        except subprocess.TimeoutExpired:
            told.append(f"* {name}: not finished after {limit} s")
    if not sanitizer:
        told.append("* compute-sanitizer: not on PATH, not run")
    return told


# ---- Timings, in an IPC namespace with raised limits -----------------------------------------------------


def own_namespace():
    """Command prefix for a namespace in which a queue may hold FastDeploy's messages."""
    script = 'echo 1048576 > /proc/sys/kernel/msgmax && echo 67108864 > /proc/sys/kernel/msgmnb && exec "$@"'
    for options in (["--ipc"], ["--user", "--map-root-user", "--ipc"]):
        prefix = ["unshare", *options, "--", "sh", "-c", script, "sh"]
        if shutil.which("unshare") and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
            return prefix
    return []


RECEIVER = """
import sys, time
import fd_postproc as fp
with fp.Receiver("spec_topk", key=int(sys.argv[1])) as receiver:
    print("ready", flush=True)
    for step in receiver:
        print(time.monotonic_ns(), flush=True)
"""


def timings():
    """Everything for all cases, as JSON on stdout."""
    print(json.dumps([Case(batch, cols).measure() for batch, cols in CASES]))


class Case:
    """One batch and number of logprob columns; 2 tokens of each request are accepted."""

    def __init__(self, batch, cols):
        import numpy as np
        import sysv_ipc
        import torch

        from fd_postproc import ops, queues
        from fd_postproc.bench import _floor

        note(f"batch {batch}, {cols} columns")
        self.torch, self.ops, self.batch, self.cols = torch, ops, batch, cols
        os.environ["INFERENCE_MSG_QUEUE_ID"] = str(int.from_bytes(os.urandom(2), "little") + 70000)
        self.queue = sysv_ipc.MessageQueue(queues.locate("spec_topk"), sysv_ipc.IPC_CREX, mode=0o600)
        rng, rows = np.random.default_rng(1), 2 * batch
        arrays = {
            "tokens": rng.integers(0, 1 << 17, (batch, 6)),
            "ids": rng.integers(0, 1 << 17, (rows, cols)),
            "scores": rng.random((rows, cols), dtype=np.float32),
            "ranks": rng.integers(0, 9, rows),
            "counts": np.full(batch, 2, np.int32),
            "offsets": np.arange(0, rows, 2, dtype=np.int32),
            "not_need_stop": np.array([True]),
            "decoded": np.ones((batch, 1), np.int32),
            "prompts": np.ones((batch, 1), np.int64),
            "preempted": np.zeros((batch, 1), np.int32),
        }
        self.device = {
            name: torch.from_numpy(arrays[name]).cuda()
            for name in ("tokens", "ids", "scores", "ranks", "counts", "offsets")
        }
        self.pageable = {name: torch.from_numpy(arrays[name]) for name in self.device}
        self.stock = _floor.Stock("spec_topk", arrays, self.queue.id)
        self.arguments = [*self.device.values()]
        self.arguments += [arrays[name] for name in ("not_need_stop", "decoded", "prompts", "preempted")]
        self.arguments += [3, 0, False]
        signature = inspect.signature(ops.speculate_save_output_topk)
        names = list(signature.parameters)[: len(self.arguments)]
        self.packer = ops.Packer(
            "speculate_save_output_topk", **dict(zip(names, self.arguments, strict=True))
        )

    def upstream(self):
        for name, tensor in self.device.items():
            self.pageable[name].copy_(tensor)
        self.stock.save()

    def measure(self):
        op = self.ops.speculate_save_output_topk
        contenders = {
            "op, compact": ("compact", lambda: op(*self.arguments)),
            "Packer, compact": ("compact", self.packer.save),
            "op, packed": ("packed", lambda: op(*self.arguments)),
            "Packer, packed": ("packed", self.packer.save),
            "upstream's pattern": ("packed", self.upstream),
        }
        command = [sys.executable, "-c", RECEIVER, str(self.queue.key)]
        found = {}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as receiver:
            try:
                assert receiver.stdout.readline() == "ready\n"
                for name, (dialect, call) in contenders.items():
                    os.environ["FD_POSTPROC_DIALECT"] = dialect
                    found[name] = self._times(call, receiver.stdout)
            finally:
                self.queue.remove()
                receiver.kill()
        return {"batch": self.batch, "cols": self.cols, "times": found}

    def _times(self, call, received):
        """Medians in microseconds: (caller, readable)."""
        torch = self.torch
        caller, readable = [], []
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for n in range(STEPS + WARM_UP):
            torch.cuda.synchronize()
            began = time.perf_counter_ns()
            call()
            took = time.perf_counter_ns() - began
            received.readline()
            torch.cuda.synchronize()
            start = time.monotonic_ns()
            begin.record()
            torch.cuda._sleep(1_500_000)
            end.record()
            call()
            arrived = int(received.readline())
            torch.cuda.synchronize()
            if n >= WARM_UP:
                caller.append(took / 1e3)
                readable.append((arrived - start) / 1e3 - begin.elapsed_time(end) * 1e3)
        self.ops.flush()
        return statistics.median(caller), statistics.median(readable)


# ---- Report ----------------------------------------------------------------------------------------------


def report(checks, found, namespace):
    import torch

    import fd_postproc

    print("## Save ops, tensors on a GPU\n\n    python benchmarks/gpu.py\n")
    print(
        f"{torch.cuda.get_device_name()}, driver for CUDA {_driver()}, PyTorch {torch.__version__}, "
        f"fd_postproc {fd_postproc.__version__}, {os.cpu_count()} CPU cores.\n"
    )
    print("\n".join(checks), "\n")
    if not namespace:
        print("No IPC namespace with raised limits could be made: nothing was timed.")
        return
    print("Medians in microseconds; 2 accepted tokens a request. `sooner`: upstream's pattern by ours.\n")
    print("| batch | columns | contender | caller | readable | sooner |\n|---:|---:|---|---:|---:|---:|")
    for case in found:
        slowest = case["times"]["upstream's pattern"][1]
        for name, (caller, readable) in case["times"].items():
            row = (case["batch"], case["cols"], name, f"{caller:.1f}", f"{readable:.1f}")
            print("|", " | ".join(map(str, row)), f"| {slowest / readable:.1f} |")
    print("\n`readable` includes a few microseconds between the two clocks, the same for all.")


def _driver():
    from fd_postproc.cuda import driver_version

    return ".".join(map(str, driver_version() or ("?",)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-build", action="store_true", help="use the fd_postproc that is installed")
    parser.add_argument("--no-checks", action="store_true", help="only time")
    parser.add_argument("--timings", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    why = why_no_gpu()
    if why:
        print(f"There is no GPU to measure: {why}.  Nothing was built, checked or timed.")
        return NO_GPU
    if options.timings:
        timings()
        return 0
    if not options.no_build:
        build()
    from fd_postproc import why_no_cuda

    if why := why_no_cuda():
        print(f"There is no GPU to measure: {why}.")
        return NO_GPU
    checks = [] if options.no_checks else check()
    namespace, found = own_namespace(), []
    if namespace:
        command = [*namespace, sys.executable, __file__, "--timings"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd="/")
        found = json.loads(done.stdout)
    report(checks, found, namespace)
    return 0


if __name__ == "__main__":
    sys.exit(main())
