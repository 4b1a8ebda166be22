"""What one run on a GPU machine does, after run.sh has built the package: checks and times within a budget.

Each stage is a process of its own with a limit, in its own process group, which ends with it: nothing goes on
working behind a later stage.  gpu.json and RESULTS.md in $OUT are written anew after each.  The last lines on
stdout are a short table.  Without a GPU it says so, and ends with status 3.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback

import messages
import report
import timings
from common import END, OUT, PATIENCE, ROOT, STUB, note

SOON = 25  # seconds that are kept for the report
NO_GPU = 3


def left():
    return END - time.time() - SOON


def run(command, limit, **keywords):
    """Exit status (None: not finished) and what it printed; its children end with it."""
    limit = min(limit * PATIENCE, max(left(), 1)) if not STUB else limit * PATIENCE
    process = subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a group of its own; process_group needs Python 3.11
        **keywords,
    )
    try:
        said = process.communicate(timeout=limit)[0]
        return process.returncode, said
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return None, said.decode(errors="replace") if isinstance(said, bytes) else said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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


# ---- All stages ------------------------------------------------------------------------------------------


class Run:
    """All stages, and what they found."""

    def __init__(self):
        self.data = {"machine": "", "checks": {}, "loads": {}, "times": [], "floors": {}, "spent_s": {}}

    def save(self):
        if not self.data["machine"]:
            return
        try:
            report.write(self.data)
        except Exception:
            traceback.print_exc()

    def stage(self, name, limit, command, **keywords):
        """What it printed, or None if no time was left or it failed; `checks` says which."""
        if left() < 8 and not STUB:
            self.data["checks"][name] = None, "no time left"
            return None
        note(name)
        began = time.time()
        status, said = run(command, limit, **keywords)
        self.data["spent_s"][name] = round(time.time() - began, 1)
        last = (said.strip().splitlines() or ["no output"])[-1].strip("= ")
        words = f"not finished after {time.time() - began:.0f} s" if status is None else last[:200]
        self.data["checks"][name] = status == 0, words
        if status != 0:
            print(f"---- {name}: exit status {status}\n{said[-6000:]}", flush=True)
        self.save()
        return said

    def tests(self, name, limit, command):
        """The same for pytest: its tests are checks, too."""
        said = self.stage(name, limit, command, cwd=ROOT) or ""
        for result, test in re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED)\s+\S*::(test_\w+)", said, re.M):
            passed, words = self.data["checks"].get(test, (True, ""))
            self.data["checks"][test] = passed and result == "PASSED", words or result.lower()

    def lines(self, name, limit, stage, mark):
        said = self.stage(name, limit, [sys.executable, __file__, "--stage", stage], cwd="/") or ""
        return [
            json.loads(line.partition(" ")[2]) for line in said.splitlines() if line.startswith(mark + " ")
        ]

    def all(self):
        options = ("-q", "-rA", "-n", "0", "-p", "no:cacheprovider", "-m", "gpu")
        pytest = [sys.executable, "-m", "pytest", *options]
        driver, torch = [*pytest, "tests/cuda/test_gpu_driver.py"], [*pytest, "tests/cuda/test_gpu.py"]
        self.data["machine"] = (self.lines("the machine", 30, "machine", "MACHINE") or [""])[0]
        if not self.data["machine"]:
            print("There is no GPU to measure; what was tried is above.")
            return NO_GPU
        self.stage("the kernel proves itself", 40, [sys.executable, __file__, "--stage", "proof"], cwd="/")
        self.tests("tests of the driver", 60, driver)
        self.data["loads"] = (self.lines("loads", 40, "loads", "LOADS") or [{}])[0]
        self.data["times"] = self.lines("timings", 110, "times", "CASE")
        if not STUB:
            self.data["floors"] = (self.lines("floors", 25, "floors", "FLOORS") or [{}])[0]
            self.tests("tests with frameworks", 60, torch)
        told = (self.lines("tensors of frameworks", 40, "frameworks", "FRAMEWORKS") or [{}])[0]
        for kind, words in told.items():
            self.data["checks"][kind] = words == "same", str(words)[:300]
        sanitizer = None if STUB else shutil.which("compute-sanitizer")
        for tool in report.SANITIZERS if sanitizer else ():
            command = [sanitizer, "--tool", tool, "--error-exitcode", "9", *driver, "-k", "every_op"]
            self.stage(f"compute-sanitizer {tool}", 35, command, cwd=ROOT)
        if shutil.which("ncu") and not STUB:
            sections = ("SpeedOfLight", "LaunchStats", "Occupancy", "MemoryWorkloadAnalysis")
            command = ["ncu", "--clock-control", "none", "-k", "fdk_pack", "-c", "6"]
            command += [word for section in sections for word in ("--section", section)]
            said = self.stage("ncu", 40, [*command, sys.executable, __file__, "--stage", "few"], cwd="/")
            (OUT / "ncu.txt").write_text(said or "")
        self.stage("random messages", 90, [sys.executable, __file__, "--stage", "messages"], cwd=ROOT)
        self.save()
        self.table()
        return 1 if any(passed is False for passed, _ in self.data["checks"].values()) else 0

    def table(self):
        print(f"\n==== {self.data['machine']}")
        checks = self.data["checks"]
        wrong = {name: words for name, (passed, words) in checks.items() if passed is not True}
        print(f"{sum(passed is True for passed, _ in checks.values())} of {len(checks)} passed")
        for name, words in wrong.items():
            print(f"  {'NOT RUN' if checks[name][0] is None else 'FAILED'} {name}: {words}")
        print("seconds: " + ", ".join(f"{name} {spent}" for name, spent in self.data["spent_s"].items()))
        for name, value in {**self.data["loads"], **self.data["floors"]}.items():
            print(f"  {name}: {value if isinstance(value, str) or value is None else f'{value:.1f}'}")
        print("microseconds: caller, readable, cpu, stream; behind 2 ms of work: blocked, late")
        shown = {(1, 1), (32, 21), (256, 21), (512, 21)}
        for case in self.data["times"]:
            if (case["batch"], case["cols"]) in shown:
                for name, times in case["times"].items():
                    numbers = [*times, *case["behind_work"][name]]
                    label = f"{case['batch']:>3} x {case['cols']:<2} {name:<40}"
                    print("  " + label + " ".join(f"{value:9.1f}" for value in numbers))


STAGES = {
    "machine": lambda: print("MACHINE " + json.dumps(report.machine())),
    "loads": lambda: print("LOADS " + json.dumps(load_times())),
    "times": timings.stage_times,
    "floors": timings.stage_floors,
    "frameworks": messages.stage_frameworks,
    "proof": messages.stage_proof,
    "few": messages.stage_few,  # for the profiler
    "messages": lambda: messages.check_messages(messages.MESSAGES),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    stage = parser.parse_args().stage
    return Run().all() if stage is None else STAGES[stage]()


if __name__ == "__main__":
    sys.exit(main())
