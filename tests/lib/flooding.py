"""Processes that flood a queue, and one that sends honest steps beside them."""

import contextlib
import subprocess

from tests.lib.children import python

KINDS = ("malformed", "oversized", "wrong type", "stray", "first", "empty")

FLOODER = """
import random, signal, sys, time
import sysv_ipc
import fd_postproc as fp
from tests import reference
from tests.reference import FrameHeader
key, kinds, rate = int(sys.argv[1]), sys.argv[2].split(","), float(sys.argv[3])
queue = sysv_ipc.MessageQueue(key, max_message_size=8192)
step = fp.Step.from_arrays("spec", [6] * 512, list(range(3072)))
empty = fp.Step.from_arrays("spec", [], [])
header = FrameHeader.unpack(fp.encode(step, "compact"))
def piece(fragment):
    return header._replace(sender=random.getrandbits(64), fragment=fragment, fragments=3).pack(), 2
messages = {
    "malformed": lambda: (b"\\1", 1), "oversized": lambda: (bytes(7177), 1),
    "wrong type": lambda: (b"\\1\\0\\0\\0", 9), "empty": lambda: (fp.encode(empty), 1),
    "stray": lambda: piece(1), "first": lambda: piece(0),
}
ready = [[messages[kind]() for n in range(2000)] for kind in kinds]
began, sent = time.monotonic(), 0
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
while True:
    for some in ready:
        for payload, mtype in some:
            queue.send(payload, type=mtype)
            sent += 1
            if rate and (ahead := began + sent / rate - time.monotonic()) > 0.002:
                time.sleep(ahead)
"""

HONEST = """
import sys, time
import fd_postproc as fp
key, steps, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
step = fp.Step.from_arrays("spec", [6] * 512, list(range(3072)))
sender = fp.Sender("spec", key=key, dialect="compact")
began = time.monotonic()
for n in range(steps):
    time.sleep(max(began + n / rate - time.monotonic(), 0))
    sender.send(step)
time.sleep(1000)
"""


@contextlib.contextmanager
def running(code, *arguments):
    process = subprocess.Popen(python(code, *arguments), cwd="/")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def flooding(key, *kinds, writers=1, rate=0.0):
    """Writers of messages of these kinds: `rate` a second each; 0: as fast as they can."""
    with contextlib.ExitStack() as stack:
        for _ in range(writers):
            stack.enter_context(running(FLOODER, key, ",".join(kinds), rate))
        yield


def honest(key, steps, rate=100.0):
    """A process that sends so many steps of three pieces each, and lives on."""
    return running(HONEST, key, steps, rate)
