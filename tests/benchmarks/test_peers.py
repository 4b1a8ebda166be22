"""The suite beside other engines, as far as it needs none of them: load, clock, load generator, tables."""

import asyncio
import json
import sys
import threading
from subprocess import PIPE, Popen

import pytest

from benchmarks.peers import clients, clock, environments, results, servers
from benchmarks.peers.load import Answer, Answers, Load, Model, WrongAnswer, check
from tests.lib.paths import ROOT
from tests.lib.rows import each

pytestmark = pytest.mark.framework


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Model(tmp_path_factory.mktemp("model"))


def answers_of(load, model, message):
    """What an engine has to answer, text and all."""
    right = [load.right(message, stream) for stream in range(load.streams)]
    return [answer._replace(text=model.text(answer.ids)) for answer in right]


def test_right_answers_pass(model):
    load = Load(3, 2, 20)
    sent = load.messages(model.usable)[:2]
    check(load, model, sent, [answers_of(load, model, one) for one in sent])
    numbers = Load(3, 2, None, texts=False)
    sent = numbers.messages(model.usable)[:1]
    check(numbers, model, sent, [[numbers.right(sent[0], stream) for stream in range(3)]])


@each(
    ("change", "what"),
    [
        (lambda one: one._replace(text=one.text + "!"), "text"),
        (lambda one: one._replace(text=""), "text"),
        (lambda one: one._replace(ids=one.ids[::-1]), "tokens"),
        (lambda one: one._replace(logprobs=one.logprobs[::-1]), "logprobs"),
        (lambda one: one._replace(logprobs=[row[:-1] for row in one.logprobs]), "logprobs"),
        (lambda one: one._replace(logprobs=None), "logprobs"),
    ],
)
def test_a_wrong_answer_is_not_timed(model, change, what):
    load = Load(2, 2, 5)
    sent = load.messages(model.usable)[:1]
    got = answers_of(load, model, sent[0])
    with pytest.raises(WrongAnswer, match=what):
        check(load, model, sent, [[got[0], change(got[1])]])


def test_no_token_is_twice_among_the_likeliest(model):
    """Behind the sampled token, which is the likeliest."""
    messages = Load(64, 2, 20).messages(model.usable)
    for ids in [message.ids for message in messages] + [Answers(model.usable).ids]:
        assert all(len({*row[1:]}) == 20 for row in ids.tolist())


def test_a_way_is_checked_and_timed(model):
    load = Load(4, 2, 0)
    way = clock.Contender(
        prepare=lambda message: message,
        begin=lambda: None,
        step=lambda message: answers_of(load, model, message),
        answers=lambda result: result,
    )
    told = clock.measure(way, load, model, passes=3)
    assert len(told["passes"]) == 3
    assert told["us"] == sorted(told["passes"])[1] > 0
    assert {*told["pauses"]} == {"in 1000 steps", "longest ms", "share"}
    wrong = way._replace(answers=lambda result: [Answer([1], "x", None)] * 4)
    with pytest.raises(WrongAnswer):
        clock.measure(wrong, load, model, passes=1)


class Server:
    """A server of streams, as an engine's: chunked, a chunk of two tokens at a time."""

    def __init__(self, order, spoiled=lambda chunk: chunk):
        self.order, self.spoiled = order, spoiled
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        begun = asyncio.run_coroutine_threadsafe(asyncio.start_server(self.serve, "127.0.0.1", 0), self.loop)
        self.server = begun.result()
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split()[0])
        asked = json.loads(await reader.readexactly(size))
        assert asked["stream"]
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for place in range(0, 4000, 2):
                choice = {"index": 0, "delta": {"content": "".join(self.order["texts"][place : place + 2])}}
                if asked.get("logprobs"):
                    rows = self.order["tops"][place : place + 2]
                    named = [
                        [dict(zip(("token", "logprob"), one, strict=True)) for one in row] for row in rows
                    ]
                    choice["logprobs"] = {"content": [{**row[0], "top_logprobs": row[1:]} for row in named]}
                line = b"data: %s\n\n" % json.dumps({"choices": [self.spoiled(choice)]}).encode()
                writer.write(b"%x\r\n%s\r\n" % (len(line), line))
                await writer.drain()
                await asyncio.sleep(0.002)
        except ConnectionError:
            pass
        writer.close()

    def close(self):
        self.loop.call_soon_threadsafe(self.server.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.01))
        self.loop.close()


def seen_by_clients(order):
    """What the load generator's process prints."""
    command = [sys.executable, "-m", "benchmarks.peers.clients"]
    with Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True) as process:
        print(json.dumps(order), file=process.stdin, flush=True)
        assert process.stdout.readline() == "begun\n"
        print("go", file=process.stdin, flush=True)
        threading.Event().wait(0.2)
        print("stop", file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())


@each("top", [None, 3])
def test_the_load_generator_counts_and_checks(model, top):
    order = servers.order_of(Load(3, 2, top), model, "", {})
    server = Server(order)
    try:
        seen = seen_by_clients(order | {"url": server.url})
    finally:
        server.close()
    assert seen["wrong"] == []
    assert seen["tokens"] > 6
    assert seen["bytes"] > seen["tokens"]
    assert len(seen["gaps"]) == seen["chunks"]
    assert abs(seen["tokens"] - 2 * seen["chunks"]) <= 6  # a chunk may be cut at each end
    row = servers.row(seen, {"API server": 0.5, "stand-in": 1.0, "resource_tracker": 9.0}, 100.0)
    assert row["us in all"] == pytest.approx(0.5e6 / seen["tokens"])
    assert row["tokens a second and core"] == pytest.approx(seen["tokens"] / 0.5)


def other_text(choice):
    return {**choice, "delta": {"content": choice["delta"]["content"].swapcase() + "?"}}


def other_score(choice):
    return json.loads(json.dumps(choice).replace("-0.25", "-0.26").replace("-0.3", "-0.31"))


@each(("spoiled", "what"), [(other_text, "text"), (other_score, "logprob")])
def test_the_load_generator_sees_a_wrong_answer(model, spoiled, what):
    order = servers.order_of(Load(1, 2, 3), model, "", {})
    server = Server(order, spoiled)
    try:
        seen = seen_by_clients(order | {"url": server.url})
    finally:
        server.close()
    assert what in seen["wrong"][0]


def test_http_chunks_are_taken_off():
    framed = b"5\r\nda\r\nt\r\n3\r\na: \r\n"
    assert clients.unframed(framed) == b"da\r\nta: "
    assert clients.unframed(framed + b"ff\r\nhalf") == b"da\r\nta: half"
    assert clients.unframed(framed + b"f") == b"da\r\nta: "


def test_results_are_kept_by_engine(tmp_path):
    file = tmp_path / "results.json"
    results.save("a", {"steps": [{"us": 1}, {"us": 2}], "versions": {"x": "1"}}, file)
    results.save("b", {"left out": "no wheel"}, file)
    results.save("a", {"steps": [{"us": 3}]}, file)
    assert results.load(file) == {
        "a": {"steps": [{"us": 3}], "versions": {"x": "1"}},
        "b": {"left out": "no wheel"},
    }
    assert "b: left out: no wheel" in results.versions(results.load(file))


@pytest.mark.nightly
def test_an_engine_that_cannot_be_installed_says_why(tmp_path, monkeypatch):
    wanted = tmp_path / "none.txt"
    wanted.write_text("./no-such-package-here\n")
    monkeypatch.setattr(environments, "requirements", lambda engine: wanted)
    with pytest.raises(environments.NotInstalled, match=r"no-such-package-here"):
        environments.make("none", tmp_path)
    assert environments.python_of("none", tmp_path).exists()  # and it is tried anew the next time
    with pytest.raises(environments.NotInstalled):
        environments.make("none", tmp_path)


@each("engine", environments.ENGINES)
def test_requirements_are_pinned(engine):
    lines = environments.requirements(engine).read_text().splitlines()
    named = [line for line in lines if line and line[0] not in "#-"]
    assert all("==" in line for line in named)
    assert named or any(line.startswith("-r") for line in lines)
