"""Send the largest possible step between two processes, under the default kernel limits."""

import multiprocessing

import numpy as np

import fd_postproc as fp


def worker() -> None:
    ids, scores = np.ones((512 * 6, 21), np.int32), np.full((512 * 6, 21), -0.5, np.float32)
    with fp.Sender("spec_topk", queue_id=50123, dialect="compact") as sender:
        sender.send_arrays([6] * 512, ids, scores, ranks=np.ones(512 * 6, np.int32))


if __name__ == "__main__":
    with fp.Receiver("spec_topk", queue_id=50123) as receiver:
        multiprocessing.get_context("spawn").Process(target=worker).start()
        print(receiver.receive(timeout=30), receiver.stats["fragments"], "fragments")
        receiver.remove()
