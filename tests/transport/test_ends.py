"""Processes end in time, whatever they did not close: each in a fresh process, with and without keys."""

import subprocess
import time

import pytest
import zmq

from tests.lib.children import python
from tests.lib.search import crossed
from tests.lib.waiting import PATIENCE

BEGIN = """
import gc, os, signal, socket, threading, time
import fd_postproc as fp
keyed, folder = sys.argv[1] == "keyed", sys.argv[2]
public, secret = sys.argv[3], sys.argv[4]
def receiver():
    where = "tcp://127.0.0.1:*" if keyed else f"ipc://{folder}/road"
    return fp.Receiver("plain", address=where, curve=fp.Curve(secret, public) if keyed else None)
def sender(address, **more):
    return fp.Sender("plain", address=address, curve=fp.Curve(secret, public) if keyed else None, **more)
"""

ENDS = {
    "a receiver that was not closed": "r = receiver()",
    "a receiver that is garbage": "r = receiver(); del r; gc.collect(); r = receiver(); r.receive(0)",
    "an exception": "r = receiver()\nraise KeyError",
    "an exception in a with statement": "with receiver() as r, sender(r.address) as s:\n    raise KeyError",
    "a reader that still waits": """
r = receiver()
threading.Thread(target=r.receive, daemon=True).start()
time.sleep(0.1)
""",
    "closed in a signal handler": """
r = receiver()
signal.signal(signal.SIGALRM, lambda *_: r.close())
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    r.receive()
except fp.ReceiverClosed:
    pass
""",
    "Ctrl-C": """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it ignored
r = receiver()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
r.receive()
""",
    "both ends, and steps on their way": """
r = receiver()
s = sender(r.address)
for k in range(50):
    s.send_arrays([1], [k])
r.receive(5)
""",
    "a sender whose receiver hangs": """
with socket.create_server(("127.0.0.1", 0)) as mute:
    s = sender(f"tcp://127.0.0.1:{mute.getsockname()[1]}")
    s.send_arrays([1], [1])
    s.send_arrays([1], [2])
""",
    "a sender that is garbage": """
s = sender("tcp://127.0.0.1:9")
for k in range(3):
    s.send_arrays([1], [k])
del s
gc.collect()
""",
    "peers that hang": """
r = receiver()
peers = []
for _ in range(5):
    if keyed:
        host, _, port = r.address[6:].rpartition(":")
        one = socket.create_connection((host, int(port)))
    else:
        one = socket.socket(socket.AF_UNIX)
        one.connect(r.address[6:])
    one.send(b"\\xff" + bytes(8) + b"\\x7f")
    peers.append(one)
r.receive(0.1)
r.close()
""",
    "no descriptors": """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
ends = (receiver, lambda: sender("tcp://127.0.0.1:9")) if keyed else (lambda: sender("ipc:///nowhere"),)
for end in ends:
    try:
        end()
    except fp.QueueError as error:
        assert "raise ulimit -n" in str(error), error
    else:
        raise AssertionError("it could not be made")
""",
    "a fork": """
r = receiver()
s = sender(r.address)
s.send_arrays([1], [1])
assert r.receive(5) is not None
child = os.fork()
if child == 0:
    r.close()
    del r, s
    gc.collect()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
s.send_arrays([1], [2])
assert r.receive(5) is not None
""",
}


@pytest.mark.parametrize(("end", "keys"), crossed([*ENDS], ["plain", "keyed"]))
def test_the_end_of_a_process(end, keys, tmp_path):
    pair = [key.decode() for key in zmq.curve_keypair()]
    began = time.monotonic()
    done = subprocess.run(
        python(BEGIN + ENDS[end], keys, tmp_path, *pair), capture_output=True, text=True, timeout=PATIENCE
    )
    assert time.monotonic() - began < PATIENCE
    told = done.stderr
    if "exception" in end:
        assert (done.returncode, "KeyError" in told) == (1, True)
    elif end == "Ctrl-C":
        assert "KeyboardInterrupt" in told
    else:
        assert done.returncode == 0, told
        assert "Traceback" not in told
    if end == "a sender whose receiver hangs":
        assert "was not closed: 2 of its last steps were not sent and are lost" in told
    if end == "a sender that is garbage":
        assert "3 of its last steps were not sent and are lost" in told
    assert not (tmp_path / "road").exists() or end == "a reader that still waits"


def test_a_receiver_s_child_does_not_keep_its_address(tmp_path):
    code = """
r = fp.Receiver("plain", address="tcp://127.0.0.1:*")
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, b"x")
    time.sleep(60)
    os._exit(0)
os.read(read, 1)
r.close()
fp.Receiver("plain", address=r.address).close()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""
    done = subprocess.run(python(BEGIN + code, "plain", tmp_path, "", ""), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_host_that_is_misspelt_is_told(tmp_path):
    code = """
s = fp.Sender("plain", address="tcp://no-such-host.invalid:5570", linger=0.1)
s.send_arrays([1], [1])
try:
    s.close()
except fp.QueueTimeout as error:
    print(error)
"""
    done = subprocess.run(python(BEGIN + code, "plain", tmp_path, "", ""), capture_output=True, text=True)
    assert "the host 'no-such-host.invalid' cannot be found" in done.stdout
    assert "check its spelling" in done.stdout
