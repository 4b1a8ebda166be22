"""The documents' examples run as they are printed, each by itself, in an empty folder."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fd_postproc as fp
from fd_postproc import queues

ROOT = Path(__file__).parent.parent.parent
ENDLESS = "for step in receiver:\n        for i, count"  # a live service's


def blocks():
    for name in "README.md", "docs/user-guide.md":  # the translations have the same (test_pages.py)
        text = (ROOT / name).read_text()
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)):
            yield pytest.param(block, id=f"{name}-{number}")


def started(block, folder):
    path = folder / "example.py"
    path.write_text(block)
    return subprocess.Popen(
        [sys.executable, "-u", path],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )


@pytest.mark.parametrize("block", [*blocks()])
def test_every_example_runs_by_itself(block, own_namespace, tmp_path, monkeypatch):
    if not own_namespace:
        pytest.skip(
            "the examples use queue ids that others may use, too: they need an IPC namespace of their own"
        )
    for name in "INFERENCE_MSG_QUEUE_ID", "FD_POSTPROC_DIALECT":
        monkeypatch.delenv(name, raising=False)
    with started(block, tmp_path) as example:
        if ENDLESS in block:
            sender = fp.Sender("topk", queue_id=8002, dialect="compact")
            sender.send_arrays([1, -9], [[5, 6]], [[-0.5, -1.0]], [1])
            assert example.stdout.readline() == "0 [5] [[-0.5, -1.0]]\n"
            assert example.stdout.readline() == "1 code -9\n"
            example.send_signal(signal.SIGINT)
        try:
            out, err = example.communicate(timeout=60)
        finally:
            example.kill()
    for queue in queues.list_queues():  # the ops leave theirs, as FastDeploy's do
        queues.remove_queue(queue.msqid)
    if ENDLESS in block:
        assert "KeyboardInterrupt" in err
    else:
        assert (example.returncode, err) == (0, "")
        assert out or "packer" in block
