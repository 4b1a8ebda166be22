"""Two processes, random steps and pauses, signals, and a sender that is killed now and then.

    soak.py --minutes 120

Prints what happened as JSON; exits with an error if a step was lost other
than by a kill, doubled, mixed or late.  A step's number is its stop flag, and all else follows from that.
The sender says on its stdout which it has sent, so that after a kill only the next one may be missing.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sysv_ipc

sys.path.insert(0, str(Path(__file__).parents[2]))

import fd_postproc as fp
from tests.lib.random_steps import random_step
from tests.lib.sending import same

PATIENCE = 30.0  # seconds without a step: something hangs
FRAMES = ("compact", "compact", "compact", "compact", "packed")


def step_of(number):
    """Most fit one message, some take several pieces."""
    rng = random.Random(number)
    batch = rng.choice([1, 3, 8, 20, 64, 128, 300])
    step = random_step("spec_topk", number, batch=batch, cols=rng.choice([1, 2, 5, 21]))
    arrays = step.counts, step.ids, step.scores, step.ranks
    return fp.Step.from_arrays("spec_topk", *arrays, stop_flag=number, as_recorded=True)


def be_disturbed(seed):
    """A signal every few milliseconds; its handler takes some time."""
    signal.signal(signal.SIGALRM, lambda *_: time.sleep(1e-5))
    signal.setitimer(signal.ITIMER_REAL, 0.002 + random.Random(seed).random() * 0.003, 0.003)


def send(first, key):
    be_disturbed(first)
    senders = {dialect: fp.Sender("spec_topk", key=key, dialect=dialect) for dialect in FRAMES}
    number = first
    while True:
        step, rng = step_of(number), random.Random(~number)
        senders[rng.choice(FRAMES) if step.batch <= 3 else "compact"].send(step, PATIENCE)
        print(number, flush=True)
        if rng.random() < 0.002:
            time.sleep(rng.random() * 0.005)
        number += 1


def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def checked(step, expected):
    assert step is not None, f"nothing came for {PATIENCE} s at step {expected}"
    assert step.stop_flag == expected, f"step {step.stop_flag} came where {expected} was due"
    assert same(step, step_of(expected)), f"step {expected} is mixed up"
    return expected + 1


def soak(key, minutes):
    """Receive and check until the time is over; what happened."""
    be_disturbed(key)
    receiver = fp.Receiver("spec_topk", key=key)
    began = time.monotonic()
    expected, kills, first_kib = 0, 0, None
    while (passed := time.monotonic() - began) < 60 * minutes:
        if first_kib is None and passed > 60:
            first_kib = resident_kib()
        with tempfile.TemporaryFile("w+") as said:
            command = [sys.executable, __file__, "send", str(expected), str(key)]
            child = subprocess.Popen(command, stdout=said)
            try:
                for _ in range(random.randrange(1, 20_000)):
                    expected = checked(receiver.receive(PATIENCE), expected)
                    if time.monotonic() - began > 60 * minutes:
                        break
            finally:
                child.kill()
                child.wait()
            while (step := receiver.receive(0)) is not None:
                expected = checked(step, expected)
            said.seek(0)
            sent = max(map(int, said.read().split()), default=expected - 1)
        assert expected in (sent + 1, sent + 2), f"{expected} steps came, {sent + 1} were sent"
        expected, kills = sent + 2, kills + 1
    stats = receiver.stats
    assert stats["malformed"] == 0, stats
    assert stats["incomplete"] <= kills, stats
    grown = resident_kib() - (first_kib or resident_kib())  # after the first minute
    return {"steps": expected, "kills": kills, "grown_kib": grown, **stats}


def main():
    if sys.argv[1:2] == ["send"]:
        return send(*map(int, sys.argv[2:]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, required=True)
    queue = sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX)
    try:
        print(json.dumps(soak(queue.key, parser.parse_args().minutes)))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # Python takes its handlers away before it ends
        queue.remove()
    return None


if __name__ == "__main__":
    main()
