#!/usr/bin/env bash
# Guess: an int32 tensor with 1 in it is not equal to the Python integer 4294967297, as in NumPy, or that is an error.
# Seen: paddlepaddle 3.3.1 compares with the integer modulo 2**32: `==` is true, and 1 is greater than 2147483648.
# A uint8 of 255 equals -1.  `+` goes another way: its result is the lowest int32.  Stored by index it is that, too.
# Why it matters: ids, time stamps in nanoseconds and sizes in bytes are compared with tensors of int32, in which
# FastDeploy keeps lengths.  A limit beyond int32 is none, or one that is always exceeded.
. "$(dirname "$0")/in-a-temporary-folder" paddlepaddle==3.3.1 numpy==1.26.4
python > seen 2> /dev/null <<'P'
import numpy as np
import paddle

paddle.device.set_device("cpu")
one = paddle.to_tensor([1, 5], dtype="int32")
array = np.array([1, 5], np.int32)
for number in (2**32 + 1, 2**31):
    print(number, "equal", (one == number).tolist(), "NumPy", (array == number).tolist())
    print(number, "greater", (one > number).tolist(), "NumPy", (array > number).tolist())
    print(number, "sum", (one + number).tolist(), "NumPy", (array.astype(np.int64) + number).tolist())
print("uint8 255 == -1", (paddle.to_tensor([255], dtype="uint8") == -1).tolist())
stored = one.clone()
stored[0] = 2**32 + 7
print("stored", stored.tolist())
P
seen_is <<'S'
4294967297 equal [True, False] NumPy [False, False]
4294967297 greater [False, True] NumPy [False, False]
4294967297 sum [-2147483647, -2147483643] NumPy [4294967298, 4294967302]
2147483648 equal [False, False] NumPy [False, False]
2147483648 greater [True, True] NumPy [False, False]
2147483648 sum [-2147483647, -2147483643] NumPy [2147483649, 2147483653]
uint8 255 == -1 [True]
stored [-2147483648, 5]
S
