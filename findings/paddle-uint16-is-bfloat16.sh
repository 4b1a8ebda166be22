#!/usr/bin/env bash
# Guess: a NumPy array of uint16 becomes a tensor of a wider integer type, or is refused as uint32 is.
# Seen: Paddle 3.3.1 takes its bits for bfloat16.  No warning; the ids are tiny numbers, and 0 as integers.
# Why it matters: tokenised data sets and message fields of vocabularies below 65,536 are often uint16.
# tolist() and numpy() give the integers back, which hides it.
. "$(dirname "$0")/in-a-temporary-folder" paddlepaddle==3.3.1 numpy==1.26.4
python > seen <<'P'
import numpy as np, paddle

ids = paddle.to_tensor(np.array([1, 2, 40000], np.uint16), place=paddle.CPUPlace())
print("dtype:", ids.dtype)
print("tolist:", ids.tolist())
print("as float32:", ids.astype("float32").tolist())
print("as int32:", ids.astype("int32").tolist())
try:
    paddle.to_tensor(np.array([1], np.uint32))
except ValueError:
    print("uint32: refused")
P
seen_is <<'S'
dtype: paddle.bfloat16
tolist: [1, 2, 40000]
as float32: [9.183549615799121e-41, 1.8367099231598242e-40, -6.352747104407253e-22]
as int32: [0, 0, 0]
uint32: refused
S
