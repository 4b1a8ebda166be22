"""``fd-postproc inspect``: queues and files."""

import ctypes
import gzip
import os
import re
import stat
import struct

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc.cli.guess import candidates
from fd_postproc.cli.tables import Grid, Row, fitting, step_rows
from fd_postproc.recording import Recording, RecordingWriter
from tests import reference
from tests.lib.commands import SHIPPED, flat, key_of
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.reference import ReferenceStep


def test_inspect_leaves_the_message_and_shows_the_queue(run, queue, goldens):
    for name in "plain_b3_stop_s7", "plain_b1_s1001":
        queue.send(goldens[name].payload)
    status, out, err = run("inspect", key_of(queue), "--channel", "plain")
    assert (status, err) == (0, "")
    assert queue.current_messages == 2
    for part in f"Queue msqid:{queue.id}", "2 messages, 4,112 bytes", "0600", f"process {os.getpid()}":
        assert part in out
    for part in "Message 0", "-3 recovery stop", "-9 preempted", "the worker has finished":
        assert part in out
    assert "137415" in run("inspect", key_of(queue), "--channel", "plain", "--index", "1")[1]
    status, _, err = run("inspect", f"msqid:{queue.id}", "--index", "2")
    assert status == 1
    assert "no message 2" in err


def test_the_channel_of_every_golden_message_is_guessed_right(goldens, refused_golden):
    for golden in goldens.values():
        if golden is not refused_golden:
            found, _ = candidates(golden.payload, 1, fp.GPU)
            assert found[0].channel == golden.channel, golden.name
            assert all(one.channel == one.step.channel for one in found)  # each once


def test_inspect_says_that_a_channel_is_a_guess(run, goldens, tmp_path):
    path = tmp_path / "payload.bin"
    path.write_bytes(goldens["plain_b3_s1003"].payload)
    status, out, _ = run("inspect", path, "--rows", "1")
    assert (status, "The channel is a guess: plain," in out) == (0, True)
    assert "A plain message" in run("inspect", path, "--channel", "topk")[1]  # as FastDeploy sends them, too
    path.write_bytes(b"\xa5" * 500)
    status, out, err = run("inspect", path)
    assert (status, err.count("malformed")) == (1, 4)


def test_inspect_reports_a_malformed_message(run, queue, goldens):
    payload = bytearray(goldens["spec_b3_s1003"].payload)
    payload[8:12] = (77).to_bytes(4, "little")
    queue.send(bytes(payload))
    status, out, err = run("inspect", key_of(queue), "--channel", "spec")
    assert status == 1
    assert "request 0 claims 77 tokens, at most 6" in err
    assert "0000  01000000 03000000 4d000000" in out
    assert "use --channel spec_topk" in flat(out)
    assert queue.current_messages == 1
    status, out, _ = run("inspect", key_of(queue))
    assert status == 0
    assert "length of a full spec message, too, but: malformed spec message: request 0 claims 77" in flat(out)


def test_inspect_of_a_message_longer_than_msgmax_now(raised_limits, run, queue, goldens):
    queue.send(goldens["topk_packed_b3_c6_s1009"].payload)
    with open("/proc/sys/kernel/msgmax", "w") as file:
        file.write("8192")
    status, _, err = run("inspect", key_of(queue), "--channel", "topk")
    assert status == 1
    assert "kernel.msgmax = 8192" in err
    assert "fd-postproc record" in err
    assert "Traceback" not in err


def test_inspect_a_recording(run):
    status, out, _ = run("inspect", SHIPPED / "spec_topk.fdrec", "--index", "8", "--rows", "2", "--top", "1")
    assert status == 0
    for part in "messages  9", "message flag  3 target", "21 (from the header)", "12424", "254 more":
        assert part in out
    assert "guess" not in out
    status, _, err = run("inspect", SHIPPED / "plain.fdrec", "--index", "4")
    assert status == 1
    assert "no message 4" in err


def test_what_is_left_out_is_counted_without_codes():
    step = fp.Step.from_arrays("plain", [1, -9, -3, 1], [5, 6])
    assert [*step_rows(step, 3, 1)][-1] == Row("...", "3 more", "1 token")


def test_a_prefill_nodes_draft_token_has_no_log_probability():
    scores, ranks = [[-0.5, -1.0], [0.0, 0.0]], [1, 0]
    step = fp.Step.from_arrays("spec_topk", [2], [[7, 1], [8, 0]], scores, ranks, as_recorded=True)
    assert [*step_rows(step, 3)] == [Row("0", "2", "7", "1", "-0.500", "1:-1.00"), Row("", "", "8", "-", "-")]


def test_inspect_a_compact_frame_without_its_mtype(run, tmp_path):
    path = tmp_path / "payload"
    path.write_bytes(fp.encode(fp.Step.from_arrays("spec", [2], [51, 52]), "compact"))
    for channel in ["--channel", "spec"], []:
        status, out, _ = run("inspect", path, *channel)
        assert (status, "51" in out) == (0, True)


def test_inspect_with_another_layout(run, tmp_path):
    path = tmp_path / "payload"
    path.write_bytes(struct.pack("<2i", 1, 50) + bytes(4 * 50))
    assert run("inspect", path, "--channel", "plain", "--layout", "xpu")[0] == 0
    status, _, err = run("inspect", path, "--channel", "plain", "--layout", "40,20,6,64")
    assert status == 1
    assert "more than the 168 of this channel and layout" in err


def test_a_recording_that_is_cut_short_says_so(run, tmp_path):
    cut = tmp_path / "cut.fdrec"
    cut.write_bytes((SHIPPED / "plain.fdrec").read_bytes()[:-3])
    with Recording(cut) as recording:
        whole = sum(1 for _ in recording)
    status, _, err = run("inspect", cut, "--index", str(whole))
    assert (status, "cut short" in err) == (1, True)


def test_a_frame_in_pieces(run, queue, tmp_path):
    """A recording's are joined, whichever piece is named; a queue's, and one without the others, is named."""
    step = random_step("spec_topk", 1, batch=40, cols=3, accepted=2)
    pieces = reference.split(reference.encode_frame(ReferenceStep.from_step(step), seq=8), 400)
    count, path = len(pieces), tmp_path / "a.fdrec"
    assert count > 3
    with RecordingWriter(path) as recording:
        for piece in (*pieces, fp.encode(step, "compact"), *pieces):
            recording.write(piece, 2)
    for index in 0, count - 1, count + 2:
        status, out, err = run("inspect", path, "--index", index)
        first = 0 if index < count else count + 1
        assert (status, err) == (0, "")
        assert f"Messages {first} to {first + count - 1}, " in out
        assert f"A compact frame in {count} pieces, number 8 of its sender." in out
        assert "3 (from the header)" in out
        assert str(step.token_ids(0)[0]) in out
    with RecordingWriter(path, force=True) as recording:
        recording.write(pieces[1], 2)
    queue.send(pieces[1], type=2)
    named = f"piece 2 of {count} of a compact frame, number 8 of its sender: channel spec_topk, 40 requests, "
    for source, more in (path, []), (key_of(queue), []), (key_of(queue), ["--channel", "topk"]):
        status, out, _ = run("inspect", source, *more)
        assert status == 0
        assert f"{named}3 columns" in flat(out)


@pytest.fixture
def places(queue, tmp_path):
    """A queue, and a folder of files that are no recordings."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(100)))
    os.mkfifo(tmp_path / "pipe")
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    return {"tmp": tmp_path, "queue": key_of(queue)}


@each(
    ("arguments", "why"),
    [
        (["inspect", "no/such"], "no such file; a queue is written as"),
        (["inspect", "msqid:2147483647"], "looking at queue msqid:2147483647"),
        (["inspect", "key:0x7ffffff1"], "start the other side first"),
        (["inspect", "777123"], "/dev/shm"),
        (["inspect", "777123", "--path", "/no/such"], "/no/such"),
        (["inspect", "/etc/passwd/x"], "'/etc/passwd/x'"),
        (["record", "key:0x7ffffff1", "x"], "start the other side first"),
        (["replay", "no/such", "1"], "no/such: No such file or directory"),
        (["replay", "/etc/passwd", "1"], "is not a recording"),
        (["inspect", "/etc/passwd", "--index", "1"], "not a recording but one payload"),
        (["inspect", "/"], "/: it is a folder: name a file in it"),
        (["replay", "/", "1"], "/: it is a folder: name a file in it"),
        (["explain", "/"], "/: it is a folder: name a file in it"),
        (["inspect", "--", "-777123"], "opening queue -777123, key"),
        (["inspect", "/proc/self/mem"], "/proc/self/mem: "),
        (["inspect", "{tmp}/loop"], "{tmp}/loop: Too many levels of symbolic links"),
        (["inspect", "{tmp}/a.gz"], "{tmp}/a.gz is compressed"),
        (["inspect", "{tmp}/socket"], "{tmp}/socket: it is a socket"),
        (["record", "{queue}", ""], "'': No such file"),
        (["record", "{queue}", "{tmp}/pipe"], "{tmp}/pipe is not a regular file"),
        (["record", "{queue}", "{tmp}/pipe", "--force"], "{tmp}/pipe is not a regular file"),
        (["replay", SHIPPED / "plain.fdrec", "8002", "--channel", "topk"], "of channel plain, not topk"),
    ],
)
def test_foreseeable_failures_are_one_line(run, arguments, why, places):
    status, _, err = run(*(str(one).format(**places) for one in arguments))
    assert status == 1
    assert why.format(**places) in err
    assert len(err.splitlines()) == 1
    assert err.startswith(f"fd-postproc {arguments[0]}: ")


def test_a_queue_id_is_looked_for_under_both_paths(run, own_namespace, monkeypatch, tmp_path, goldens):
    monkeypatch.chdir(tmp_path)
    number = 400_000 + os.getpid() % 100_000
    made = []
    try:
        for channel in "spec", "plain":
            key = queues.locate(channel, number)
            made.append(sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=1 << 14))
            made[-1].send(goldens[f"{channel}_b3_s1003"].payload)
            status, out, err = run("inspect", number)
            assert status == 0
            assert f"The channel is a guess: {channel}" in out
        assert "two queues" in err
        assert "--channel spec" in err
        assert f"Queue msqid:{made[0].id}" in run("inspect", number, "--channel", "spec")[1]
    finally:
        for queue in made:
            queue.remove()


def test_a_private_queue_can_be_looked_at_but_not_recorded(run, tmp_path):
    libc = ctypes.CDLL(None)
    msqid = libc.msgget(0, 0o600)
    try:
        status, out, _ = run("inspect", f"msqid:{msqid}")
        assert status == 0
        assert "0, private" in out
        status, _, err = run("record", f"msqid:{msqid}", tmp_path / "a")
        assert status == 1
        assert "private (key 0)" in err
    finally:
        queues.remove_queue(msqid)


def test_a_queue_of_another_user_is_not_recorded(run, queue, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can become a user who may not")
    run("record", "--help")  # imports what the other user may not be able to read
    os.seteuid(65534)
    try:
        status, _, err = run("record", key_of(queue), tmp_path / "a")
    finally:
        os.seteuid(0)
    assert status == 1
    assert "Permission denied; run both sides as the same user" in err
    assert not (tmp_path / "a").exists()


@each("width", [10, 23, 24, 30, 80])
def test_a_table_never_cuts_a_cell(width):
    from rich.console import Console

    grid = Grid(["name", "size", "what"], [["a", "123,456", "one two"], ["b", "7", "three"]], right=(1,))
    screen = Console(width=width, highlight=False)
    with screen.capture() as capture:
        screen.print(fitting(width, grid))
    assert {"123,456", "7", "three"} <= {word.strip(",:") for word in re.split(r"[\s|]+", capture.get())}
