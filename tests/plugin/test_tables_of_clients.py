"""Tables that clients can fill; docs/security.md lists all, and where the others are tested."""

import gc
import random
import resource
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from fd_postproc import MalformedMessage, decode
from fd_postproc.fastdeploy.api.chunks import _chunks
from fd_postproc.fastdeploy.api.text import token_counts
from fd_postproc.fastdeploy.engine.health.first_tokens import FirstTokens
from fd_postproc.fastdeploy.engine.health.unscheduled import Unscheduled
from fd_postproc.flight.codes import End
from fd_postproc.flight.recorder import Recorder
from tests.lib.nursery import nursery
from tests.lib.restated_parsers import Tokenizer
from tests.lib.rig import Rig

MIB = 1 << 20


@pytest.fixture
def memory():
    """A function that says how many bytes have been taken since the test began."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    yield lambda: tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()


def names(count):
    """Long ids, none of which anybody else holds."""
    return [f"{number:0{MIB}}" for number in range(count)]


def test_texts_whose_tokens_are_counted(memory, monkeypatch):
    """Each as long as it may be, of letters that take four bytes."""
    monkeypatch.setattr(token_counts, "counter", lambda tokenizer: len)
    own = token_counts.CountingTokenizer(Tokenizer())
    for number in range(token_counts._MOST + 2000):
        own.tokenize(f"{number:06}" + "😀" * (token_counts._LONGEST - 6))
        own.tokenize("😀" * (token_counts._LONGEST + 1 + number % 9))
    assert memory() < 20 * MIB


def test_requests_that_were_in_a_slot(memory):
    """The flight recorder knows one a slot, until it looks at the slot again."""
    ring = SimpleNamespace(event=lambda *_, **__: None, queue=lambda *_: None, busy=lambda _: None)
    recorder = Recorder(ring)
    for number, name in enumerate(names(40)):
        recorder.began(number % 2, name, 1, None)
        recorder.ended(number % 2, name, 1, End.TOKEN)
    del name
    assert memory() < 3 * MIB
    recorder.look(-1, 0, [None, None], 0)
    assert memory() < MIB


def held(watch):
    """The ids that a watch has in its tables."""
    tables = [one for one in vars(watch).values() if isinstance(one, (dict, set))]
    assert tables
    return set().union(*tables)


@pytest.mark.framework
@pytest.mark.parametrize(("make", "role"), [(FirstTokens, "decode"), (Unscheduled, "mixed")])
def test_requests_that_the_health_looks_at(make, role):
    """They are FastDeploy's own strings, of requests that it has now; its tables forget them first."""
    rig = Rig("plain", splitwise_role=role)
    rig.processor.parts.pairing.delivery.ended_threads = lambda: ("schedule_request_thread",)
    watch = make(SimpleNamespace(dead=lambda named, now: set())) if make is FirstTokens else make()
    info = {"prefill_ip": "127.0.0.1", "prefill_connector_port": 1}
    for round_ in range(3):
        rig.sink.requests = {
            f"{round_} {number}": SimpleNamespace(raw=SimpleNamespace(disaggregate_info=info))
            for number in range(50)
        }
        for second in range(4):
            watch.look(rig.processor, 100.0 + 10 * round_ + second)
            assert held(watch) <= rig.sink.requests.keys()
        assert held(watch)
    rig.sink.requests = {}
    watch.look(rig.processor, 200.0)
    assert held(watch) == set()


KEYS = """
import gc, tracemalloc
import msgpack
from fd_postproc.fastdeploy.api.chunks import _chunks

tracemalloc.start()
for number in range(1500):
    for count, length in (8, 900), (60, 30):
        keys = [f"{number} {key:0{length}}" for key in range(count)]
        _chunks.unpack(msgpack.packb(dict.fromkeys(keys)))
gc.collect()
assert tracemalloc.get_traced_memory()[0] < 4 << 20
"""


def test_keys_of_messages():
    """The engine names them; those of the last kinds of maps are remembered.

    In a process of its own: a process's table of interned texts, which all texts share, grows in large steps.
    """
    pytest.importorskip("msgpack")
    done = nursery().run(KEYS)
    assert done.returncode == 0, done.stderr


def resident():
    """Bytes of this process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.resident_memory
def test_buffers_of_long_answers():
    """A text of 32 MiB; what is kept for the next answer is of a usual size."""
    before = resident()
    texts = _chunks.Texts(lambda token: ("x" * (32 * MIB), ""))
    assert len(texts.shown(1)) == 32 * MIB
    del texts
    gc.collect()
    assert resident() < before + 16 * MIB


def test_kinds_of_faults_are_few():
    """One of each is remembered, by the log's throttle: whatever a message says."""
    kinds, chance = set(), random.Random(5)
    for _ in range(5000):
        payload = chance.randbytes(chance.choice([8, 16, 64, 2056, 4112]))
        for channel in ("plain", "topk", "spec_topk"):
            try:
                decode(payload, channel)
            except MalformedMessage as error:
                kinds.add((error.channel, error.field))
    assert 2 < len(kinds) < 60
