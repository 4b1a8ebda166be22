#!/usr/bin/env bash
# Guess: a cast to float8 either saturates at the largest number (448 for e4m3fn), or gives NaN and infinity.
# Seen: Paddle 3.3.1 on a CPU does both.  Numbers just above the largest one are NaN (infinity for e5m2); larger
# ones and infinity saturate; and NaN becomes 448 in e4m3fn: what was no number is the largest one.
# Why it matters: caches of keys and values in float8.  A search for NaN behind the cast finds nothing, and a
# reference made on a CPU has NaN for a narrow band of numbers only.
. "$(dirname "$0")/in-a-temporary-folder" paddlepaddle==3.3.1 numpy==1.26.4
python > seen <<'P'
import paddle

paddle.set_device("cpu")
for name, numbers in (
    ("float8_e4m3fn", ("448", "464", "465", "479", "480", "1e9", "inf", "nan")),
    ("float8_e5m2", ("57344", "61440", "65535", "65536", "1e9", "inf", "nan")),
):
    for number in numbers:
        cast = paddle.to_tensor(float(number), dtype="float32").astype(name)
        print(name, number, "->", cast.astype("float32").item())
P
seen_is <<'S'
float8_e4m3fn 448 -> 448.0
float8_e4m3fn 464 -> 448.0
float8_e4m3fn 465 -> nan
float8_e4m3fn 479 -> nan
float8_e4m3fn 480 -> 448.0
float8_e4m3fn 1e9 -> 448.0
float8_e4m3fn inf -> 448.0
float8_e4m3fn nan -> 448.0
float8_e5m2 57344 -> 57344.0
float8_e5m2 61440 -> inf
float8_e5m2 65535 -> inf
float8_e5m2 65536 -> 57344.0
float8_e5m2 1e9 -> 57344.0
float8_e5m2 inf -> 57344.0
float8_e5m2 nan -> nan
S
