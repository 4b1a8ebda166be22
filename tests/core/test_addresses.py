"""Addresses of a Sender and a Receiver: what is taken for one, who may use it, pyzmq, keys."""

import subprocess

import pytest

import fd_postproc as fp
from tests.lib.children import python
from tests.lib.roads import arriving, numbered, taken

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


def test_an_address_that_another_receiver_has(address_road):
    first = address_road.receiver()
    with pytest.raises(fp.QueueError, match="another Receiver is there"):
        fp.Receiver("plain", **address_road.end)
    address_road.sender().send(numbered(1))
    assert arriving(first, 1) == [1]


def test_an_address_that_cannot_be_bound(tmp_path):
    with pytest.raises(fp.QueueError, match="make its directory first"):
        fp.Receiver("plain", address=f"ipc://{tmp_path}/none/road")
    with pytest.raises(fp.QueueError, match="no such interface"):
        fp.Receiver("plain", address="tcp://192.0.2.1:5570")


def test_only_the_owner_may_write_to_an_ipc_address(tmp_path):
    for mode in 0o600, 0o660:
        with fp.Receiver("plain", address=f"ipc://{tmp_path}/road", mode=mode):
            assert (tmp_path / "road").stat().st_mode & 0o777 == mode
        assert not (tmp_path / "road").exists()
    with pytest.raises(ValueError, match="mode"):
        fp.Receiver("plain", address=f"ipc://{tmp_path}/road", mode=0o400)


def test_a_file_that_a_killed_receiver_left_is_no_obstacle(tmp_path):
    code = f"import fd_postproc as fp, os; fp.Receiver('plain', address='ipc://{tmp_path}/road'); os._exit(0)"
    subprocess.run(python(code), check=True)
    assert (tmp_path / "road").exists()
    with fp.Receiver("plain", address=f"ipc://{tmp_path}/road"):
        pass


def test_an_open_address_without_keys_is_told_of(caplog):
    fp.Receiver("plain", address="tcp://127.0.0.1:*").close()
    assert not caplog.records
    fp.Receiver("plain", address="tcp://0.0.0.0:*").close()
    assert "whoever reaches it can forge tokens" in caplog.text


def test_what_they_look_like(address_road):
    receiver, sender = address_road.receiver(), address_road.sender()
    where = receiver.address
    assert repr(receiver) == f"<Receiver plain: {where}, 0 messages>"
    assert repr(sender) == f"<Sender plain compact: {where}, 0 steps>"
    assert (receiver.key, receiver.msqid, sender.key, sender.msqid) == (None, -1, None, -1)
    assert sender.address == where
    assert sender.limit == len(fp.encode(fp.Step.from_arrays("plain", [1] * 512, [1] * 512), "compact"))


# ---- pyzmq ----------------------------------------------------------------------------------------------


def test_without_an_address_nothing_of_it_is_loaded():
    code = """
import fd_postproc as fp
import sys
loaded = [name for name in sys.modules if name.split(".")[0] == "zmq"]
assert not loaded + [name for name in sys.modules if name.startswith("fd_postproc.transport.zmq")]
"""
    subprocess.run(python(code), check=True)


def test_without_pyzmq():
    code = """
import sys
sys.modules["zmq"] = None
import fd_postproc as fp
for end in fp.Sender, fp.Receiver:
    try:
        end("plain", address="tcp://127.0.0.1:9")
    except fp.QueueError as error:
        assert "pip install 'fd_postproc[zmq]'" in str(error), error
    else:
        raise AssertionError
"""
    done = subprocess.run(python(code), check=True, stderr=subprocess.PIPE, text=True)
    assert done.stderr == ""  # an end that could not be made goes without a word


# ---- Keys -----------------------------------------------------------------------------------------------


@pytest.fixture
def keys():
    zmq = pytest.importorskip("zmq")
    return [tuple(key.decode() for key in zmq.curve_keypair()) for _ in range(3)]


def test_only_known_keys_get_in(keys):
    (public, secret), (known, known_secret), (_, other_secret) = keys
    with fp.Receiver("plain", address="tcp://127.0.0.1:*", curve=fp.Curve(secret, [known])) as receiver:
        curves = {
            "good": fp.Curve(known_secret, public),
            "unknown": fp.Curve(other_secret, public),
            "wrong server": fp.Curve(known_secret, known),
            "none": None,
        }
        senders = {
            name: fp.Sender("plain", address=receiver.address, curve=curve, linger=0)
            for name, curve in curves.items()
        }
        for sender in senders.values():
            sender.send(numbered(1))
        assert arriving(receiver, 1) == [1]
        assert receiver.receive(0.5) is None
        taken(senders["good"])
        for name, sender in senders.items():
            assert sender.unacknowledged == (name != "good")
            if name == "good":
                sender.close()
            else:
                with pytest.raises(fp.QueueTimeout):
                    sender.close()


def test_keys_are_checked(keys, tmp_path):
    public, secret = keys[0]
    assert secret not in repr(fp.Curve(secret, public))
    for arguments, why in (
        (("short", public), "secret: a key has 40"),
        ((secret, "short"), "peers: a key has 40"),
        ((secret, []), "peers is empty"),
    ):
        with pytest.raises(ValueError, match=why):
            fp.Curve(*arguments)
    with pytest.raises(TypeError, match="secret: a key must be a str"):
        fp.Curve(secret.encode(), public)
    with pytest.raises(ValueError, match="takes no curve"):
        fp.Receiver("plain", address=f"ipc://{tmp_path}/road", curve=fp.Curve(secret, public))
    with pytest.raises(ValueError, match="a Sender has one receiver"):
        fp.Sender("plain", address="tcp://127.0.0.1:9", curve=fp.Curve(secret, [public, public]))
