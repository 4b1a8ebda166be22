#!/usr/bin/env bash
# Guess: a COO tensor means the sum of its duplicates, whatever it is converted to, as in SciPy and PyTorch.
# Seen: in Paddle 3.3.1 only coalesce() and sum() add them.  to_dense() keeps the last one, to_sparse_csr() keeps
# both, with one column twice in a row, and square() takes each for itself.
# Why it matters: penalties and biases of logits are built as (row, token) pairs, in which a token may come twice.
. "$(dirname "$0")/in-a-temporary-folder" paddlepaddle==3.3.1 numpy==1.26.4
python > seen <<'P'
import paddle

paddle.set_device("cpu")
pairs = paddle.sparse.sparse_coo_tensor([[0, 0, 1], [0, 0, 1]], [1.0, 2.0, 5.0], [2, 2])
print("to_dense:", pairs.to_dense().tolist())
print("coalesce:", pairs.coalesce().to_dense().tolist())
print("csr columns:", pairs.to_sparse_csr().cols().tolist())
print("sum:", paddle.sparse.sum(pairs).to_dense().tolist())
print("square:", paddle.sparse.square(pairs).to_dense().tolist())
P
seen_is <<'S'
to_dense: [[2.0, 0.0], [0.0, 5.0]]
coalesce: [[3.0, 0.0], [0.0, 5.0]]
csr columns: [0, 0, 1]
sum: [8.0]
square: [[4.0, 0.0], [0.0, 25.0]]
S
