"""CURVE keys: who gets in, what is said to those who do not, and to the Receiver."""

import pytest
import zmq

import fd_postproc as fp
from tests.lib.roads import arriving, numbered
from tests.lib.sending import in_thread
from tests.lib.strangers import Flood, connected, greeted, message


@pytest.fixture(params=["str", "bytes"])
def keys(request):
    pairs = [zmq.curve_keypair() for _ in range(3)]
    return [tuple(key.decode() for key in pair) for pair in pairs] if request.param == "str" else pairs


@pytest.fixture
def receiver(keys):
    (_, secret), (known, _), _ = keys
    with fp.Receiver("plain", address="tcp://127.0.0.1:*", curve=fp.Curve(secret, [known])) as receiver:
        yield receiver


def test_a_known_key_gets_in(keys, receiver):
    (public, _), (_, known_secret), _ = keys
    with fp.Sender("plain", address=receiver.address, curve=fp.Curve(known_secret, public)) as sender:
        for k in range(200):
            sender.send(numbered(k))
        assert arriving(receiver, 200) == list(range(200))


@pytest.mark.parametrize(
    ("who", "at_sender", "at_receiver"),
    [
        ("unknown", "the receiver does not know this Sender's key", "is not among curve.peers"),
        ("wrong server", "does curve.peers hold the receiver's public key", ""),
        ("none", "have both ends keys, or neither", ""),
    ],
)
def test_others_do_not_and_are_told_why(keys, receiver, caplog, who, at_sender, at_receiver):
    (public, _), (known, known_secret), (_, other_secret) = keys
    curve = {
        "unknown": fp.Curve(other_secret, public),
        "wrong server": fp.Curve(known_secret, known),
        "none": None,
    }[who]
    sender = fp.Sender("plain", address=receiver.address, curve=curve, linger=1.0)
    sender.send(numbered(1))
    with in_thread(receiver.receive, 2.0) as came, pytest.raises(fp.QueueTimeout) as caught:
        sender.close()
    assert came == [None]
    assert "1 of 1 steps were not sent" in str(caught.value)
    assert at_sender in str(caught.value)
    assert at_receiver in caplog.text


def test_keys_at_a_receiver_without(keys):
    (public, _), (_, secret), _ = keys
    with fp.Receiver("plain", address="tcp://127.0.0.1:*") as receiver:
        sender = fp.Sender("plain", address=receiver.address, curve=fp.Curve(secret, public), linger=0.5)
        sender.send(numbered(1))
        assert receiver.receive(0.3) is None
        with pytest.raises(fp.QueueTimeout, match="have both ends keys, or neither"):
            sender.close()


def test_an_impostor_gets_nothing(keys):
    """Who listens at the address without the Receiver's secret is told of, and steps are not sent to it."""
    (public, _), (known, known_secret), (_, other_secret) = keys
    with fp.Receiver("plain", address="tcp://127.0.0.1:*", curve=fp.Curve(other_secret, [known])) as impostor:
        sender = fp.Sender(
            "plain", address=impostor.address, curve=fp.Curve(known_secret, public), linger=0.5
        )
        sender.send(numbered(1))
        with (
            in_thread(impostor.receive, 1.0) as came,
            pytest.raises(fp.QueueTimeout, match="1 of 1 steps were not sent"),
        ):
            sender.close()
        assert came == [None]


def test_strangers_at_an_address_with_keys(keys, receiver):
    (public, _), (_, known_secret), _ = keys
    strangers = [
        connected(receiver.address, b"x" * 200),
        connected(receiver.address),
        greeted(receiver.address),
    ]
    Flood(strangers[2], message(b"x", more=True) * 100).pour()
    with fp.Sender("plain", address=receiver.address, curve=fp.Curve(known_secret, public)) as sender:
        sender.send(numbered(1))
        assert arriving(receiver, 1) == [1]
    for one in strangers:
        one.close()
    assert receiver.stats["messages"] == 1


def test_several_parts_and_too_long_ones_of_a_known_key(keys, receiver):
    (public, _), (known, known_secret), _ = keys
    as_bytes = [key if isinstance(key, bytes) else key.encode() for key in (public, known, known_secret)]
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = as_bytes
        socket.connect(receiver.address)
        socket.send_multipart([b"a", b"b", b"c"])
        socket.send(bytes(1 << 21))
        socket.send(fp.encode(numbered(4), "compact"))
        fields = []
        for _ in range(2):
            with pytest.raises(fp.MalformedMessage) as caught:
                receiver.receive(20)
            fields.append(caught.value.field)
        assert fields == ["parts", "length"]
        assert arriving(receiver, 1) == [4]


def test_keys_are_checked(keys, tmp_path):
    public, secret = keys[0]
    shown = secret if isinstance(secret, str) else secret.decode()
    assert shown not in repr(fp.Curve(secret, public))
    assert fp.Curve(secret, [public, public]).secret == shown
    for arguments, why in (
        (("short", public), "secret: a key has 40"),
        ((secret, b"short"), "peers: a key has 40"),
        ((secret, '"' * 40), "characters of Z85"),
        ((secret, []), "peers is empty"),
    ):
        with pytest.raises(ValueError, match=why):
            fp.Curve(*arguments)
    with pytest.raises(TypeError, match="secret: a key must be a str or bytes"):
        fp.Curve(5, public)
    with pytest.raises(ValueError, match="takes no curve"):
        fp.Receiver("plain", address=f"ipc://{tmp_path}/road", curve=fp.Curve(secret, public))
    with pytest.raises(ValueError, match="a Sender has one receiver"):
        fp.Sender("plain", address="tcp://127.0.0.1:9", curve=fp.Curve(secret, [public, public]))
