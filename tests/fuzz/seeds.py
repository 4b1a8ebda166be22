"""Make the seeds of the corpus: FastDeploy's recorded messages, and frames, whole and in pieces.

python tests/fuzz/seeds.py FOLDER      writes FOLDER/gate/* and FOLDER/pack/*
"""

import itertools
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fd_postproc as fp
from tests import reference
from tests.lib.goldens import GOOD
from tests.lib.random_steps import random_step

LAYOUTS = [fp.Layout(4, 2, 3, 3), fp.Layout(1, 1, 1, 1), fp.Layout(9, 20, 6, 5), fp.GPU]  # as in check.h
CHANNELS = ["plain", "topk", "spec", "spec_topk"]
LONGEST = 4096


def gate(channel, layout, *messages, verify=False):
    """An input of the gate target: (payload, whether it is a compact frame)."""
    out = bytes([CHANNELS.index(channel) | LAYOUTS.index(layout) << 2 | verify << 7])
    for payload, compact in messages:
        out += len(payload).to_bytes(2, "little") + bytes([2 + compact]) + payload
    return out


def gate_seeds():
    for golden in GOOD.values():
        channel = golden.channel
        payload = golden.payload[: reference.claimed(golden.payload, channel)]
        if len(payload) < LONGEST:
            yield gate(channel, fp.GPU, (payload, False))
    for channel, layout, seed in itertools.product(CHANNELS, LAYOUTS[:3], range(4)):
        step = random_step(channel, seed, layout=layout)
        messages = []
        for dialect in "packed", "legacy":
            try:
                messages.append((fp.encode(step, dialect, layout=layout), False))
            except ValueError:
                continue  # a frame may hold more requests
        for sender, limit in (1, 10_000), (2, 136), (3, 300), (4, 70):
            whole = reference.encode_frame(reference.ReferenceStep.from_step(step), sender=sender, seq=seed)
            messages += [(piece, True) for piece in reference.split(whole, limit)]
        random.Random(seed).shuffle(messages)
        yield gate(channel, layout, *messages, verify=seed % 2 == 1)[:LONGEST]


def almost_seeds():
    """One number beyond its bound, or a piece that is not the one that is due."""
    for channel, layout in itertools.product(("spec", "spec_topk"), LAYOUTS[:3]):
        step = random_step(channel, 1, batch=1, accepted=layout.max_draft, layout=layout)
        at = 12 if channel == "spec_topk" else 8
        payload = bytearray(fp.encode(step, layout=layout)) + bytes(200)
        payload[at] += 1
        yield gate(channel, layout, (bytes(payload), False))
    for channel, layout in itertools.product(CHANNELS, LAYOUTS[:3]):
        step = random_step(channel, 1, batch=layout.max_batch, layout=layout)
        whole = reference.encode_frame(reference.ReferenceStep.from_step(step), sender=1, seq=1)
        first, *rest = reference.split(whole, 64 + max(4, (len(whole) - 64) // 3))
        for pieces in (
            [first, *rest[:-1], rest[-1] + bytes(40)],
            [first + bytes(40), *rest],
            [first, *rest[1:], rest[0]],
            [first, first, *rest],
            [*rest, first],
        ):
            yield gate(channel, layout, *((piece, True) for piece in pieces))[:LONGEST]


def pack_seeds():
    for op, dialect, seed in itertools.product(range(6), range(3), range(3)):
        rng = random.Random(seed)
        sizes = (2, op, dialect, rng.randrange(12), rng.randrange(24), 6, 60, seed, 3, 1)
        yield bytes((*sizes, rng.randrange(256), 3)) + bytes(rng.randrange(7) for _ in range(200))


def main():
    for name, seeds in (
        ("gate", itertools.chain(gate_seeds(), almost_seeds())),
        ("pack", pack_seeds()),
    ):
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds):
            (folder / f"seed{number:03}").write_bytes(seed)


if __name__ == "__main__":
    main()
