"""The programs in ``examples/`` run as their README says."""

import base64
import importlib.util
import json
import runpy
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import fd_postproc as fp
from fd_postproc import queues
from tests.lib.page_commands import as_a_user
from tests.lib.paths import ROOT
from tests.lib.waiting import PATIENCE, until

FOLDER = ROOT / "examples"
DOUBLE = ROOT / "tests" / "fastdeploy_double"


@pytest.fixture
def run(own_namespace, tmp_path):
    """A function that runs an example in an empty folder and gives what it prints."""
    if not own_namespace:
        pytest.skip("the examples use queue ids that others may use, too")

    def run(name, *arguments, **environment):
        done = subprocess.run(
            [sys.executable, FOLDER / name, *arguments],
            cwd=tmp_path,
            env={**as_a_user(), **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    yield run
    for queue in queues.list_queues():
        queues.remove_queue(queue.msqid)


def test_what_is_sent_is_printed(run):
    assert run("send_tensors.py", "8002", "2") == ["sent"]
    assert run("print_steps.py", "8002", "2") == [
        f"request {request}: {what}"
        for number in (0, 1)
        for request, what in [
            (0, f"token {100 + number}, logprob -0.50"),
            (0, f"token {200 + number}, logprob -0.50"),
            (1, f"token {300 + number}, logprob -0.50"),
            (2, "code -9"),
        ]
    ]


@pytest.mark.nightly
def test_functions_after_sampling_send_each_slot_its_tokens(run):
    assert run("after_sampling.py", "8002") == ["[[10], [20, 21], [30, 31]]", "[[7, 8]]"]


@pytest.mark.nightly
def test_the_largest_step_goes_between_two_processes(run):
    step = "<Step spec_topk compact target: 512 requests, 3072 tokens, 21 columns>"
    assert run("two_processes.py") == [f"{step} 66 fragments"]


@pytest.mark.nightly
def test_a_get_op_fills_its_tensors(run):
    assert run("get_op.py", "numpy") == [
        "tokens [[11, 7], [42, 5]]",
        "scores [[-0.1, -2.5], [-0.7, -0.9]]",
        "ranks [1, 1]",
    ]
    assert queues.list_queues() == []


@pytest.mark.nightly
def test_a_queue_is_recorded_and_read(run):
    run("send_tensors.py", "8002", "3")
    assert run("record_queue.py", "8002", "spec_topk", "night.fdrec") == [
        f"message {number}: 3 requests, 3 tokens, counts [2, 1, -9]" for number in range(3)
    ]


@pytest.mark.nightly
@pytest.mark.framework
def test_the_plug_in_is_loaded_where_it_is_named(run):
    """In the double of FastDeploy: of its loader and its class."""
    if importlib.util.find_spec("paddle") is None:
        pytest.skip("paddle is not installed")
    lines = run("which_processor.py", PYTHONPATH=f"{DOUBLE}:{ROOT}", PYTHONWARNINGS="ignore")
    assert lines == [
        "FD_PLUGINS=(none): fastdeploy.output.token_processor.TokenProcessor",
        "FD_PLUGINS=fd_postproc: fd_postproc.fastdeploy.engine.processor_class.TokenProcessor",
    ]


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # the example connects with as many at once


class Answers(BaseHTTPRequestHandler):
    """An API server, which gives each request the same answer."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        entries = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]
        choice = {"message": {"completion_token_ids": [5, 6]}, "logprobs": {"content": entries}}
        experts = base64.b64encode(bytes(8 * 24)).decode()
        body = json.dumps({"choices": [choice], "routed_experts": experts}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.mark.nightly
def test_rollouts_are_collected(run):
    with Server(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        first, second = run("collect_rollouts.py", f"http://127.0.0.1:{server.server_port}", "20")
        server.shutdown()
    assert first == "20 answers: 40 tokens, 40 log-probabilities, 480 experts"
    assert second.startswith("0.0 MB in ")


@pytest.fixture
def redis_server(tmp_path):
    """A private server at a Unix socket; its address."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server")
    redis = pytest.importorskip("redis")
    path = tmp_path / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", str(path), "--dir", str(tmp_path), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        until(path.exists)
        yield redis.Redis(unix_socket_path=str(path))
        server.terminate()


def test_steps_through_a_broker_survive_the_reader(run, redis_server):
    """What a killed reader had in hand comes to the next of its name; nothing is missing."""
    assert run("through_redis.py", f"unix://{redis_server.connection_pool.connection_kwargs['path']}") == [
        "[0]", "[1]", "[2]",
    ]  # fmt: skip
    module = runpy.run_path(str(FOLDER / "through_redis.py"))
    for k in range(100):
        module["send"](redis_server, fp.Step.from_arrays("plain", [1], [k]))
    first = module["receive"](redis_server, "reader")
    seen = [next(first).token_ids(0)[0] for _ in range(30)]
    first.close()  # in the middle of the thirtieth
    again = [step.token_ids(0)[0] for step in module["receive"](redis_server, "reader")]
    assert seen[:29] + again == list(range(100))
    redis_server.close()
