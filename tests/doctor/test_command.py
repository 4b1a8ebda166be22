"""The command ``fd-postproc doctor``: exit status, JSON, what it prints."""

import json
import os

from fd_postproc import doctor, queues
from fd_postproc.doctor import Finding
from tests.lib.commands import all_from, at_terminal
from tests.lib.doctoring import dead_user
from tests.lib.rows import each
from tests.lib.waiting import until


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


@each("severity, status, strict", [("info", 0, 0), ("warning", 0, 1), ("error", 1, 1)])
def test_strict_is_about_warnings(severity, status, strict, run, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda *_: [doctor.Finding(severity, "queues", "x", "x", "x")])
    assert (run()[0], run("--strict")[0]) == (status, strict)


def test_json(run, queue):
    status, out, _ = run("--json", "--queue-id", f"key:{queue.key:#x}")
    document = json.loads(out)
    assert list(document) == ["schema", "version", "exit_status", "worst", "limits", "findings"]
    assert (document["schema"], document["exit_status"], status) == (1, 0, 0)
    fields = {"severity", "group", "code", "subject", "seen", "remedy", "msqid", "data"}
    assert all(set(finding) == fields for finding in document["findings"])
    assert {finding["severity"] for finding in document["findings"]} <= set(doctor.SEVERITIES)
    assert any(finding["msqid"] == queue.id for finding in document["findings"])


def test_a_report_replaces_no_file(run, queue, tmp_path):
    path = tmp_path / "report.json"
    assert run("--report", path)[0] in (0, 1)
    text = path.read_text()
    assert "schema" in json.loads(text)
    status, _, err = run("--report", path)
    assert (status, str(path) in err, path.read_text()) == (1, True, text)
    assert json.loads(run("--report", "-")[1])["schema"] == json.loads(text)["schema"]


@each("columns", ["40", "0"])
def test_a_narrow_terminal_loses_nothing(queue, run, monkeypatch, columns):
    queue.send(b"\xff" * 300)
    monkeypatch.setenv("COLUMNS", columns)
    assert "under none" in run("--queue-id", f"key:{queue.key:#x}")[1]
    environment = {**os.environ, "TERM": "xterm"}
    named = ("--queue-id", f"key:{queue.key:#x}")
    with at_terminal("doctor", *named, env=environment) as (leader, status):
        seen = all_from(leader).decode()
        assert status() == 1
    assert "error" in seen
    assert "fd-postproc: comparing FastDeploy's code with the known" in seen  # and nothing where nobody looks
    assert "is valid under none" in " ".join(seen.split())
    assert "Traceback" not in seen


def test_control_characters_of_process_names_are_not_printed(run, queue, live_user):
    name = "open('/proc/self/comm', 'w').write('\\x1b[31mred')"
    process = live_user(queue.key, f"{name}\nq.send(bytes(8))")
    until(lambda: queue.last_send_pid == process.pid)
    _, out, _ = run("--queue-id", f"key:{queue.key:#x}")
    assert "?[31mred" in out
    assert "\x1b" not in out


def test_nor_are_those_of_paths_and_variables_which_a_remedy_repeats(run, monkeypatch):
    found = Finding("info", "environment", "code", "\x1b[1msubject", "\x1b[2mseen", ("\x1b[3mremedy",))
    monkeypatch.setattr(doctor, "examine", lambda *_: [found])
    _, out, _ = run()
    assert ("?[1msubject: ?[2mseen" in out, "-> ?[3mremedy" in out, "\x1b" in out) == (True, True, False)


def test_hundreds_of_queues(default_limits, run):
    for n in range(100):
        queues.open_queue(queues.locate("topk", 9000 + n))
        queues.open_queue(0x1234000 + n)
    status, out, _ = run()
    assert status == 0
    assert "100 queues of unknown programs" in out
    assert out.count("/dev/shm, key") == 100
