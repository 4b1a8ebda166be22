#!/usr/bin/env bash
# Guess: NumPy's float64, which is a subclass of float, is a float for both packers, or for none.
# Seen: msgpack 1.2.4 packs it as the float that it is; msgspec 0.22.0 raises TypeError, for JSON, too.  The same
# for str_ and bytes_.  Both refuse float32, int64 and bool_.
# Why it matters: messages of engines are packed by either.  A log-probability that was averaged in NumPy travels
# until one side changes its packer.
. "$(dirname "$0")/in-a-temporary-folder" msgpack==1.2.4 msgspec==0.22.0 numpy==1.26.4
python > seen <<'P'
import msgpack
import msgspec
import numpy as np


def packs(pack, value):
    try:
        return "packs" if pack(value) else "?"
    except TypeError:
        return "refuses"


for value in (np.float64(1.5), np.str_("a"), np.bytes_(b"a"), np.float32(1.5), np.int64(3), np.bool_(True)):
    answers = [packs(pack, value) for pack in (msgpack.packb, msgspec.msgpack.encode, msgspec.json.encode)]
    print(type(value).__name__, "msgpack", answers[0], "msgspec", answers[1], "its JSON", answers[2])
P
seen_is <<'S'
float64 msgpack packs msgspec refuses its JSON refuses
str_ msgpack packs msgspec refuses its JSON refuses
bytes_ msgpack packs msgspec refuses its JSON refuses
float32 msgpack refuses msgspec refuses its JSON refuses
int64 msgpack refuses msgspec refuses its JSON refuses
bool_ msgpack refuses msgspec refuses its JSON refuses
S
