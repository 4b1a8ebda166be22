"""The command ``fd-postproc doctor``: exit status, JSON, removing leftovers after asking."""

import json
import os
import subprocess
import time

import pytest
import sysv_ipc

from fd_postproc import doctor, queues
from tests.lib.commands import at_terminal
from tests.lib.doctoring import PROGRAM, dead_user, examined, exists, scope_of
from tests.lib.waiting import PATIENCE, until


def test_exit_status_and_filters(run, queue, monkeypatch):
    named = ("--queue-id", f"key:{queue.key:#x}", "--channel", "plain")
    status, out, _ = run(*named)
    assert status == 0
    assert "Nothing is wrong." in out
    queue.send(bytes(8))
    dead_user(queue.key, "q.receive()\nq.send(bytes(8))")
    assert run(*named)[0] == 0
    assert run(*named, "--strict")[0] == 1
    queue.send(b"\xff" * 300)
    queue.receive()
    status, out, _ = run(*named)
    assert status == 1
    assert "1 error" in out


def test_a_group_without_a_title_is_printed_too(run, monkeypatch):
    finding = doctor.Finding("error", "of a test", "planted", "something", "is wrong")
    monkeypatch.setattr(doctor, "examine", lambda scope, snapshot: [finding])
    status, out, _ = run()
    assert status == 1
    assert "of a test\n" in out
    assert "something: is wrong" in out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--batch", "513"], "at most 512"),
        (["--accepted", "7"], "at most 6"),
        (["--columns", "22"], "at most 21"),
        (["--path", "/nonexistent"], "no such directory"),
        (["--queue-id", "x"], "'x'"),
        (["--yes"], "--remove"),
        (["--channel", "all"], "all"),
    ],
)
def test_wrong_usage(run, arguments, why):
    status, _, err = run(*arguments)
    assert status == 2
    assert why in err


def test_json(run, queue):
    status, out, _ = run("--json", "--queue-id", f"key:{queue.key:#x}")
    document = json.loads(out)
    assert list(document) == ["schema", "version", "exit_status", "worst", "limits", "removed", "findings"]
    assert (document["schema"], document["exit_status"], status) == (1, 0, 0)
    fields = {"severity", "group", "code", "subject", "seen", "remedy", "msqid", "data"}
    assert all(set(finding) == fields for finding in document["findings"])
    assert {finding["severity"] for finding in document["findings"]} <= set(doctor.SEVERITIES)
    assert any(finding["msqid"] == queue.id for finding in document["findings"])


def test_piped_output_is_one_line_a_finding(queue):
    done = subprocess.run([*PROGRAM, "--queue-id", f"key:{queue.key:#x}"], capture_output=True, text=True)
    (line,) = [line for line in done.stdout.splitlines() if f"queue {queue.id} " in line]
    assert "empty" in line
    assert line.endswith("receiver: nobody yet")
    assert "\x1b" not in done.stdout


def asked(answers, *arguments, columns=100, before_answer=lambda: None):
    """The command in a terminal, where a person answers."""
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    with at_terminal("doctor", *arguments, env=environment) as (ours, status):
        seen, given = b"", 0
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            seen += part
            if given < len(answers) and seen.count(b"[y/N]") > given:
                before_answer()
                os.write(ours, answers[given].encode())
                given += 1
        ended = status()
    return seen.decode(), ended


def test_a_leftover_is_removed_after_yes(queue):
    dead_user(queue.key)
    seen, status = asked(["y\n"], "--remove", "--queue-id", f"key:{queue.key:#x}")
    assert "Remove it?" in seen
    assert not exists(queue)
    assert status == 0


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04"])
def test_a_leftover_stays_after_anything_else(queue, answer):
    dead_user(queue.key)
    asked([answer], "--remove", "--queue-id", f"key:{queue.key:#x}")
    assert exists(queue)


def test_a_leftover_that_is_used_before_the_answer_stays(queue):
    dead_user(queue.key)
    seen, _ = asked(
        ["y\n"],
        "--remove",
        "--queue-id",
        f"key:{queue.key:#x}",
        before_answer=lambda: queue.send(bytes(8)),
    )
    assert exists(queue)
    assert "kept, it was used in the meantime" in seen


def test_a_reader_that_begins_to_wait_before_the_answer_keeps_it(queue, live_user):
    dead_user(queue.key)
    (left,) = doctor.leftovers(doctor.take(scope_of(queue)))
    live_user("fp.Receiver('plain', key=int(sys.argv[1])).receive()", queue.key)
    until(lambda: examined(queue)["queue"].data["waiting"])
    assert doctor.remove_leftover(left) == "a process waits in it now"
    assert exists(queue)


def test_a_queue_that_somebody_else_removes(queue):
    dead_user(queue.key)
    (left,) = doctor.leftovers(doctor.take(scope_of(queue)))
    queue.remove()
    assert doctor.remove_leftover(left) == "it is gone already"


def test_remove_without_asking(run, queue_keys):
    kept, gone = (sysv_ipc.MessageQueue(queue_keys(), sysv_ipc.IPC_CREX) for _ in range(2))
    dead_user(gone.key)
    dead_user(kept.key)
    kept.send(bytes(8))
    named = ("--queue-id", f"key:{kept.key:#x}", "--queue-id", f"key:{gone.key:#x}")
    status, out, err = run("--remove", "--yes", "--json", *named)
    assert status == 0
    document = json.loads(out)
    assert document["removed"] == [gone.id]
    assert not [finding for finding in document["findings"] if finding["msqid"] == gone.id]
    assert f"queue {gone.id}" in err
    assert exists(kept)
    assert not exists(gone)
    assert "No queue was left" in run("--remove", "--yes", *named[:2])[2]


def test_a_queue_that_only_one_side_used_is_not_removed_unasked(run, queue):
    dead_user(queue.key, "q.send(bytes(8))")
    _, _, err = run("--remove", "--yes", "--queue-id", f"key:{queue.key:#x}")
    assert "only one side ever used it" in err
    assert exists(queue)
    asked(["yes\n"], "--remove", "--queue-id", f"key:{queue.key:#x}")
    assert not exists(queue)


def test_a_queue_open_to_others_is_not_removed_unasked_without_root(run, queue):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    dead_user(queue.key)
    queue.uid, queue.mode = 65534, 0o666
    run("--help")  # imports what the other user may not be able to read
    (left,) = doctor.leftovers(doctor.take(scope_of(queue)))
    assert left.doubt is None
    os.seteuid(65534)
    try:
        assert "only root sees" in left.doubt
        _, _, err = run("--remove", "--yes", "--queue-id", f"msqid:{queue.id}")
    finally:
        os.seteuid(0)
    assert "kept, other users may use it" in err
    assert exists(queue)


def test_unknown_queues_are_never_removed(default_limits, run):
    foreign = sysv_ipc.MessageQueue(0x1234567, sysv_ipc.IPC_CREX)
    dead_user(foreign.key)
    run("--remove", "--yes")
    assert exists(foreign)


def test_remove_refuses_without_a_terminal(queue):
    dead_user(queue.key)
    done = subprocess.run([*PROGRAM, "--remove"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert exists(queue)


@pytest.mark.parametrize("columns", [40, 100])
def test_a_narrow_terminal_loses_nothing(queue, columns):
    queue.send(b"\xff" * 300)
    seen, status = asked([], "--queue-id", f"key:{queue.key:#x}", columns=columns)
    assert status == 1
    assert "error" in seen
    assert "is valid under none" in " ".join(seen.split())
    assert "Traceback" not in seen


def test_control_characters_of_process_names_are_not_printed(queue, live_user):
    process = live_user(
        "open('/proc/self/comm', 'w').write('\\x1b[31mred')\n"
        "sysv_ipc.MessageQueue(int(sys.argv[1])).send(bytes(8))",
        queue.key,
    )
    until(lambda: queue.last_send_pid == process.pid)
    done = subprocess.run([*PROGRAM, "--queue-id", f"key:{queue.key:#x}"], capture_output=True, text=True)
    assert "?[31mred" in done.stdout
    assert "\x1b" not in done.stdout


def test_hundreds_of_queues_stay_quick(default_limits, run):
    for n in range(300):
        queues.open_queue(queues.locate("topk", 9000 + n))
        queues.open_queue(0x1234000 + n)
    begun = time.monotonic()
    status, out, _ = run()
    assert time.monotonic() - begun < PATIENCE
    assert status == 0
    assert "300 queues of unknown programs" in out
    assert out.count("/dev/shm, key") == 300
