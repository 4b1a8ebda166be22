"""Two processes, random load and pauses, signals, and a sender that is killed now and then.

    soak.py --minutes 120                              a queue of its own, a line a minute

Prints what happened as JSON at the end; exits with an error if a step was lost other than by a kill, doubled,
mixed or late.

Every step carries its number and a checksum in its token ids.  The sender notes in shared memory which step
it is about to send and which it has sent, so that after a kill only the step in between may be missing.
"""

import argparse
import itertools
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib

import numpy as np
import sysv_ipc

import fd_postproc as fp

PATIENCE = 30.0  # seconds without a step: something hangs
BEGUN, SENT = 0, 1


def templates(seed):
    """Counts and arrays of steps of many sizes; most fit one message, some take several fragments."""
    rng = np.random.default_rng(seed)
    shapes = [(1, 1), (3, 2), (8, 1), (8, 5), (20, 1), (40, 3), (64, 1), (64, 6), (128, 21), (300, 1)]
    for batch, cols in shapes:
        counts = rng.choice([-9, -1, 0, 1, 2, 3, 6], batch).astype(np.int32)
        counts[0] = 2
        rows = int(np.maximum(counts, 0).sum())
        ids = rng.integers(0, 1 << 31, (rows, cols)).astype(np.int32)
        yield (
            counts,
            ids,
            -rng.random((rows, cols), dtype=np.float32),
            rng.integers(0, 99, rows, dtype=np.int32),
        )


def checksum(counts, ids, scores, ranks):
    crc = 0
    for array in counts, ids, scores, ranks:
        crc = zlib.crc32(array, crc)
    return crc & 0x7FFFFFFF


def make(template, number):
    counts, ids, scores, ranks = template
    ids[0, 0], ids[1, 0] = number, 0
    ids[1, 0] = checksum(counts, ids, scores, ranks)
    return fp.Step.from_arrays("spec_topk", counts, ids, scores, ranks, as_recorded=True)


def number_of(step):
    """The step's number, after checking that it holds what was put in."""
    ids = np.array(step.ids)
    expected, ids[1, 0] = int(ids[1, 0]), 0
    found = checksum(np.array(step.counts, np.int32), ids, np.array(step.scores), np.array(step.ranks))
    assert found == expected, f"step {ids[0, 0]} is mixed up"
    return int(ids[0, 0])


def be_disturbed(rng):
    """A signal every few milliseconds; its handler takes some time."""
    signal.signal(signal.SIGALRM, lambda *_: time.sleep(1e-5))
    signal.setitimer(signal.ITIMER_REAL, 0.002 + rng.random() * 0.003, 0.003)


def send(first, steps, key, seed, notes_path):
    rng = random.Random(seed)
    be_disturbed(rng)
    every = list(templates(5))
    compact = fp.Sender("spec_topk", key=key, dialect="compact")
    packed = fp.Sender("spec_topk", key=key)
    with open(notes_path, "r+b") as file, mmap.mmap(file.fileno(), 16) as shared:
        notes = memoryview(shared).cast("q")
        for number in range(first, steps):
            small = rng.random() < 0.2
            step = make(every[rng.randrange(2) if small else rng.randrange(len(every))], number)
            notes[BEGUN] = number
            (packed if small else compact).send(step, PATIENCE)
            notes[SENT] = number
            if rng.random() < 0.002:
                time.sleep(rng.random() * 0.005)
        notes.release()
    signal.setitimer(signal.ITIMER_REAL, 0)  # Python takes its handlers away before it ends


def resident_kib(pid):
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    except (OSError, IndexError):
        return 0  # gone


class Reports:
    """A line a minute, and at the end rate and memory."""

    def __init__(self):
        self.began = self.told = time.monotonic()
        self.first_kib = self.last_kib = 0

    def look(self, received, lost, stats, sender):
        now = time.monotonic()
        if now - self.told < 60:
            return
        self.told = now
        self.last_kib = resident_kib(os.getpid())
        self.first_kib = self.first_kib or self.last_kib
        minutes = (now - self.began) / 60
        print(
            f"{minutes:.0f} min: {received:,} steps, {received / minutes / 60:,.0f} a second, {lost} lost, "
            f"{stats['bytes'] >> 20:,} MiB in {stats['messages']:,} messages; "
            f"receiver {self.last_kib:,} KiB, sender {resident_kib(sender):,} KiB",
            flush=True,
        )

    def end(self, received):
        seconds = time.monotonic() - self.began
        return {
            "seconds": round(seconds, 1),
            "steps_per_second": round(received / seconds),
            "grown_kib": self.last_kib - self.first_kib,  # after the first minute
        }


def soak(kill_at, key, seed, seconds):
    """Receive and check until the time is over; what happened."""
    rng, steps = random.Random(seed), 1 << 30
    be_disturbed(rng)
    lost = received = killed_senders = 0
    reports = Reports()
    due = next(kill_at)
    receiver = fp.Receiver("spec_topk", key=key)
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(16))
        file.flush()
        with mmap.mmap(file.fileno(), 16) as shared:
            notes = memoryview(shared).cast("q")
            first = 0
            while first < steps:
                notes[BEGUN] = notes[SENT] = first - 1
                arguments = ["send", first, steps, key, rng.randrange(1 << 30), file.name]
                child = subprocess.Popen([sys.executable, __file__, *map(str, arguments)])
                expected, killed = first, False
                try:
                    while expected < steps:
                        over = time.monotonic() - reports.began > seconds
                        if not killed and (expected >= due or over):
                            time.sleep(rng.random() * 0.002)
                            child.send_signal(signal.SIGKILL)
                            child.wait(PATIENCE)
                            while due <= expected:
                                due = next(kill_at)
                            killed_senders += 1
                            killed = True
                        step = receiver.receive(0.0 if killed else PATIENCE)
                        if step is None:
                            break
                        number = number_of(step)
                        assert number == expected, f"step {number} came where {expected} was due"
                        expected += 1
                        if rng.random() < 0.002:
                            time.sleep(rng.random() * 0.005)
                            reports.look(expected, lost, receiver.stats, child.pid)
                    begun, sent = notes[BEGUN], notes[SENT]
                    assert killed or expected == steps, f"nothing came for {PATIENCE} s at step {expected}"
                    assert expected in (sent + 1, begun + 1), f"{expected} steps came, {sent + 1} were sent"
                    lost += begun + 1 - expected
                    received += expected - first
                    first = begun + 1
                    if over:
                        steps = first
                finally:
                    child.kill()
                    child.wait(PATIENCE)
            notes.release()
    signal.setitimer(signal.ITIMER_REAL, 0)
    stats = receiver.stats
    assert receiver.receive(0) is None
    assert stats["malformed"] == 0, stats
    assert stats["incomplete"] <= killed_senders, stats
    assert lost <= killed_senders
    assert received + lost == steps
    return {"received": received, "lost": lost, "kills": killed_senders, **reports.end(received), **stats}


def main():
    if sys.argv[1:2] == ["send"]:
        first, steps, key, seed = map(int, sys.argv[2:6])
        return send(first, steps, key, seed, sys.argv[6])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    kill_at = itertools.accumulate(iter(lambda: rng.randrange(1, 40_000), None))
    queue = sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX)
    try:
        print(json.dumps(soak(kill_at, queue.key, args.seed, args.minutes * 60)))
    finally:
        queue.remove()
    return None


if __name__ == "__main__":
    main()
