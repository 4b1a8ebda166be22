"""Commands that the documents and the help texts print, and what they need in order to run."""

import importlib
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess

import fd_postproc as fp
from fd_postproc import cli, queues
from fd_postproc.flight.codes import End
from fd_postproc.flight.recorder import Recorder
from fd_postproc.recording import RecordingWriter
from tests.lib.paths import ROOT
from tests.lib.waiting import until

FOLDERS = ("", "docs/", "benchmarks/", "examples/", "harness/service/", "tests/restated/")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}*.md"))
QUEUE_ID, KEY = 8002, 0x21500001  # those of the documents
MESSAGES = 20
PID, REQUEST = "4711", "chatcmpl-1f0c"


def page_commands():
    """(page, command) for each line of a block of commands, less the remark behind it."""
    texts = [(str(page.relative_to(ROOT)), page.read_text()) for page in PAGES]
    for name in cli.COMMANDS:
        texts.append((f"{name} --help", importlib.import_module(f"fd_postproc.cli.{name}").EXAMPLES))
    for where, text in texts:
        for line in re.findall(r"^ +(?:.*&& )?(fd-postproc [a-z].*)$", text, flags=re.M):
            yield where, re.split(r"  +| #", line)[0]
        for command in re.findall(r"^\| `(fd-postproc [a-z].*?)`", text, flags=re.M):
            yield where, command


def unique_commands():
    """Command to the first page that prints it."""
    found = {}
    for where, command in page_commands():
        found.setdefault(command, where)
    return found


def spelled_out(command):
    """Arguments without the program's name; placeholders have become something."""
    known = {"QUEUE": str(QUEUE_ID), "FILE": "night.fdrec", "QUEUE|FILE": str(QUEUE_ID)}
    words = shlex.split(command)[1:]
    if words[:1] == ["explain"]:
        known = {"FILE": "old.flight", "PID": PID, "REQUEST": REQUEST}
    return [known.get(word, word) for word in words]


def leave_a_flight(folder):
    """The files of a process that has ended, in which the request was served."""
    recorder = Recorder.begin("engine", "topk", QUEUE_ID, logging.getLogger("tests.flight"), size=1 << 16)
    recorder.began(0, REQUEST, 7, 0.5)
    recorder.ended(0, REQUEST, 12, End.TOKEN)
    recorder.end()
    shutil.copy(recorder.path, folder / "old.flight")
    shutil.move(recorder.path, folder / f"engine-{QUEUE_ID}-{PID}.flight")


def set_the_stage(arguments, folder):
    """Queues and files that the commands speak of; the caller has an IPC namespace of its own."""
    if arguments[0] == "explain":
        leave_a_flight(folder)
    step = fp.Step.from_arrays("topk", [1, -9], [[5, 6]], [[-0.5, -1.0]], [1])
    for place in {"queue_id": QUEUE_ID}, {"key": KEY}:
        with fp.Sender("topk", dialect="compact", **place) as sender:
            for _ in range(MESSAGES if arguments[0] != "replay" else 0):
                sender.send(step, timeout=5)
    if arguments[0] != "record":
        with RecordingWriter(folder / "night.fdrec", "topk") as writer:
            for number in range(MESSAGES):
                writer.write(fp.encode(step, "compact"), mtype=2, time_ns=number * 1_000_000)
    (folder / "payload.bin").write_bytes(fp.encode(fp.Step.from_arrays("spec", [2, 0], [5, 6])))


def as_a_user():
    """The environment without what the tests add."""
    own = ("PYTHON", "INFERENCE_MSG_QUEUE_ID", "FD_POSTPROC_", "FD_PLUGINS")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def run_command(command, programs, folder):
    """Run it with the programs of a folder, where queues and files are that it speaks of."""
    arguments, process = spelled_out(command), None
    environment = {**as_a_user(), "FD_POSTPROC_FLIGHT_FOLDER": str(folder)}
    try:
        set_the_stage(arguments, folder)
        process = subprocess.Popen(
            [programs / "fd-postproc", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if arguments[0] == "record" and "--count" not in arguments:
            until(lambda: not any(queue.messages for queue in queues.list_queues() if queue.key != KEY))
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    finally:
        if process is not None:
            process.kill()
            process.communicate()
        for queue in queues.list_queues():
            queues.remove_queue(queue.msqid)
    # The doctor may find errors here, and the queues of this page's other commands.
    expected = (0, 1) if arguments[0] == "doctor" else (0,)
    assert process.returncode in expected, err
    assert "Traceback" not in err
    assert out or arguments[0] in ("record", "replay")
