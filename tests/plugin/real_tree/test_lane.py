"""Streams as a client reads them from a socket, with the lane and without: the same bytes."""

import importlib.util
import json

import pytest

from fd_postproc.fastdeploy.api import streaming_response
from tests.lib.real_tree import LIB, check, each_tree, run

pytestmark = pytest.mark.fastdeploy

UTILS = "fastdeploy/entrypoints/openai/utils.py"
REPLAY = LIB / "chunk_replay"
each_server = pytest.mark.parametrize("protocol", ["h11", "httptools"])


def told_by(tree, folder, program, *arguments, **variables):
    if arguments[0] == "httptools" and importlib.util.find_spec("httptools") is None:
        pytest.skip("httptools is not installed; FastDeploy does not require it")
    if program != "over_sockets.py" or len(arguments) > 1 or variables:
        check(tree)
        if b"_dispatch_batch_responses" not in (tree / UTILS).read_bytes():
            pytest.skip("results come one by one here, and the lane stands aside")
    told, _ = run(
        tree, str(REPLAY / program), *arguments, folder=folder, shim=False, FD_PLUGINS="fd_postproc",
        FD_POSTPROC_LANE="1", **variables,
    )  # fmt: skip
    return told


@each_tree
@each_server
@pytest.mark.nightly
def test_every_recorded_stream_has_the_same_bytes_on_the_wire(tree, protocol, tmp_path):
    told = told_by(tree, tmp_path, "over_sockets.py", protocol)
    assert told["wrong"] == {}
    if not told["in batches"]:
        assert told["left"] == {f"{streaming_response.STAYS}: results come another way": 1}
        assert told["chunks"] > 4
        return
    assert told["played"] > 180
    assert told["as recorded"] > 100
    assert told["lane"] > 700
    assert told["steady"] > 300
    assert told["behind"] == 0
    assert not [reason for reason in told["left"] if reason.startswith(streaming_response.STAYS)]


@each_tree
@pytest.mark.nightly
@pytest.mark.parametrize("planted", ["a_framing", "a_count", "an_order", "a_steady_text"])
def test_a_planted_bug_is_seen(tree, planted, tmp_path):
    told = told_by(tree, tmp_path, "over_sockets.py", "h11", f"tests.lib.chunk_replay.lane_plants:{planted}")
    assert told["wrong"] or told["lane"] == 0, json.dumps(told)


@each_tree
@pytest.mark.nightly
def test_tokens_that_are_counted_elsewhere_are_seen(tree, tmp_path):
    plant = "tests.lib.chunk_replay.lane_plants:a_steady_count"
    told = told_by(tree, tmp_path, "bad_connections.py", "h11", plant)
    assert told["steady"] > 1000
    assert told["wrong"]


@each_tree
@pytest.mark.nightly
@pytest.mark.parametrize("interval", ["3,10000", "64,1"])
def test_chunks_at_intervals_say_the_same(tree, interval, tmp_path):
    told = told_by(tree, tmp_path, "over_sockets.py", "h11", FD_POSTPROC_STREAM_INTERVAL=interval)
    assert told["wrong"] == {}
    assert told["played"] > 180
    assert told["behind"] == 0


@each_tree
@pytest.mark.nightly
def test_a_template_that_is_wrong_is_not_used(tree, tmp_path):
    told = told_by(tree, tmp_path, "over_sockets.py", "h11", "tests.lib.chunk_replay.lane_plants:a_template")
    assert told["wrong"] == {}
    assert told["steady"] == 0


@each_tree
@each_server
@pytest.mark.nightly
def test_connections_that_end_stall_or_are_used_again(tree, protocol, tmp_path):
    told = told_by(tree, tmp_path, "bad_connections.py", protocol)
    assert told["wrong"] == {}
    assert told["behind"] == {}
    assert told["steady"] > 1000
    assert told["steady behind"] == 0


@each_tree
@each_server
@pytest.mark.nightly
def test_workers_that_are_replaced_and_ended_end_their_streams(tree, protocol, tmp_path):
    told = told_by(tree, tmp_path, "reloads.py", protocol)
    assert told["wrong"] == []
    assert told["answers"] == 40
    assert told["status"] == told["off"] == 0
    assert told["steady"] > 20_000


@each_tree
@pytest.mark.nightly
def test_many_who_hang_up_leave_nothing_behind(tree, tmp_path):
    """By hand: bad_connections.py with disconnects=100000."""
    told = told_by(tree, tmp_path, "bad_connections.py", "httptools", "disconnects=5000")
    assert told["wrong"] == told["behind"] == {}
    assert told["steady"] > 75_000
    assert told["steady behind"] == 0


@each_tree
@pytest.mark.nightly
@pytest.mark.resident_memory
def test_memory_stays_where_it_is_over_many_requests(tree, tmp_path):
    """By hand: bad_connections.py with requests=50000."""
    told = told_by(tree, tmp_path, "bad_connections.py", "httptools", "requests=5000")
    assert told["left behind"] == []
    assert told["steady"] == 25_000
    assert told["memory"][-1] - told["memory"][3] < 3_000 * 1024  # a KiB kept of each request is more
