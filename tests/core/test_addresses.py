"""Addresses of a Sender and a Receiver: what is taken for one, who may use it, pyzmq, keys."""

import subprocess

import pytest

import fd_postproc as fp
from tests.lib.children import python

# ---- Addresses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("ipc://name", "absolute path"),
        ("ipc://@name", "no permission bits"),
        ("ipc:///" + "x" * 120, "107"),
        ("tcp://host", "tcp://host:port"),
        ("tcp://host:70000", "above 65535"),
        ("udp://host:1", "tcp://host:port"),
        ("inproc://x", "tcp://host:port"),
        ("", "tcp://host:port"),
        ("localhost:5570", "tcp://host:port"),
        ("TCP://127.0.0.1:5570", "tcp://host:port"),
        ("tcp://127.0.0.1: 5570", "tcp://host:port"),
        ("tcp://::1:5570", "tcp://host:port"),
        ("ipc://~/steps", "absolute path"),
        ("ipc:///tmp/a\0b", "characters that no path can have"),
        ("ipc:///tmp/\ud800", "characters that no path can have"),
    ],
)
def test_an_address_that_is_none(address, why):
    for end in fp.Sender, fp.Receiver:
        with pytest.raises(ValueError, match=why):
            end("plain", address=address)


def test_arguments_that_do_not_go_together():
    address = "tcp://127.0.0.1:9"
    for more in {"queue_id": 1}, {"key": 1}, {"path": "/dev/shm"}:
        with pytest.raises(ValueError, match="not both"):
            fp.Sender("plain", address=address, **more)
    with pytest.raises(TypeError, match="address must be a str"):
        fp.Receiver("plain", address=5)
    with pytest.raises(TypeError, match=r"curve must be a fd_postproc\.Curve"):
        fp.Receiver("plain", address=address, curve="x")
    with pytest.raises(ValueError, match="curve goes with an address"):
        fp.Receiver("plain", curve=5)
    for dialect in "packed", "legacy":
        with pytest.raises(ValueError, match="go compact frames"):
            fp.Sender("plain", address=address, dialect=dialect)
    for listening in "tcp://*:5570", "tcp://127.0.0.1:*", "tcp://127.0.0.1:0":
        with pytest.raises(ValueError, match="one to listen at"):
            fp.Sender("plain", address=listening)
    for hwm in 0, -1, 1 << 21:
        with pytest.raises(ValueError, match="hwm"):
            fp.Sender("plain", address=address, hwm=hwm)
    with pytest.raises(ValueError, match="linger"):
        fp.Sender("plain", address=address, linger=-1)
    with pytest.raises(TypeError, match="linger must be a number of seconds, not None"):
        fp.Sender("plain", address=address, linger=None)


def test_an_address_that_cannot_be_had(tmp_path):
    with pytest.raises(fp.QueueError, match="make its directory first"):
        fp.Receiver("plain", address=f"ipc://{tmp_path}/none/road")
    with pytest.raises(fp.QueueError, match=r"the host 'no-such-host\.invalid' cannot be found .*spelling"):
        fp.Receiver("plain", address="tcp://no-such-host.invalid:5570")
    with pytest.raises(fp.QueueError, match="no such address"):
        fp.Receiver("plain", address="tcp://192.0.2.1:5570")


def test_the_other_end_s_channel_is_named(address_road):
    receiver, sender = address_road.receiver("plain"), address_road.sender("topk")
    sender.send(fp.Step.from_arrays("topk", [1], [[1, 2]], [[-1.0, -2.0]], [1]))
    with pytest.raises(fp.MalformedMessage, match="it is of channel 'topk': give the Receiver and the Send"):
        receiver.receive(20)


def test_an_open_address_without_keys_is_told_of(caplog):
    fp.Receiver("plain", address="tcp://127.0.0.1:*").close()
    assert not caplog.records
    fp.Receiver("plain", address="tcp://0.0.0.0:*").close()
    assert "whoever reaches it can forge tokens" in caplog.text


def test_what_they_look_like(address_road):
    receiver, sender = address_road.receiver(), address_road.sender()
    where = receiver.address
    assert repr(receiver) == f"<Receiver plain: {where}, 0 received>"
    assert repr(sender) == f"<Sender plain compact: {where}, 0 sent>"
    assert (receiver.key, receiver.msqid, sender.key, sender.msqid) == (None, -1, None, -1)
    assert sender.address == where
    assert sender.limit == len(fp.encode(fp.Step.from_arrays("plain", [1] * 512, [1] * 512), "compact"))


# ---- pyzmq ----------------------------------------------------------------------------------------------


def test_without_an_address_nothing_of_it_is_loaded():
    code = """
import fd_postproc as fp
import sys
loaded = [name for name in sys.modules if name.startswith(("zmq", "fd_postproc.transport."))]
assert {name.rpartition(".")[2] for name in loaded} <= {"addresses", "curve"}, loaded
"""
    subprocess.run(python(code), check=True)


def test_without_pyzmq():
    code = """
import sys
sys.modules["zmq"] = None
import fd_postproc as fp
keys = {"curve": fp.Curve("0" * 40, "0" * 40)}
for end, more in (fp.Sender, {}), (fp.Sender, keys), (fp.Receiver, keys):
    try:
        end("plain", address="tcp://127.0.0.1:9", **more)
    except fp.QueueError as error:
        assert "pip install 'fd_postproc[zmq]'" in str(error), error
    else:
        raise AssertionError
"""
    done = subprocess.run(python(code), check=True, stderr=subprocess.PIPE, text=True)
    assert done.stderr == ""  # an end that could not be made goes without a word
