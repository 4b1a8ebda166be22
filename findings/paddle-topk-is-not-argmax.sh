#!/usr/bin/env bash
# Guess: the first of topk() is what argmax() gives.
# Seen: with Paddle 3.3.1 on a CPU argmax takes the first of equal numbers, topk two others; argmax passes over
# NaN, topk puts it first, and max is NaN.
# Why it matters: a greedy sampler takes argmax, its log-probabilities come from topk: the sampled token is then
# not the first of its own candidates.  Equal logits are common in bfloat16.
. "$(dirname "$0")/in-a-temporary-folder" paddlepaddle==3.3.1 numpy==1.26.4
python > seen <<'P'
import paddle

paddle.set_device("cpu")
for numbers in ([3.0] * 5, [1.0, float("nan"), 3.0]):
    tensor = paddle.to_tensor(numbers)
    print(numbers, "argmax", paddle.argmax(tensor).item(), "topk", paddle.topk(tensor, 2)[1].tolist(), end=" ")
    print("max", paddle.max(tensor).item())
P
seen_is <<'S'
[3.0, 3.0, 3.0, 3.0, 3.0] argmax 0 topk [2, 4] max 3.0
[1.0, nan, 3.0] argmax 2 topk [1, 2] max nan
S
