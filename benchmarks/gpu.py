"""Check and time the CUDA save kernels on a machine with a GPU, in one run of under ten minutes.

    python -m benchmarks.gpu --write

Needs a CUDA driver, this package and pytest; no framework, no toolkit, no internet (docs/development.md tells
how to carry everything along).  Progress goes to stderr, the report to stdout and, with --write, to
benchmarks/RESULTS.md.  Without a GPU it says so and ends with status 3.

Each number is a median.  What is timed, on a stream that is idle:

* caller: seconds in the save call.
* readable: from the beginning of the call to the message's being in the hands of another process, which waits
  in msgrcv.
* cpu: processor time of the saving process, all threads, a save.
* upstream's pattern, restated: six tensors copied to pageable host memory one after another, FastDeploy's
  loop in C (benchmarks/_stock.h), msgsnd of 530,448 bytes.
"""

import argparse
import ctypes
import importlib.util
import inspect
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
CASES = [(batch, cols) for batch in (1, 32, 256, 512) for cols in (1, 21)]
WAYS = ("mapped", "copy", "watch")
STEPS, WARM_UP = 200, 20
NO_GPU = 3
BETTER = 0.95
"""A way other than the present one has to take less than so much of its time, or it is not worth a change."""


def note(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def why_no_gpu():
    """Why nothing can be measured here; empty if it can."""
    from tests.lib import real_cuda

    try:
        real_cuda.use()
    except (OSError, RuntimeError) as error:
        return str(error)
    from fd_postproc import why_no_cuda

    return why_no_cuda()


# ---- Checks ----------------------------------------------------------------------------------------------


def check():
    """Run the GPU tests, plainly and under compute-sanitizer: {what: (passed, words)}."""
    told = {}
    # Not python -m pytest, which would take the sources for the installed package.
    pytest = Path(sys.executable).with_name("pytest")
    base = [sys.executable, pytest, "-q", "-rA", "-n", "0", "-p", "no:cacheprovider", "-m", "gpu"]
    driver, torch = [*base, "tests/cuda/test_gpu_driver.py"], [*base, "tests/cuda/test_gpu.py"]
    runs = {"tests of the driver": (driver, 240)}
    if importlib.util.find_spec("torch") is not None:
        runs["tests with PyTorch"] = (torch, 180)
    sanitizer = shutil.which("compute-sanitizer")
    for tool in ("memcheck", "racecheck") if sanitizer else ():
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", *driver, "-k", "every_op"]
        runs[f"compute-sanitizer {tool}"] = (command, 150)
    for name, (command, limit) in runs.items():
        note(name)
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            told[name] = False, f"not finished after {limit} s"
            continue
        last = (done.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")
        told[name] = done.returncode == 0, last
        for result, test in re.findall(r"^(PASSED|FAILED|SKIPPED)\s+\S*::(test_\w+)", done.stdout, re.M):
            passed, words = told.get(test, (True, ""))
            told[test] = passed and result == "PASSED", words or result.lower()
        if done.returncode:
            print(done.stdout, done.stderr, file=sys.stderr)
    if not sanitizer:
        told["compute-sanitizer"] = None, "not on PATH, not run"
    return told


LOAD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from tests.lib import real_cuda
real_cuda.use()
from fd_postproc import _save
began = time.perf_counter()
_save.load(0)
print((time.perf_counter() - began) * 1e3)
"""


def load_times():
    """Milliseconds to load the kernel: as it is, and compiled from PTX; None if it fails."""
    found = {}
    for name, variables in {"as it is": {}, "PTX": {"CUDA_FORCE_PTX_JIT": "1"}}.items():
        note(f"loading the kernel, {name}")
        done = subprocess.run(
            [sys.executable, "-c", LOAD, ROOT],
            env={**os.environ, "CUDA_CACHE_DISABLE": "1", **variables},
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
        )
        found[name] = float(done.stdout) if done.returncode == 0 else None
        if done.returncode:
            print(done.stderr, file=sys.stderr)
    return found


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


def timings(steps):
    """Everything for all cases, as JSON on stdout; the way out is the environment's."""
    print(json.dumps([Case(batch, cols).measure(steps) for batch, cols in CASES]))


class Case:
    """One batch and number of logprob columns; 2 tokens of each request are accepted."""

    def __init__(self, batch, cols):
        import numpy as np
        import sysv_ipc

        from benchmarks.built import _floor
        from fd_postproc import ops, queues
        from tests.lib import real_cuda
        from tests.lib.stub_cuda import Exchange

        note(f"{os.environ['FD_POSTPROC_CUDA_WAY']}: batch {batch}, {cols} columns")
        self.driver, self.ops, self.batch, self.cols = real_cuda.use(), ops, batch, cols
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
        device = {name: Exchange(array) for name, array in arrays.items() if name != "not_need_stop"}
        self.upstreams = [
            (np.zeros_like(arrays[name]), device[name])
            for name in ("tokens", "ids", "scores", "ranks", "counts", "offsets")
        ]
        self.stock = _floor.Stock("spec_topk", arrays, self.queue.id)
        names = list(inspect.signature(ops.speculate_save_output_topk).parameters)[:13]
        order = ["tokens", "ids", "scores", "ranks", "counts", "offsets"]
        order += ["not_need_stop", "decoded", "prompts", "preempted"]
        on_host = [*(device[name] for name in order[:4]), *(arrays[name] for name in order[4:])]
        on_device = [device.get(name, arrays[name]) for name in order]
        self.calls = {}
        for where, tensors in ("host", on_host), ("device", on_device):
            given = [*tensors, 3, 0, False]
            self.calls[where] = (
                given,
                ops.Packer("speculate_save_output_topk", **dict(zip(names, given, strict=True))),
            )

    def upstream(self):
        for array, tensor in self.upstreams:
            self.driver.call(
                "cuMemcpyDtoH_v2",
                ctypes.c_void_p(array.ctypes.data),
                ctypes.c_uint64(tensor.memory.address),
                ctypes.c_size_t(array.nbytes),
            )
        self.stock.save()

    def measure(self, steps):
        op = self.ops.speculate_save_output_topk
        contenders = {}
        for dialect in "compact", "packed":
            for where, (given, packer) in self.calls.items():
                contenders[f"op, {dialect}, numbers on the {where}"] = dialect, lambda given=given: op(*given)
                contenders[f"Packer, {dialect}, numbers on the {where}"] = dialect, packer.save
        contenders["upstream's pattern"] = "packed", self.upstream
        command = [sys.executable, "-c", RECEIVER, str(self.queue.key)]
        found = {}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as receiver:
            try:
                assert receiver.stdout.readline() == "ready\n"
                for name, (dialect, call) in contenders.items():
                    os.environ["FD_POSTPROC_DIALECT"] = dialect
                    found[name] = self._times(call, receiver.stdout, steps)
            finally:
                receiver.kill()
                receiver.wait()  # else it tells that its queue was removed
                self.queue.remove()
        return {"batch": self.batch, "cols": self.cols, "times": found}

    def _times(self, call, received, steps):
        """Medians in microseconds: caller, readable; and processor time a save."""
        caller, readable = [], []
        for n in range(steps + WARM_UP):
            if n == WARM_UP:
                used = time.process_time()
            began = time.monotonic_ns()
            call()
            returned = time.monotonic_ns()
            arrived = int(received.readline())
            if n >= WARM_UP:
                caller.append((returned - began) / 1e3)
                readable.append((arrived - began) / 1e3)
        used = (time.process_time() - used) / steps * 1e6
        self.ops.flush()
        return statistics.median(caller), statistics.median(readable), used


# ---- What is unknown, and what was found ------------------------------------------------------------------


def choose(found):
    """The best way out, and why: (way, words)."""
    present = "mapped"
    times = {way: _mean(found[way], 1) for way in WAYS if way in found}
    cpu = {way: _mean(found[way], 2) for way in times}
    ratios = ", ".join(f"`{way}` {times[way] / times[present]:.2f}" for way in times)
    told = f"readable after, relative to `{present}`, geometric means: {ratios}"
    for way in sorted(times, key=times.get):
        if way == present or times[way] > BETTER * times[present]:
            return present, f"{told}; no other is better by {1 - BETTER:.0%}"
        if cpu[way] <= 1.1 * cpu[present]:
            return way, f"{told}; processor time {cpu[way] / cpu[present]:.2f}"
        told += f"; `{way}` takes {cpu[way] / cpu[present]:.2f} of the processor time"
    return present, told


def _mean(cases, which, contender="op, compact, numbers on the host"):
    return statistics.geometric_mean(max(case["times"][contender][which], 1e-3) for case in cases)


def unknowns(checks, loads, found):
    """Each thing that only a device can tell, with its answer."""

    def passed(name):
        state, words = checks.get(name, (None, "not run"))
        return {True: "yes", False: "**no**", None: "unknown"}[state] + (f" ({words})" if words else "")

    def milliseconds(value):
        return "**it is not loaded**" if value is None else f"{value:.1f} ms"

    lines = [
        ("Bytes are those of the host's packer, all ops and dialects?", passed("test_every_op")),
        ("Does the kernel wait for its stream?", passed("test_the_kernel_waits_for_its_stream")),
        ("Is a capture in another thread left sound?", passed("test_a_capture_in_another_thread")),
        ("Does a thread without a context save?", passed("test_a_thread_without_a_context")),
        ("Does a stream of our own deliver before the work behind?", passed("test_a_stream_of_our_own")),
        ("Do messages arrive whole by every way out?", passed("test_every_way_out")),
        ("memcheck", passed("compute-sanitizer memcheck")),
        ("racecheck", passed("compute-sanitizer racecheck")),
        ("How long does loading the kernel take?", milliseconds(loads.get("as it is"))),
        ("And compiling it from PTX?", milliseconds(loads.get("PTX"))),
    ]
    if found:
        way, why = choose(found)
        cases = found["mapped"]
        host, device = _mean(cases, 1), _mean(cases, 1, "op, compact, numbers on the device")
        stock = _mean(cases, 1, "upstream's pattern")
        lines += [
            ("Which way out is the best (`FD_POSTPROC_CUDA_WAY`)?", f"`{way}`: {why}"),
            ("Is it better that the host decides?", f"readable after {host / device:.2f} of the time"),
            ("How much sooner than by upstream's pattern?", f"{stock / host:.1f} times, geometric mean"),
        ]
    return lines


def report(checks, loads, found):
    """Markdown."""
    import fd_postproc
    from tests.lib import real_cuda

    version = ".".join(map(str, fd_postproc.cuda.driver_version() or ("?",)))
    out = [
        f"{real_cuda.use().name()}, driver for CUDA {version}, fd_postproc {fd_postproc.__version__}, "
        f"{os.cpu_count()} CPU cores, Python {platform.python_version()}; {time.strftime('%Y-%m-%d')}.\n",
        "| question | answer |\n|---|---|",
        *(f"| {question} | {answer} |" for question, answer in unknowns(checks, loads, found)),
    ]
    if not found:
        out.append("\nNo IPC namespace with raised limits could be made: nothing was timed.")
        return "\n".join(out)
    out.append("\nMedians in microseconds; 2 accepted tokens a request.\n")
    out.append(
        "| batch | columns | way | contender | caller | readable | cpu |\n|---:|---:|---|---|---:|---:|---:|"
    )
    for way, cases in found.items():
        for case in cases:
            for name, times in case["times"].items():
                numbers = " | ".join(f"{value:.1f}" for value in times)
                out.append(f"| {case['batch']} | {case['cols']} | {way} | {name} | {numbers} |")
    return "\n".join(out)


def write(text, path=ROOT / "benchmarks" / "RESULTS.md"):
    """Put the report into its place in the results."""
    page = path.read_text()
    begin, end = "<!-- gpu -->\n", "<!-- /gpu -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n{text}\n\n{end}{after}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-checks", action="store_true", help="only time")
    parser.add_argument("--steps", type=int, default=STEPS, help="timed saves of each case")
    parser.add_argument("--write", action="store_true", help="put the report into benchmarks/RESULTS.md")
    parser.add_argument("--timings", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    why = why_no_gpu()
    if why:
        print(f"There is no GPU to measure: {why}.  Nothing was checked or timed.")
        return NO_GPU
    if options.timings:
        timings(options.steps)
        return 0
    checks = {} if options.no_checks else check()
    loads, namespace, found = load_times(), own_namespace(), {}
    for way in WAYS if namespace else ():
        command = [*namespace, sys.executable, __file__, "--timings", "--steps", str(options.steps)]
        environment = {**os.environ, "FD_POSTPROC_CUDA_WAY": way}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, cwd="/", env=environment
        )
        found[way] = json.loads(done.stdout)
    text = report(checks, loads, found)
    print(text)
    if options.write:
        write(text)
    return 1 if any(passed is False for passed, _ in checks.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
