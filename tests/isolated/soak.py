"""Two processes, random pauses, signals, and a sender that is killed now and then.

Usage: soak.py STEPS KILLS KEY SEED.  Prints what happened as JSON; exits with an error if a step was lost,
doubled, mixed or late.  The queue must exist, and both processes must be allowed to use it.

Every step carries its number and a checksum in its token ids.  The sender notes in shared memory which step
it is about to send and which it has sent, so that after a kill only the step in between may be missing.
"""

import json
import mmap
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib

import numpy as np

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
    return fp.Step.from_arrays("spec_topk", counts, ids, scores, ranks)


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


def main():
    if sys.argv[1] == "send":
        first, steps, key, seed = map(int, sys.argv[2:6])
        return send(first, steps, key, seed, sys.argv[6])
    steps, kills, key, seed = map(int, sys.argv[1:5])
    rng = random.Random(seed)
    be_disturbed(rng)
    lost = received = 0
    kill_at = sorted(rng.randrange(1, steps) for _ in range(kills))
    receiver = fp.Receiver("spec_topk", key=key)
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(16))
        file.flush()
        with mmap.mmap(file.fileno(), 16) as shared:
            notes = memoryview(shared).cast("q")
            first = 0
            while first < steps:
                notes[BEGUN] = notes[SENT] = first - 1
                arguments = [first, steps, key, rng.randrange(1 << 30), file.name]
                child = subprocess.Popen([sys.executable, __file__, "send", *map(str, arguments)])
                expected, killed = first, False
                try:
                    while expected < steps:
                        if not killed and kill_at and expected >= kill_at[0]:
                            time.sleep(rng.random() * 0.002)
                            child.send_signal(signal.SIGKILL)
                            child.wait(PATIENCE)
                            kill_at.pop(0)
                            killed = True
                        step = receiver.receive(0.0 if killed else PATIENCE)
                        if step is None:
                            break
                        number = number_of(step)
                        assert number == expected, f"step {number} came where {expected} was due"
                        expected += 1
                        if rng.random() < 0.002:
                            time.sleep(rng.random() * 0.005)
                    begun, sent = notes[BEGUN], notes[SENT]
                    assert killed or expected == steps, f"nothing came for {PATIENCE} s at step {expected}"
                    assert expected in (sent + 1, begun + 1), f"{expected} steps came, {sent + 1} were sent"
                    lost += begun + 1 - expected
                    received += expected - first
                    first = begun + 1
                finally:
                    child.kill()
                    child.wait(PATIENCE)
            notes.release()
    signal.setitimer(signal.ITIMER_REAL, 0)
    stats = receiver.stats
    assert receiver.receive(0) is None
    assert stats["malformed"] == 0, stats
    assert stats["incomplete"] <= kills - len(kill_at), stats
    assert received + lost == steps
    print(json.dumps({"received": received, "lost": lost, **stats}))
    return None


if __name__ == "__main__":
    main()
