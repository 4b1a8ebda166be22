"""Shared fixtures: private queues, kernel limits that are the test's own, recorded messages, the oracle.

A test that takes an argument named ``golden`` runs once for each recorded message (golden/README.md), one
that takes ``received_golden`` for each that FastDeploy's own receiver got, too.
"""

import contextlib
import ctypes
import fcntl
import gc
import itertools
import logging
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import ops, queues
from tests import reference
from tests.lib import sanitized_forks, stub_cuda
from tests.lib.c_library import compiler
from tests.lib.frameworks import FRAMEWORKS, made
from tests.lib.goldens import GOLDENS, GOOD, RECEIVED, REFUSED

CLONE_NEWIPC = 0x08000000

# Child processes import NumPy and do no linear algebra; without threads for it its import takes half as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Paddle sets it at its import, which the test that is the first to import it would be blamed for.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell that started the tests in the background left SIGINT ignored, and child processes inherit that.  No
# preexec_fn sets it: under the address sanitizer, one child in hundreds that runs code before its exec hangs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
sanitized_forks.install()
# Child processes by the hundred would compile the same modules again, each for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Tables are as wide as they are without a terminal, whoever started the tests.
os.environ.pop("COLUMNS", None)
# Flight recorders are small here, and where no user's are.
_flights = tempfile.TemporaryDirectory(prefix="fd_postproc-tests-")
os.environ.update(FD_POSTPROC_FLIGHT="1", FD_POSTPROC_FLIGHT_FOLDER=_flights.name)
# The gate knows the double by a record of its own.
os.environ["FD_POSTPROC_KNOWN"] = str(Path(__file__).with_name("known_double.json"))
# prometheus_client decides at its import whether metrics are in files; each process has files of its own.
_metrics = tempfile.TemporaryDirectory(prefix="fd_postproc-tests-metrics-")
os.environ["PROMETHEUS_MULTIPROC_DIR"] = _metrics.name

# The ops keep a Receiver or Sender for each id: no two tests of a process may have the same one.
queue_ids = itertools.count(random.SystemRandom().randrange(1 << 16, 1 << 19, 4), 4)


@pytest.fixture(scope="module", autouse=True)
def young_heap():
    """Leave pytest, Paddle and thousands of test items out of the collections that tests cause."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def fresh_metrics():
    """A process has one set of FastDeploy's metrics: a file of tests must not find another one's gauges."""
    metrics = sys.modules.get("fastdeploy.metrics.metrics")
    reset = getattr(getattr(metrics, "main_process_metrics", None), "reset", None)
    if reset is not None:  # the double's
        reset()


@pytest.fixture
def caplog(caplog):
    """Also what FastDeploy's loggers get: they stop propagating when a test is the first to import them."""
    logger = logging.getLogger("fastdeploy")
    logger.propagate = False
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


@pytest.fixture
def queue_id():
    """A queue id that no other test has."""
    return next(queue_ids)


# The suite is quick and the same every time; "pytest --hypothesis-profile=thorough" searches anew.
# How long an example takes depends on what else the machine does: no test fails for that.
_ANY_PACE = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("quick", **_ANY_PACE, derandomize=True, database=None, max_examples=60)
hypothesis.settings.register_profile(
    "thorough", **_ANY_PACE, database=None, max_examples=1200, print_blob=True
)
hypothesis.settings.load_profile("quick")


def _remove(key):
    with contextlib.suppress(sysv_ipc.ExistentialError):
        sysv_ipc.MessageQueue(key).remove()


@pytest.fixture
def queue_keys():
    """A function that gives a new key of a queue that does not exist; whatever is made with it is removed."""
    keys = []

    def new_key():
        while True:
            key = random.SystemRandom().randrange(1 << 20, 1 << 31)
            try:
                sysv_ipc.MessageQueue(key)
            except sysv_ipc.ExistentialError:
                keys.append(key)
                return key

    yield new_key
    for key in keys:
        _remove(key)


@pytest.fixture
def queue_key(queue_keys):
    """The key of one private queue."""
    return queue_keys()


@pytest.fixture
def new_queue(queue_keys):
    """A function that makes a private queue, through an independent library."""
    return lambda: sysv_ipc.MessageQueue(
        queue_keys(), sysv_ipc.IPC_CREX, mode=0o600, max_message_size=1 << 20
    )


@pytest.fixture
def queue(new_queue):
    """One private queue."""
    return new_queue()


@pytest.fixture
def plain_sender(queue):
    """A Sender into a queue that a few hundred small messages fill, whatever the machine's limits are."""
    queue.max_size = min(queue.max_size, 16384)
    with fp.Sender("plain", key=queue.key) as sender:
        yield sender


@pytest.fixture
def plain_step():
    """A small step: a request that was preempted between two tokens."""
    return fp.Step.from_arrays("plain", [1, -9, 1], [11, 13])


@contextlib.contextmanager
def _ipc_namespace(what, **limits):
    """An IPC namespace of this thread's own, and of the threads and processes that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/ipc") as outside:
        if libc.unshare(CLONE_NEWIPC) != 0:
            reason = os.strerror(ctypes.get_errno())
            pytest.skip(f"{what} kernel limits need an IPC namespace of the test's own: {reason}")
        try:
            for name, value in limits.items():
                try:
                    set_limit(name, value)
                except OSError as error:
                    pytest.skip(f"kernel.{name} cannot be set here: {error}")
            yield
        finally:
            libc.setns(outside.fileno(), CLONE_NEWIPC)


def set_limit(name, value):
    """Set kernel.msgmax or kernel.msgmnb of this thread's IPC namespace."""
    with open(f"/proc/sys/kernel/{name}", "w") as file:
        file.write(str(value))


@pytest.fixture
def own_namespace():
    """Default limits and nobody else's queues; none may be left behind.  True if that was permitted."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_ipc_namespace("own"))
        except pytest.skip.Exception:
            yield False
            return
        yield True
        assert queues.list_queues() == []


@pytest.fixture
def raised_limits():
    """Run the test in an IPC namespace of its own, where a message may have 1 MiB and a queue 64 MiB.

    Ask for it before any queue fixture, so that the queue is made and removed inside.
    """
    with _ipc_namespace("raised", msgmax=1 << 20, msgmnb=64 << 20):
        yield


@pytest.fixture
def default_limits():
    """Run the test in an IPC namespace of its own, with a new kernel's limits: 8192 and 16384 bytes.

    Its value is a function that sets another limit in there: ``default_limits("msgmax", 4096)``.
    """
    with _ipc_namespace("default", msgmax=8192, msgmnb=16384):
        yield set_limit


@pytest.fixture
def ops_queue(monkeypatch, queue_id):
    """The private queues that `fd_postproc.ops` use during the test: an `OpsQueue`."""
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", str(queue_id))
    for name in ("INFERENCE_MSG_ID", "FD_POSTPROC_DIALECT", "FD_POSTPROC_PEER", "FD_POSTPROC_QUEUE_MODE"):
        monkeypatch.delenv(name, raising=False)
    queue = OpsQueue()
    yield queue
    queue.remove()


@pytest.fixture(params=FRAMEWORKS.values())
def framework(request):
    """Make tensors of one framework; skip if it is not installed."""
    return made(request.param)


class OpsQueue:
    """What the ops' queues hold, seen through an independent library."""

    CHANNELS = ("plain", "topk", "spec", "spec_topk")

    def open(self, channel):
        """The queue of a channel, or None if nobody has made it."""
        try:
            return sysv_ipc.MessageQueue(queues.locate(channel), max_message_size=1 << 20)
        except sysv_ipc.ExistentialError:
            return None

    def take(self, channel):
        """Payload and type of the only message that is there."""
        queue = self.open(channel)
        payload, mtype = queue.receive(block=False)
        assert queue.current_messages == 0
        return payload, mtype

    def waiting(self):
        """How many messages wait in all of them."""
        held = {queue.id: queue for queue in map(self.open, self.CHANNELS) if queue is not None}
        return sum(queue.current_messages for queue in held.values())

    def remove(self):
        for channel in self.CHANNELS:
            _remove(queues.locate(channel))


def pytest_generate_tests(metafunc):
    for argument, choice in ("golden", GOOD), ("received_golden", RECEIVED):
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, list(choice.values()), ids=list(choice))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Thousands of tests are made, and none goes: a sixth of the time would be looking for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One process more than this one may use logical cores: some tests wait for real time."""
    return len(os.sched_getaffinity(0)) + 1


pytest_plugins = ["tests.lib.marks", "tests.lib.crashes", "tests.lib.leaks"]


@pytest.fixture(scope="session")
def goldens():
    """All recorded messages by name, the malformed one included."""
    return GOLDENS


@pytest.fixture
def refused_golden():
    """The one recorded message that does not add up."""
    return GOLDENS[REFUSED]


@pytest.fixture(scope="session")
def decode_both():
    """A function that decodes with the C code and with the reference, and insists that they agree.

    It returns the Step, or the MalformedMessage.
    """

    def outcome(decode, payload, channel, arguments):
        try:
            return decode(payload, channel, **arguments)
        except fp.MalformedMessage as error:
            return error

    def decode_both(payload, channel, **arguments):
        fast = outcome(fp.decode, payload, channel, arguments)
        dull = outcome(reference.decode, payload, channel, arguments)
        if isinstance(fast, fp.MalformedMessage):
            assert isinstance(dull, fp.MalformedMessage), f"only the C code refuses: {fast}"
            assert (str(fast), fast.args) == (str(dull), dull.args)
        else:
            assert not isinstance(dull, fp.MalformedMessage), f"only the reference refuses: {dull}"
            assert reference.ReferenceStep.from_step(fast) == dull
        return fast

    return decode_both


@pytest.fixture(scope="session")
def stub_path(tmp_path_factory):
    """The stub CUDA driver (lib/stub_cuda.py) as a library, compiled once for all test processes."""
    if compiler() is None:
        pytest.skip("the stub CUDA driver needs a C compiler")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with open(folder / "stub.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = folder / "stub" / stub_cuda.NAME
        if not built.exists():
            built.parent.mkdir()
            stub_cuda.build(built.parent)
    return str(built)


@pytest.fixture
def stub(stub_path):
    """The stub CUDA driver in this process, with everything sent and no delay before and after."""
    library = stub_cuda.load(stub_path)
    if not hasattr(ctypes.CDLL("libcuda.so.1"), "stub_delay"):
        pytest.skip("this process uses a real CUDA driver; run this file alone")
    library.stub_delay(ctypes.c_int64(0))
    yield library
    library.stub_delay(ctypes.c_int64(0))
    with contextlib.suppress(ValueError, fp.QueueError):  # what a test left behind is not the next one's
        assert ops.flush(60)
