#!/usr/bin/env bash
# Guess: where all logits are masked, the logarithm of the sum is minus infinity, as NumPy's is.
# Seen: in paddlepaddle 3.3.1 on a CPU `logsumexp` is NaN, `logaddexp` too, and `logcumsumexp` is the lowest float32.
# Of a row with one infinite logit it is NaN instead of infinity.
# Why it matters: log-probabilities are made as logits less logsumexp, and a mask of guided decoding may leave no token.
# Three functions of one family give three answers, and only NaN is seen at once.
. "$(dirname "$0")/in-a-temporary-folder" paddlepaddle==3.3.1 numpy==1.26.4
python > seen 2> /dev/null <<'P'
import math

import numpy as np
import paddle

paddle.device.set_device("cpu")
none = paddle.to_tensor([-math.inf, -math.inf])
print("logsumexp", paddle.logsumexp(none).item(), "NumPy", np.logaddexp.reduce([-np.inf, -np.inf]))
print("logaddexp", paddle.logaddexp(none, none).tolist())
print("logcumsumexp", paddle.logcumsumexp(none).tolist())
print("one left", paddle.logsumexp(paddle.to_tensor([-math.inf, 0.5])).item())
print("infinite", paddle.logsumexp(paddle.to_tensor([math.inf, 1.0])).item(), "NumPy", np.logaddexp(np.inf, 1))
P
seen_is <<'S'
logsumexp nan NumPy -inf
logaddexp [nan, nan]
logcumsumexp [-3.4028234663852886e+38, -3.4028234663852886e+38]
one left 0.5
infinite nan NumPy inf
S
