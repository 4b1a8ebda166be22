"""The command line at addresses in the place of queues."""

import json
import subprocess
import sys

import pytest
import zmq

import fd_postproc as fp
from fd_postproc.recording import Recording, RecordingWriter
from tests.lib.children import FD_POSTPROC
from tests.lib.random_steps import random_step
from tests.lib.roads import Road
from tests.lib.sending import in_thread, same
from tests.lib.waiting import PATIENCE


@pytest.fixture(params=["ipc", "tcp"])
def road(request, queue_keys):
    road = Road(request.param, queue_keys)
    yield road
    road.close()


def command(*arguments):
    done = subprocess.run(
        [FD_POSTPROC, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE
    )
    return done.returncode, done.stdout, done.stderr


def test_record_takes_what_senders_send(road, tmp_path):
    road.receiver().close()
    steps = [random_step("topk", seed, batch=4, cols=3) for seed in range(5)]
    sender = road.sender("topk", linger=20)
    for step in steps:
        sender.send(step)
    address = road.end["address"]
    status, _, err = command("record", address, tmp_path / "it.fdrec", "--count", 5, "--channel", "topk")
    assert (status, f"Recording {address} into" in err) == (0, True)
    with Recording(tmp_path / "it.fdrec") as recording:
        found = list(recording)
    assert [message.mtype for message in found] == [2] * 5
    for message, step in zip(found, steps, strict=True):
        assert same(fp.decode(message.payload, "topk", mtype=2), step)
    sender.close()
    status, out, _ = command("inspect", tmp_path / "it.fdrec")
    assert status == 0
    assert "topk" in out


def test_replay_sends_frames_as_they_are_and_makes_frames_of_others(road, tmp_path):
    steps = [random_step("spec", seed, batch=4) for seed in range(3)]
    with RecordingWriter(tmp_path / "it.fdrec", "spec") as recording:
        recording.write(fp.encode(steps[0]), 1)
        recording.write(fp.encode(steps[1], "compact"), 2)
        recording.write(fp.encode(steps[2]), 1)
    receiver = road.receiver("spec")
    arguments = "replay", tmp_path / "it.fdrec", receiver.address, "--full-speed"
    with in_thread(command, *arguments) as outcome:
        assert all(same(receiver.receive(30), step) for step in steps)
    assert outcome[0][0] == 0
    assert f"3 of 3 messages were sent to {receiver.address}" in outcome[0][2]


def test_replay_checks_all_before_it_sends_one(road, tmp_path):
    with RecordingWriter(tmp_path / "it.fdrec", "spec") as recording:
        recording.write(fp.encode(random_step("spec", 1)), 1)
        recording.write(b"x" * 70, 1)
    receiver = road.receiver("spec")
    status, _, err = command("replay", tmp_path / "it.fdrec", receiver.address, "--full-speed")
    assert status == 1
    assert "message 1 cannot be made into a frame" in err
    assert receiver.receive(0.2) is None


def test_replay_tells_what_was_not_sent(road, tmp_path):
    road.receiver().close()
    with RecordingWriter(tmp_path / "it.fdrec", "spec") as recording:
        recording.write(fp.encode(random_step("spec", 1)), 1)
    address = road.end["address"]
    status, _, err = command("replay", tmp_path / "it.fdrec", address, "--full-speed", "--timeout", "0.2")
    assert status == 1
    assert f"1 of the last messages were not sent to {address} in time: no receiver" in err


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_demo(transport):
    status, out, _ = command("demo", "--transport", transport, "--repeat", 2)
    assert status == 0
    assert "every one arrived equal" in " ".join(out.split())
    assert "sysctl" not in out


def test_an_address_that_is_none():
    for arguments in ("record", "ipc://x", "y.fdrec"), ("replay", "y.fdrec", "tcp://*:5"):
        status, _, err = command(*arguments)
        assert status == 2
        assert "address" in err


def doctored(*addresses):
    flags = [word for address in addresses for word in ("--address", address)]
    _, out, _ = command("doctor", "--no-trial", "--json", *flags)
    return {
        finding["subject"]: (finding["code"], finding["severity"])
        for finding in json.loads(out)["findings"]
        if finding["group"] == "addresses"
    }


def test_doctor(road, tmp_path):
    address = road.receiver().address
    free = f"ipc://{tmp_path}/free"
    none = f"ipc://{tmp_path}/none/road"
    (tmp_path / "file").write_text("kept")
    file = f"ipc://{tmp_path}/file"
    found = doctored(address, free, none, file, "tcp://192.0.2.1:5570", "tcp://*:0", "tcp://127.0.0.1:0")
    assert found == {
        "pyzmq": ("pyzmq", "ok"),
        address: ("address-answers", "ok"),
        free: ("address-free", "ok"),
        none: ("address-unusable", "error"),
        file: ("address-unusable", "error"),
        "tcp://192.0.2.1:5570": ("address-unusable", "error"),
        "tcp://*:0": ("address-open", "warning"),
        "tcp://127.0.0.1:0": ("address-free", "ok"),
    }
    assert doctored() == {}


def test_doctor_without_pyzmq(monkeypatch):
    from fd_postproc import doctor
    from fd_postproc.transport import parse

    assert zmq
    monkeypatch.setitem(sys.modules, "zmq", None)
    first = doctor.check_addresses(doctor.Scope(addresses=(parse("tcp://127.0.0.1:9"),)))[0]
    assert (first.code, first.severity) == ("pyzmq-missing", "error")
    assert first.remedy == ("pip install 'fd_postproc[zmq]'",)
