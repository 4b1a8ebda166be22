"""Streams as a client reads them from a socket, with the lane and without: the same bytes."""

import importlib.util
import json

import pytest

from tests.lib.real_tree import LIB, each_tree, run

pytestmark = pytest.mark.fastdeploy

REPLAY = LIB / "chunk_replay"
each_server = pytest.mark.parametrize("protocol", ["h11", "httptools"])


def told_by(tree, folder, program, *arguments, **variables):
    if arguments[0] == "httptools" and importlib.util.find_spec("httptools") is None:
        pytest.skip("httptools is not installed; FastDeploy does not require it")
    told, said = run(
        tree, str(REPLAY / program), *arguments, folder=folder, shim=False, FD_PLUGINS="fd_postproc",
        FD_POSTPROC_LANE="1", **variables,
    )  # fmt: skip
    if "other" in told:
        pytest.skip(told["other"])
    return told, said


@each_tree
@each_server
@pytest.mark.nightly
def test_every_recorded_stream_has_the_same_bytes_on_the_wire(tree, protocol, tmp_path):
    told, _ = told_by(tree, tmp_path, "over_sockets.py", protocol)
    assert told["wrong"] == {}
    assert told["played"] > 180
    assert told["lane"] > 700
    assert told["steady"] > 300
    assert told["behind"] == 0
    assert not [reason for reason in told["left"] if reason.startswith("a stream's chunks stay")]


@each_tree
@pytest.mark.nightly
@pytest.mark.parametrize("planted", ["a_framing", "a_count", "an_order", "a_steady_text"])
def test_a_planted_bug_is_seen(tree, planted, tmp_path):
    told, _ = told_by(
        tree, tmp_path, "over_sockets.py", "h11", f"tests.lib.chunk_replay.lane_plants:{planted}"
    )
    assert told["wrong"] or told["lane"] == 0, json.dumps(told)


@each_tree
@pytest.mark.nightly
def test_tokens_that_are_counted_elsewhere_are_seen(tree, tmp_path):
    plant = "tests.lib.chunk_replay.lane_plants:a_steady_count"
    told, _ = told_by(tree, tmp_path, "bad_connections.py", "h11", plant)
    assert told["steady"] > 1000
    assert told["wrong"]


@each_tree
@pytest.mark.nightly
@pytest.mark.parametrize("interval", ["3,10000", "64,1"])
def test_chunks_at_intervals_say_the_same(tree, interval, tmp_path):
    told, _ = told_by(tree, tmp_path, "over_sockets.py", "h11", FD_POSTPROC_STREAM_INTERVAL=interval)
    assert told["wrong"] == {}
    assert told["played"] > 180
    assert told["behind"] == 0


@each_tree
@pytest.mark.nightly
def test_a_template_that_is_wrong_is_not_used(tree, tmp_path):
    told, _ = told_by(
        tree, tmp_path, "over_sockets.py", "h11", "tests.lib.chunk_replay.lane_plants:a_template"
    )
    assert told["wrong"] == {}
    assert told["steady"] == 0


@each_tree
@each_server
@pytest.mark.nightly
def test_connections_that_end_stall_or_are_used_again(tree, protocol, tmp_path):
    told, _ = told_by(tree, tmp_path, "bad_connections.py", protocol)
    assert told["wrong"] == {}
    assert told["behind"] == {}
    assert told["steady"] > 1000
    assert told["steady behind"] == 0
