#!/usr/bin/env bash
# Guess: without `padding_idx`, an embedding refuses the id -1, or takes the last row, as an index does.
# Seen: in paddlepaddle 3.3.1 it is a row of zeros, of the function and of the layer; -2 and ids above the rows are
# errors.  "No padding" is written as -1 inside, so that -1 is the padding.
# Why it matters: FastDeploy pads token ids with -1.  One that is left in an input is no error, as any other wrong id
# is: the model answers, a little off.
. "$(dirname "$0")/in-a-temporary-folder" paddlepaddle==3.3.1 numpy==1.26.4
python > seen 2> /dev/null <<'P'
import paddle

paddle.device.set_device("cpu")
rows = paddle.to_tensor([[1.0], [2.0], [3.0]])


def of(embedding, number):
    try:
        return embedding(paddle.to_tensor([number])).tolist()
    except ValueError:
        return "refused"


layer = paddle.nn.Embedding(3, 1)
layer.weight.set_value(rows)
for number in (0, 2, 3, -1, -2):
    function = of(lambda ids: paddle.nn.functional.embedding(ids, rows), number)
    print(number, "function", function, "layer", of(layer, number))
print("by index", rows[paddle.to_tensor([-1])].tolist())
P
seen_is <<'S'
0 function [[1.0]] layer [[1.0]]
2 function [[3.0]] layer [[3.0]]
3 function refused layer refused
-1 function [[0.0]] layer [[0.0]]
-2 function refused layer refused
by index [[3.0]]
S
