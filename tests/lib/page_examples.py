"""The documents' Python examples, each run by itself in an empty folder."""

import re
import signal
import subprocess
import sys
import textwrap

import fd_postproc as fp
from fd_postproc import queues
from tests.lib.page_commands import PAGES, ROOT, as_a_user
from tests.lib.waiting import PATIENCE

ENDLESS = "for step in receiver:\n        for i, count"  # a live service's


def examples():
    """Name and text of each ```python block, which translations have, too, and of imports."""
    for name in "README.md", "docs/user-guide.md":
        text = (ROOT / name).read_text()
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)):
            yield f"{name}-{number}", block
    for page in PAGES:
        for number, block in enumerate(re.findall(r"(?:^    (?:from|import) .*\n)+", page.read_text(), re.M)):
            yield f"{page.name}-imports-{number}", textwrap.dedent(block)


def run_example(block, folder, python=sys.executable):
    """Run it; the caller has an IPC namespace of its own.  Whatever it leaves there is removed."""
    path = folder / "example.py"
    path.write_text(block)
    process = subprocess.Popen(
        [python, "-u", path],
        cwd=folder,
        env=as_a_user(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process as example:
        if ENDLESS in block:
            sender = fp.Sender("topk", queue_id=8002, dialect="compact")
            sender.send_arrays([1, -9], [[5, 6]], [[-0.5, -1.0]], [1])
            assert example.stdout.readline() == "0 [5] [[-0.5, -1.0]]\n"
            assert example.stdout.readline() == "1 code -9\n"
            example.send_signal(signal.SIGINT)
        try:
            out, err = example.communicate(timeout=PATIENCE)
        finally:
            example.kill()
    for queue in queues.list_queues():  # the ops leave theirs, as FastDeploy's do
        queues.remove_queue(queue.msqid)
    if ENDLESS in block:
        assert "KeyboardInterrupt" in err
    else:
        assert (example.returncode, err) == (0, "")
        assert out or "print" not in block
