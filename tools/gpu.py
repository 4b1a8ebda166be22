"""Check and time the CUDA save kernels on a machine with a GPU, in one run of at most ten minutes.

    python -m tools.gpu --write
    python -m tools.gpu --dry-run STUB

Needs a CUDA driver, this package and pytest; no framework, no toolkit, no internet (docs/development.md
tells how to carry everything along).  Progress goes to stderr and the report to stdout, what failed first.
With --write, benchmarks/gpu.json and its page in benchmarks/RESULTS.md are written as well.  Without a GPU
it says so and ends with status 3.

--dry-run is the same program on the stub driver STUB, with few messages and steps: so that the first run on
a GPU is not the first run.

Each number is a median.  What is timed, on a stream that is idle:

* caller: seconds in the save call.
* readable: from the beginning of the call to the message's being in the hands of another process, which waits
  in msgrcv.
* cpu: processor time of the saving process, all threads, a save.
* stream: from before to behind the save on its stream, by events: the kernel, and what it waits for.
* upstream's pattern, restated: six tensors copied to pageable host memory one after another, FastDeploy's
  loop in C (benchmarks/_stock.h), msgsnd of 530,448 bytes.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # behind what is installed: in the archive the sources are not built
CASES = [(batch, cols) for batch in (1, 32, 256, 512) for cols in (1, 21)]
STEPS, WARM_UP, MESSAGES = 200, 20, 100_000
DRY_STEPS, DRY_MESSAGES = 2, 300
DRY_PATIENCE = 4  # the stub is the processor, which may be busy with other things
TIMINGS_S = 120  # with the limits of the checks, ten minutes at most
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
NO_GPU = 3


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


def check(count, sanitizer, patience=1):
    """All checks: {what: (passed, words)}; passed is None for what was not run.

    `sanitizer` is the path of compute-sanitizer, or None.  Limits of time are multiplied by `patience`.
    """
    told = {}
    pytest = Path(sys.executable).with_name("pytest")
    base = [pytest, "-q", "-rA", "-n", "0", "-p", "no:cacheprovider", "-m", "gpu"]
    driver, torch = [*base, "tests/cuda/test_gpu_driver.py"], [*base, "tests/cuda/test_gpu.py"]
    runs = {
        "random messages": ([sys.executable, __file__, "--messages", str(count)], 150),
        "tests of the driver": (driver, 60),
    }
    if importlib.util.find_spec("torch") is not None:
        runs["tests with PyTorch"] = (torch, 60)
    for tool in SANITIZERS if sanitizer else ():
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", *driver, "-k", "every_op"]
        runs[f"compute-sanitizer {tool}"] = (command, 40)
    for name, (command, limit) in runs.items():
        note(name)
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience * limit)
        except subprocess.TimeoutExpired:
            told[name] = False, f"not finished after {patience * limit} s"
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


LOAD = """
import sys, time
sys.path.append(sys.argv[1])
from tests.lib import real_cuda
real_cuda.use()
from fd_postproc.core import _save
began = time.perf_counter()
_save.load(0)
print((time.perf_counter() - began) * 1e3)
"""


def load_times():
    """Milliseconds to load the kernel: as it is, and compiled from PTX; None if it fails."""
    found = {}
    for name, variables in {"as it is": {}, "PTX": {"CUDA_FORCE_PTX_JIT": "1"}}.items():
        note(f"loading the kernel, {name}")
        try:
            done = subprocess.run(
                [sys.executable, "-c", LOAD, ROOT],
                env={**os.environ, "CUDA_CACHE_DISABLE": "1", **variables},
                capture_output=True,
                text=True,
                timeout=20,
                cwd="/",
            )
        except subprocess.TimeoutExpired as error:
            found[name] = None
            note(str(error))
            continue
        found[name] = float(done.stdout) if done.returncode == 0 else None
        if done.returncode:
            print(done.stderr, file=sys.stderr)
    return found


# ---- Timings, in an IPC namespace with raised limits -----------------------------------------------------


def own_namespace():
    """Command prefix for a namespace in which a queue may hold FastDeploy's messages."""
    from benchmarks import runner

    script = 'echo 1048576 > /proc/sys/kernel/msgmax && echo 67108864 > /proc/sys/kernel/msgmnb && exec "$@"'
    prefix = runner.own_namespace()
    return [*prefix, "sh", "-c", script, "sh"] if prefix else []


RECEIVER = """
import sys, time
import fd_postproc as fp
with fp.Receiver("spec_topk", key=int(sys.argv[1])) as receiver:
    print("ready", flush=True)
    for step in receiver:
        print(time.monotonic_ns(), flush=True)
"""


def timings(steps):
    """A line of JSON on stdout for each case: what was timed before something fails is kept."""
    for batch, cols in CASES:
        print(json.dumps(Case(batch, cols).measure(steps)), flush=True)


class Case:
    """One batch and number of logprob columns; 2 tokens of each request are accepted."""

    def __init__(self, batch, cols):
        import numpy as np
        import sysv_ipc

        from benchmarks import cases
        from benchmarks.built import _floor
        from benchmarks.save import OPS
        from fd_postproc import ops, queues
        from tests.lib import real_cuda
        from tests.lib.stub_cuda import Exchange

        note(f"batch {batch}, {cols} columns")
        self.driver, self.ops, self.batch, self.cols = real_cuda.use(), ops, batch, cols
        self.begin, self.end = self.driver.event(), self.driver.event()
        os.environ["INFERENCE_MSG_QUEUE_ID"] = str(int.from_bytes(os.urandom(2), "little") + 70000)
        key = queues.locate("spec_topk")
        self.queue = sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=1 << 20)
        arrays, (_, wanted) = cases.Case(batch=batch, columns=cols).inputs(), OPS["spec_topk"]
        device = {name: Exchange(array) for name, array in arrays.items() if name != "not_need_stop"}
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
            for where, given in self.calls.items():
                contenders[f"op, {dialect}, numbers on the {where}"] = dialect, lambda given=given: op(*given)
        contenders["upstream's pattern"] = "packed", self.upstream
        command = [sys.executable, "-c", RECEIVER, str(self.queue.key)]
        found = {}
        try:
            receiver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/")
            try:
                assert receiver.stdout.readline() == "ready\n"
                for name, (dialect, call) in contenders.items():
                    os.environ["FD_POSTPROC_DIALECT"] = dialect
                    found[name] = self._times(call, receiver.stdout, steps)
            finally:
                receiver.kill()
                receiver.wait()
            sizes = {dialect: self._size(dialect, contenders) for dialect in ("compact", "packed")}
        finally:
            self.queue.remove()
        return {"batch": self.batch, "cols": self.cols, "times": found, "sizes": sizes}

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

    def _times(self, call, received, steps):
        """Microseconds of a save: caller, readable, processor time, stream."""
        caller, readable, stream = [], [], []
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
        for _ in range(steps):  # apart: the events are no part of a save
            self.driver.record(self.begin)
            call()
            self.driver.record(self.end)
            stream.append(self.driver.elapsed_us(self.begin, self.end))
            received.readline()
        self.ops.flush()
        return *map(statistics.median, (caller, readable)), used, statistics.median(stream)


def timed(command):
    """Run `timings`: whether all of it ended well, with words, and the cases that it timed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        watch = threading.Timer(TIMINGS_S, process.kill)
        watch.start()
        found = [json.loads(line) for line in process.stdout if line.endswith("}\n")]
    watch.cancel()
    done = len(found) == len(CASES) and process.returncode == 0
    return (done, f"{len(found)} of {len(CASES)} cases, exit status {process.returncode}"), found


# ---- What is unknown, and what was found ------------------------------------------------------------------


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
        ("Are random messages those of the CPU's packer?", passed("random messages")),
        ("Do two streams keep the order of the calls?", passed("test_two_streams")),
        ("Fork before and after?", passed("test_fork")),
        ("A queue that stays full?", passed("test_a_queue_that_stays_full")),
        *((f"{tool}?", passed(f"compute-sanitizer {tool}")) for tool in SANITIZERS),
        ("How long does loading the kernel take?", milliseconds(loads.get("as it is"))),
        ("And compiling it from PTX?", milliseconds(loads.get("PTX"))),
    ]
    if found:
        host, device = _mean(found, 1), _mean(found, 1, "op, compact, numbers on the device")
        stock = _mean(found, 1, "upstream's pattern")
        lines += [
            ("Is it better that the host decides?", f"readable after {host / device:.2f} of the time"),
            ("How much sooner than by upstream's pattern?", f"{stock / host:.1f} times, geometric mean"),
        ]
    return lines


def report(data):
    """Markdown: what failed, then each thing that was unknown, then the times."""
    checks, found = data["checks"], data["times"]
    failed = [f"* {name}: {words}" for name, (passed, words) in checks.items() if passed is False]
    out = [
        "\n".join(["What failed:\n", *failed]) if failed else "Nothing failed.",
        f"\n{data['machine']}\n",
        "| question | answer |\n|---|---|",
        *(f"| {question} | {answer} |" for question, answer in unknowns(checks, data["loads"], found)),
    ]
    if not found:
        out.append("\nNo IPC namespace with raised limits could be made: nothing was timed.")
        return "\n".join(out)
    out.append("\nMedians in microseconds; 2 accepted tokens a request.\n")
    out.append("| batch | columns | contender | caller | readable | cpu | stream |")
    out.append("|---:|---:|---|---:|---:|---:|---:|")
    for case in found:
        for name, times in case["times"].items():
            numbers = " | ".join(f"{value:.1f}" for value in times)
            out.append(f"| {case['batch']} | {case['cols']} | {name} | {numbers} |")
    out.append("\n| batch | columns | bytes, compact | packed |\n|---:|---:|---:|---:|")
    for case in found:
        sizes = " | ".join(f"{size:,}" for size in case["sizes"].values())
        out.append(f"| {case['batch']} | {case['cols']} | {sizes} |")
    return "\n".join(out)


def machine():
    """What ran this, in a sentence."""
    import fd_postproc
    from tests.lib import real_cuda

    version = ".".join(map(str, fd_postproc.core.cuda.driver_version() or ("?",)))
    return (
        f"{real_cuda.use().name()}, driver for CUDA {version}, fd_postproc {fd_postproc.__version__}, "
        f"{os.cpu_count()} CPU cores, Python {platform.python_version()}; {time.strftime('%Y-%m-%d')}."
    )


def write(data, folder=ROOT / "benchmarks"):
    """Write gpu.json, and put the report into its place in RESULTS.md."""
    (folder / "gpu.json").write_text(json.dumps(data, indent=1) + "\n")
    page = folder / "RESULTS.md"
    begin, end = "<!-- gpu -->\n", "<!-- /gpu -->"
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{report(data)}\n\n{end}{after}")


def on_the_stub(stub):
    """Start this program again with the stub as its driver, which has to be loaded first."""
    environment = {**os.environ, "FD_POSTPROC_TEST_DRIVER": stub, "LD_PRELOAD": stub}
    os.execve(sys.executable, [sys.executable, __file__, *sys.argv[1:]], environment)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-checks", action="store_true", help="only time")
    parser.add_argument("--steps", type=int, default=STEPS, help="timed saves of each case")
    parser.add_argument(
        "--write", action="store_true", help="write benchmarks/gpu.json and its page in benchmarks/RESULTS.md"
    )
    parser.add_argument("--dry-run", metavar="STUB", help="the same on a stub driver, with few steps")
    parser.add_argument("--timings", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--messages", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.dry_run and os.environ.get("FD_POSTPROC_TEST_DRIVER") != options.dry_run:
        on_the_stub(options.dry_run)
    if options.messages is not None:
        return check_messages(options.messages)
    why = why_no_gpu()
    if why:
        print(f"There is no GPU to measure: {why}.  Nothing was checked or timed.")
        return NO_GPU
    if options.timings:
        timings(options.steps)
        return 0
    steps, count = (DRY_STEPS, DRY_MESSAGES) if options.dry_run else (options.steps, MESSAGES)
    sanitizer = None if options.dry_run else shutil.which("compute-sanitizer")  # it needs a device
    checks = {} if options.no_checks else check(count, sanitizer, DRY_PATIENCE if options.dry_run else 1)
    loads, namespace, found = load_times(), own_namespace(), []
    if namespace:
        command = [*namespace, sys.executable, __file__, "--timings", "--steps", str(steps)]
        checks["timings"], found = timed(command)
    data = {"machine": machine(), "checks": checks, "loads": loads, "times": found}
    print(report(data))
    if options.write:
        write(data)
    return 1 if any(passed is False for passed, _ in checks.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
