"""Keep what waits in a queue in a file, and look at it later: python record_queue.py QUEUE_ID CHANNEL FILE

``fd-postproc record``, ``inspect`` and ``replay`` do this from the command line.  The file holds what users
were answered, as token ids; only you can read it.
"""

from __future__ import annotations

import sys

import fd_postproc as fp
from fd_postproc.core.layout import Channel
from fd_postproc.recording import Recording, RecordingWriter

CHANNELS: dict[str, Channel] = {"plain": "plain", "topk": "topk", "spec": "spec", "spec_topk": "spec_topk"}


def record(queue_id: int, channel: Channel, path: str) -> None:
    with fp.Receiver(channel, queue_id) as receiver, RecordingWriter(path, channel) as writer:
        while (step := receiver.receive(timeout=0)) is not None:
            writer.write(fp.encode(step, "compact"), mtype=2)  # 2: compact frames; 1: FastDeploy's dialects


def show(path: str) -> None:
    with Recording(path) as recording:
        for message in recording:
            step = fp.decode(message.payload, CHANNELS[recording.channel or "plain"], mtype=message.mtype)
            print(f"message {message.index}: {step.batch} requests, {step.rows} tokens, counts {step.counts}")


if __name__ == "__main__":
    if len(sys.argv) < 4 or not sys.argv[1].isdigit() or sys.argv[2] not in CHANNELS:
        sys.exit(__doc__)
    record(int(sys.argv[1]), CHANNELS[sys.argv[2]], sys.argv[3])
    show(sys.argv[3])
