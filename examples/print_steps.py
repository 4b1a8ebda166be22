"""Receive what a worker sends on ``spec_topk``, and print it: python print_steps.py QUEUE_ID [STEPS]

QUEUE_ID is that of the service, normally a port.  A step that is received is taken away from the engine.
"""

from __future__ import annotations

import sys
from itertools import islice

import fd_postproc as fp


def print_step(step: fp.Step) -> None:
    for request, count in enumerate(step.counts):
        if count < 0:
            print(f"request {request}: code {count}")  # -9: preempted
            continue
        logprobs = step.logprobs(request)
        for token, likeliest in zip(step.token_ids(request), logprobs.logprobs, strict=True):
            print(f"request {request}: token {token}, logprob {likeliest[0]:.2f}")


def main() -> None:
    queue_id = int(sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else None  # without: until Ctrl-C
    with fp.Receiver("spec_topk", queue_id) as receiver:
        for step in islice(receiver, steps):
            print_step(step)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not all(one.isdigit() for one in sys.argv[1:3]):
        sys.exit(__doc__)
    main()
