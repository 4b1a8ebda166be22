"""The canary (`harness.service.canary`) on two servers that play recorded answers of FastDeploy's."""

import contextlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.lib.chunk_replay.cases import cases
from tests.lib.rows import each
from tests.lib.service_tool import not_installed, tool

EDITS = {
    "text": (r'"(content|text)":"[^"]+"', r'"\1":"another"'),
    "token_ids": (r'"completion_token_ids":\[\d+', '"completion_token_ids":[1'),
    "logprobs": (r'"logprob":-[\d.]+|"token_logprobs":\[-[\d.]+', '"logprob":-0.125'),
    "usage": (r'"completion_tokens":\d+', '"completion_tokens":9999'),
    "finish_reason": (r'"finish_reason":"\w+"', '"finish_reason":"abort"'),
}
"""What one of two servers says otherwise."""


def recorded():
    """For each path, streamed or not, the answer that has most of these parts: its type and its text."""
    found = {}
    for case in cases().values():
        text = "".join(case["output"]["chunks"])
        parts = sum(bool(re.search(pattern, text)) for pattern, _ in EDITS.values())
        key = case["path"], bool(json.loads(case["request_body"]).get("stream"))
        found.setdefault(key, []).append((parts, case["output"]["content_type"], text))
    return {key: max(answers)[1:] for key, answers in found.items()}


class Server(ThreadingHTTPServer):
    """Plays recorded answers, in which `edit` changes a text; refuses all if `status` is another one."""

    def __init__(self, answers, edit=lambda text: text, status=200):
        super().__init__(("127.0.0.1", 0), Answers)
        self.answers, self.edit, self.status = answers, edit, status


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.write(200, "application/json", "{}")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind, text = self.server.answers[self.path, bool(asked.get("stream"))]
        assert (asked["temperature"], asked["seed"], asked["return_token_ids"]) == (0, 1, True)
        self.write(self.server.status, kind, self.server.edit(text))

    def write(self, status, kind, text):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def canary(monkeypatch):
    """A function that runs the canary's command on two servers: its exit status."""
    if reason := not_installed():
        pytest.skip(reason)
    module = tool().canary
    few = [
        case
        for case in module.requests()
        if "logprobs5" in case.name or "n-ids" in case.name or "t-ids" in case.name
    ]
    monkeypatch.setattr(module, "requests", lambda: few)

    def run(*servers):
        with contextlib.ExitStack() as stack:
            for server in servers:
                stack.enter_context(server)
                threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
                stack.callback(server.shutdown)
            urls = [f"http://127.0.0.1:{server.server_port}" for server in servers]
            monkeypatch.setattr(sys, "argv", ["canary", *urls])
            return module.main()

    return run


@each("part, edit", EDITS.items())
def test_a_difference_is_named(part, edit, canary, capsys):
    answers = recorded()
    assert len(answers) == 4
    assert canary(Server(answers), Server(answers, lambda text: re.sub(*edit, text))) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == f"8 requests, 8 of them served: {len(lines)} differ"
    assert len(lines) >= 6  # no recorded stream of completions has all parts
    for line in lines:
        where = line.split(": ")[1]
        assert part in where or (part == "text" and "content" in where), line


def test_equal_answers_are_no_difference(canary, capsys):
    answers = recorded()
    assert canary(Server(answers), Server(answers)) == 0
    assert capsys.readouterr().out == "8 requests, 8 of them served: 0 differ\n"


def test_what_refuses_all_is_not_equal(canary, capsys):
    answers = recorded()
    assert canary(Server(answers, status=401), Server(answers, status=401)) == 2
    assert "nothing was compared" in capsys.readouterr().err
