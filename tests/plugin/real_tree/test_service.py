"""FastDeploy's own server on a CPU, with the plug-in off and on, asked by an OpenAI client.

``FD_POSTPROC_FASTDEPLOY`` names a FastDeploy source tree, or several, separated by colons: the first is
taken.  Its requirements have to be installed beside fd_postproc (docs/development.md).
"""

import contextlib

import pytest

from tests.lib.real_tree import need_service
from tests.lib.service_tool import TREES, tool

pytestmark = pytest.mark.fastdeploy

READY = 400  # seconds; a service needs 25 on an idle machine
CHANNELS = ["plain", "topk", "spec", "spec_topk", "spec_topk-draft"]


@pytest.fixture(autouse=True)
def possible():
    need_service()


@contextlib.contextmanager
def running(folder, channel, over_zmq=False, multimodal=False):
    """FastDeploy's own service and one with the plug-in, side by side in one IPC namespace.

    `over_zmq`: that one's steps come through FastDeploy's ZeroMQ socket.
    `multimodal`: both serve an ERNIE-4.5-VL.
    """
    channel, _, draft = channel.partition("-")
    with contextlib.ExitStack() as stack:
        namespace = stack.enter_context(tool().namespace.Namespace(tool().namespace.RAISED))
        services = [
            stack.enter_context(
                tool().server.Service(
                    TREES[0], folder / name, plug_in=name == "on", channel=channel, draft=bool(draft),
                    namespace=namespace, requests=32, multimodal=multimodal,
                    environment={
                        **tool().server.UNMENDED,
                        "FD_USE_GET_SAVE_OUTPUT_V1": str(int(over_zmq and name == "on")),
                    },
                )
            )
            for name in ("off", "on")
        ]  # fmt: skip
        for service in services:
            service.wait(READY)
        yield services
        assert "fd_postproc: engine side active" in services[1].log()
        assert "fd_postproc: worker side active" in services[1].log()
        assert "fd_postproc:" not in services[0].log()


def answers(services, wanted, side_by_side):
    """What both say, each as a dictionary by the case's name; nothing hangs or is left over."""
    found = [tool().cases.ask(service, wanted, side_by_side=side_by_side) for service in services]
    for service, got in zip(services, found, strict=True):
        assert [name for name, parts in got.items() if parts[-1:] == ["hangs"]] == []
        assert tool().cases.quiet(service), "requests of clients that left are still running"
    return found


def test_answers_are_equal(tmp_path):
    """Chunk by chunk, speculative tokens with logprobs, a case at a time."""
    wanted = tool().cases.cases("spec_topk")
    with running(tmp_path, "spec_topk") as services:
        off, on = answers(services, wanted, 1)
        assert tool().cases.differences(off, on, crowd=False) == []
        # What is compared is there: chunks, logprobs, ends of both kinds, refusals, clients that left.
        assert len(off["chat-prompt0-stream"]) > 4
        first = off["chat-logprobs20"][0]["choices"][0]["logprobs"]["content"][0]
        assert len(first["top_logprobs"]) == 20
        ends = {off[name][0]["choices"][0]["finish_reason"] for name in ("chat-length", "chat-prompt0")}
        assert ends == {"length", "stop"}
        assert off["chat-error-logprobs"][0]["status"] >= 400
        assert off["chat-client-leaves"][-1] == "left"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("channel", "over_zmq", "multimodal"),
    [
        *((channel, False, False) for channel in CHANNELS),
        *((channel, True, False) for channel in CHANNELS if channel.startswith("spec")),
        ("spec_topk", False, True),
    ],
)
def test_answers_are_equal_on_each_channel(tmp_path, channel, over_zmq, multimodal):
    """Over ZeroMQ as those of a queue, which FastDeploy itself does not answer there; of ERNIE-4.5-VL, too.

    Its processor of prompts and tokens is another class, with the same seams.
    """
    if multimodal:
        pytest.importorskip("moviepy", reason="FastDeploy's processor of ERNIE-4.5-VL imports it")
    name, _, draft = channel.partition("-")
    wanted = tool().cases.cases(name, draft=bool(draft))
    with running(tmp_path, channel, over_zmq, multimodal) as services:
        for side_by_side in (8,) if over_zmq or multimodal else (1, 8):
            off, on = answers(services, wanted, side_by_side)
            assert tool().cases.differences(off, on, crowd=side_by_side > 1) == []
        assert not over_zmq or "frames over ZeroMQ on channel" in services[1].log()
        assert not multimodal or tool().cases.seams_left(services[1].metrics()) == []


@pytest.mark.nightly
def test_the_canary_finds_no_difference(tmp_path):
    with running(tmp_path, "topk") as services:
        found, served = tool().canary.compare(*(service.url for service in services))
        assert found == []
        assert len(served) > 40


@pytest.mark.nightly
def test_nothing_grows_in_ten_minutes(tmp_path):
    rows = tool().soak.run(TREES[0], tmp_path, hours=1 / 6, rest=1.0)
    assert not tool().soak.failed(rows), tool().soak.table(rows)
    for side in ("engine: ", "API server: ", "worker: "):
        assert [name for name in rows[-3]["entries"] if name.startswith(side)], side


@pytest.mark.nightly
@pytest.mark.parametrize("channel", ["topk", "spec_topk"])
def test_default_limits_are_enough(tmp_path, channel):
    """FastDeploy's own service answers nothing there."""
    faults, tree = tool().faults, TREES[0]
    right = faults.reference(tree, tmp_path / "reference", channel)
    stock = faults.default_limits(tree, tmp_path / "off", channel, plug_in=False)
    assert {parts[-1] for parts in stock.values()} == {"hangs"}
    ours = faults.default_limits(tree, tmp_path / "on", channel, plug_in=True)
    assert tool().cases.differences(right, ours, crowd=True) == []


@pytest.mark.nightly
def test_logprobs_are_enabled_and_nobody_asks_for_any(tmp_path):
    """FastDeploy's worker sends plain messages then, of which its own engine makes nothing."""
    faults, tree = tool().faults, TREES[0]
    right = faults.nobody_asks(tree, tmp_path / "reference", plug_in=False, plain=False)
    stock = faults.nobody_asks(tree, tmp_path / "off", plug_in=False)
    assert "hangs" in {parts[-1] for parts in stock.values()}
    ours = faults.nobody_asks(tree, tmp_path / "on", plug_in=True)
    assert tool().cases.differences(right, ours, crowd=True) == []


@pytest.mark.nightly
@pytest.mark.parametrize("whose", ["worker", "engine"])
def test_a_restart_after_a_death_answers_as_ever(tmp_path, whose):
    """Streams end, and what the dead left in the queue reaches nobody."""
    faults, tree = tool().faults, TREES[0]
    right = faults.reference(tree, tmp_path / "reference", "spec_topk")
    got = faults.death(tree, tmp_path / whose, "spec_topk", whose=whose, plug_in=True)
    assert tool().cases.differences(right, got["answers"], crowd=True) == []
    if whose == "engine":
        assert got["stale"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("environment", "restored"),
    [
        ({"ZMQ_SEND_BATCH_DATA": "1"}, False),
        ({"ZMQ_SEND_BATCH_DATA": "0"}, False),
        ({"FD_SERVICE_NAMES_ASKER": "1"}, False),
        ({}, True),
    ],
)
def test_clients_of_an_engine_that_is_gone_get_an_error(tmp_path, environment, restored):
    """Also those that are not streamed; an engine that was stopped for 10 s, or restored, was not gone."""
    got = tool().faults.engine_gone(
        TREES[0], tmp_path, environment=environment, stopped=10.0, restored=restored
    )
    assert not got["early"]
    for name, end in {**got["waiting"], **got["new"]}.items():
        assert "is gone" in str(end), name
        assert ("status" in end) is not (name in got["waiting"] and name.endswith("True")), name
    assert got["health"] == 404


@pytest.mark.nightly
def test_a_worker_at_work_is_busy_and_one_asleep_is_silent(tmp_path):
    got = tool().faults.quiet_worker(TREES[0], tmp_path)
    assert got["works 6 s"] == got["works 20 s"] == ['fd_postproc_busy{side="worker"}'], got
    assert got["sleeps"] == ['fd_postproc_unhealthy{reason="silent"}'], got
    assert got["idle"] < 0.25
    assert 'fd_postproc_unhealthy{reason="worker"}' in got["killed"] or "(worker)" in str(got["log"]), got


@pytest.mark.nightly
def test_a_pause_or_a_busy_machine_ends_nothing(tmp_path):
    for what, got in tool().pauses.run(TREES[0], tmp_path, plug_in=True):
        assert [got[key] for key in ("ended", "hang", "differences", "quiet")] == [0, 0, [], True], what
        assert got["alarms"][1] == [], what


@pytest.mark.nightly
def test_no_client_waits_for_ever(tmp_path):
    for what, got in tool().reading.run(TREES[0], tmp_path, plug_in=True):
        assert [got["hang"], got.get("differences", [])] == [0, []], what
        if what == "SystemExit in the scheduling thread":
            assert any('reason="thread"' in alarm for alarm in got["alarms"]), got
            assert all("error" in end for end in got["next"].values()), got


@pytest.mark.nightly
def test_two_services_do_not_disturb_each_other(tmp_path):
    assert tool().faults.neighbours(TREES[0], tmp_path, "spec_topk") == []
