#!/usr/bin/env bash
# Guess: as in NumPy, the mean of integers is a float, and a sum has at least 64 bits.
# Seen: in Paddle 3.3.1 the mean of [1, 2] is the integer 1.  sum() widens int32 and bool, but not uint8, int8
# and int16: 256 ones of uint8 are 0.  cumsum() widens them all.
# Why it matters: acceptance lengths are means of counts, and masks of accepted tokens are uint8.
. "$(dirname "$0")/in-a-temporary-folder" paddlepaddle==3.3.1 numpy==1.26.4
python > seen <<'P'
import paddle

paddle.set_device("cpu")
counts = paddle.to_tensor([1, 2])
print("mean:", paddle.mean(counts).item(), paddle.mean(counts).dtype)
for name in ("bool", "uint8", "int8", "int16", "int32"):
    ones = paddle.ones([65536]).astype(name)
    total = ones.sum()
    print("sum of 65536 ones,", name, total.item(), total.dtype)
print("cumsum, uint8:", paddle.ones([65536]).astype("uint8").cumsum()[-1].item())
P
seen_is <<'S'
mean: 1 paddle.int64
sum of 65536 ones, bool 65536 paddle.int64
sum of 65536 ones, uint8 0 paddle.uint8
sum of 65536 ones, int8 0 paddle.int8
sum of 65536 ones, int16 0 paddle.int16
sum of 65536 ones, int32 65536 paddle.int64
cumsum, uint8: 65536
S
