#!/usr/bin/env bash
# Guess: numpy() of a row copies the row, or shares its memory.
# Seen: with Paddle 3.3.1 on a CPU it copies the whole storage that the row lies in, and the array keeps that
# copy: five rows of a 64 MB tensor hold 320 MB.  NumPy's from_dlpack shares the row.
# Why it matters: engines cut a request's row from a tensor of the batch, so the cost grows with its square.
. "$(dirname "$0")/in-a-temporary-folder" paddlepaddle==3.3.1 numpy==1.26.4
python > seen <<'P'
import numpy as np, paddle


def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


paddle.set_device("cpu")
batch = paddle.ones([256, 1 << 16])
for name, read in (("numpy", lambda row: row.numpy()), ("from_dlpack", np.from_dlpack)):
    read(batch[0])
    before = held()
    rows = [read(batch[index]) for index in range(5)]
    print(name, "of 5 rows holds the storage", round((held() - before) / 2**26), "times")
    del rows
P
seen_is <<'S'
numpy of 5 rows holds the storage 5 times
from_dlpack of 5 rows holds the storage 0 times
S
