#!/usr/bin/env bash
# Guess: log_softmax of a masked token is -inf, its probability 0, and float64 is exact to 1e-15.
# Seen: Paddle 3.3.1 on a CPU cuts every logit at 64 below the row's largest, in float64, too.  -inf gets the
# log-probability -64, the same as a logit of -65, and a probability of 1e-28.
# Why it matters: sampling masks are -inf.  A CPU reference of log-probabilities has no -inf, and its tail is flat.
. "$(dirname "$0")/in-a-temporary-folder" paddlepaddle==3.3.1 numpy==1.26.4
python > seen <<'P'
import paddle
import paddle.nn.functional as F

paddle.set_device("cpu")
for name in ("float32", "float64"):
    logits = paddle.to_tensor([0.0, -63.0, -65.0, float("-inf")], dtype=name)
    print(name, "log_softmax", [round(one, 6) + 0.0 for one in F.log_softmax(logits).tolist()])
    print(name, "softmax", [f"{one:.1e}" for one in F.softmax(logits).tolist()])
P
seen_is <<'S'
float32 log_softmax [0.0, -63.0, -64.0, -64.0]
float32 softmax ['1.0e+00', '4.4e-28', '1.6e-28', '1.6e-28']
float64 log_softmax [0.0, -63.0, -64.0, -64.0]
float64 softmax ['1.0e+00', '4.4e-28', '1.6e-28', '1.6e-28']
S
