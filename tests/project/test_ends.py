"""Closed objects say so; programs that end without a close end at once, without a word, and lose nothing."""

import subprocess

import pytest

import fd_postproc as fp
from fd_postproc.recording import Recording, RecordingWriter
from tests.lib.children import python
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE

USES = (
    ("RecordingWriter", lambda one: one.write(b"abc")),
    *(("Recording", use) for use in (list, lambda one: list(one.heads()), lambda one: one.survey())),
)


@each("kind, use", USES)
def test_a_closed_recording_says_so(kind, use, tmp_path):
    path = tmp_path / "it.fdrec"
    one = RecordingWriter(path, "plain", force=True)
    if kind == "Recording":
        one.close()
        one = Recording(path)
    one.close()
    one.close()  # once more does no harm
    with pytest.raises(ValueError, match=f"the {kind}.* is closed"):
        use(one)
    repr(one)


END = """
import sys
import fd_postproc as fp
from fd_postproc.recording import Recording, RecordingWriter

key, path = int(sys.argv[1]), sys.argv[2]
sender, receiver = fp.Sender("plain", key=key), fp.Receiver("plain", key=key)
sender.send_arrays([1], [7])
sender.send_arrays([1], [8])
assert receiver.receive(5).token_ids(0) == [7]
writer = RecordingWriter(path, "plain")
writer.write(b"abc")
ENDS
"""
ENDS = ("", "import os; os._exit(0)", "import os\nif os.fork(): os.wait()")


@each("how", ENDS)
def test_a_program_that_ends_without_a_close(how, queue, tmp_path):
    path = tmp_path / "it.fdrec"
    command = python(END.replace("ENDS", how), queue.key, path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with Recording(path) as recording:
        assert [message.payload for message in recording] == [b"abc"]
    path.unlink()
    with fp.Receiver("plain", key=queue.key) as receiver:  # what was sent is there, and nothing else
        assert receiver.receive(0).token_ids(0) == [8]
        assert receiver.receive(0) is None
