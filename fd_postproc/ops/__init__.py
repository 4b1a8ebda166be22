"""FastDeploy's save and get ops, under their own names and argument orders.

``from fd_postproc.ops import get_output`` can replace the import of FastDeploy's op.

Get ops
-------
Each receives one message and writes it into the caller's host tensors, in place and element for element as
FastDeploy's op does; elements that FastDeploy leaves alone keep their value.

If there is no message, the caller sees what FastDeploy's op gives: -2 in the first element of the token
tensor, 0 in the second (and, on ``spec_topk``, in the third), and nothing else is touched.  That happens if
nothing was there and `wait_flag` is false, if a signal ended the wait, if the queue was removed, and if a
message was malformed; malformed messages are taken out of the queue, counted (`receive_stats`) and logged
once per kind.

Deliberate differences from FastDeploy:

* A malformed message writes nothing; FastDeploy's ops trust the header and write out of bounds.
* Tensors are checked before anything is received: a wrong dtype, place or size raises; no message is lost.
* The queue follows ``INFERENCE_MSG_QUEUE_ID`` when it changes; FastDeploy's ops keep the first one forever.
  (The key of the ``spec`` channel depends on the working directory at the first call for each id.)
* A queue made by these ops has mode 0600; ``FD_POSTPROC_QUEUE_MODE=666`` gives FastDeploy's 0666.
* A queue that cannot be opened raises QueueError; FastDeploy's ops report "nothing there" forever.

Save ops
--------
Each writes one message and sends it.  Every byte is the same as FastDeploy's op would write,
but the message ends after its last live slot, and with ``FD_POSTPROC_PEER=compact/1`` in the environment
(to be set if the receiving side is fd_postproc) logprobs are sent in compact frames, which need no raised
kernel limits.  ``FD_POSTPROC_DIALECT`` overrides this.

Tensors may be in host memory or on a CUDA device, mixed.  If all are host tensors, the message is in the
queue when the op returns.  Tensors on a device are read by one kernel on their framework's current stream,
and the op returns after its launch; a thread sends the message, and errors that occur then are raised by the
next save op, which has saved nothing itself.  `flush` waits for everything.  Until the kernel has proved
itself, and where CUDA cannot be used, the framework copies the tensors to the host (``FD_POSTPROC_CUDA``).

`save_output_normal` and `save_output_speculate` are called after sampling, as FastDeploy's functions are.
They choose the save op, on a prefill node too, put moved rows back to their slots, and send nothing from
ranks that must not send.

Deliberate differences from FastDeploy:

* A failed send raises QueueError, and nothing is lost silently; FastDeploy prints one line and continues.
* A send to a full queue waits, without the GIL; the wait is logged every 10 seconds.
* Numbers that would read or write out of bounds, or do not fit their field, raise ValueError naming tensor,
  index, value and bound; nothing is sent then.
* ``mtp_save_first_token`` sends nothing for a request whose step_idx is above 1; FastDeploy's op repeats old
  tokens.
* The legacy dialect reads logprob rows as wide as they are; FastDeploy's op assumes that they are 21 wide.
* A bad environment value raises ValueError; FastDeploy's ops abort the process.
"""

from .dispatch import num_columns, save_output_normal, save_output_speculate
from .receive import (
    get_output,
    get_output_ep,
    get_output_topk,
    receive_stats,
    speculate_get_output,
    speculate_get_output_topk,
)
from .save import (
    flush,
    mtp_save_first_token,
    mtp_save_first_token_with_topk,
    save_output,
    save_output_topk,
    save_stats,
    speculate_save_output,
    speculate_save_output_topk,
)

__all__ = [
    "flush",
    "get_output",
    "get_output_ep",
    "get_output_topk",
    "mtp_save_first_token",
    "mtp_save_first_token_with_topk",
    "num_columns",
    "receive_stats",
    "save_output",
    "save_output_normal",
    "save_output_speculate",
    "save_output_topk",
    "save_stats",
    "speculate_get_output",
    "speculate_get_output_topk",
    "speculate_save_output",
    "speculate_save_output_topk",
]
