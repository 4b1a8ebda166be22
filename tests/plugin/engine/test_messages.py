"""Results packed without dictionaries: msgpack's own bytes, whatever is in them."""

import datetime
import functools
import gc
import os
import subprocess
import sys
import weakref
from types import SimpleNamespace
from unittest import mock

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fd_postproc import Step
from tests.lib.packed_results import Packed, are_same, checking, outcome
from tests.lib.paths import TESTS
from tests.lib.plugged import new_result, plugin_class
from tests.lib.quiet import Double, imported
from tests.lib.rig import END, Rig
from tests.lib.rows import each
from tests.lib.search import examples
from tests.lib.step_replay.traces import Trace, trace_names

pytestmark = pytest.mark.framework
double = Double()


def default(value):
    """As FastDeploy's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be packed")


PACK = functools.partial(msgpack.packb, default=default)


@functools.cache
def plan_and_messages():
    plan = plugin_class().plan
    return plan, imported("fd_postproc.fastdeploy.engine.results._results").Messages(plan, default)


@pytest.fixture
def messages(plan):
    return imported("fd_postproc.fastdeploy.engine.results._results").Messages(plan, default)


def result(plan, name="one", **values):
    return new_result(plan, name, (), **values)


def same(messages, batch):
    """Pack as msgpack does; what it refuses is refused."""
    expected = outcome(lambda: PACK([[one.to_dict() for one in some] for some in batch]))
    assert are_same(outcome(lambda: messages.pack(batch)), expected)


# ---- values ----------------------------------------------------------------------------------------

Texts, Integers, Floats, Lists = (type("Own", (one,), {}) for one in (str, int, float, list))
VALUES = [
    *(None, True, 0.0, -0.0, 1e300, float("inf"), float("nan"), 2**64 - 1, -(2**63), 2**64, -(2**63) - 1),
    *("", "a" * 31, "a" * 32, "\u00e9" * 16, "\U0001f600", "\ud800", b"", b"a" * 300, bytearray(b"a")),
    *([], [1] * 16, [[2.5]] * 70000, (1, "a"), {"a": [{"b": None}]}, {1: 2, None: 3}, memoryview(b"abc")),
    *({str(number): number for number in range(count)} for count in (15, 16, 65536)),
    *(np.float64(1.5), np.int64(7), np.array([0.5], ">f8"), np.zeros((2, 0)), np.ones((3, 2))[:, 1]),
    *(np.array([True]), np.ones(2, np.float16), np.array([2**64 - 1], np.uint64), [[np.float32(0.5)]]),
    *(object(), SimpleNamespace(), [2**64], {"a": {b"b": [np.float64(1.5)]}}),
    *(Texts("a"), Integers(5), Floats(0.5), Lists([1])),
]


@each("value", VALUES)
def test_every_value(value, plan, messages):
    """Of a result, of its output; and of its request, which a template has."""
    batch = [[result(plan, "one")], [result(plan, "two", prompt=value)], [result(plan, "three")]]
    same(messages, batch)
    same(messages, [[result(plan, draft_token_ids=[value], top_logprobs=value)]])
    rig, packed = rig_of_rows(), Packed(default)
    rig.requests["one"].ic_req_data = value
    (made,) = rig.step({0: [30]})["one"]
    packed.compare(plan, [made])
    assert packed.difference is None


def test_what_msgspec_alone_packs(plan, messages):
    """FastDeploy loses the message, or its request here."""
    for value in ({1, 2}, datetime.datetime(2026, 1, 1)):
        (((one,), _),) = [msgpack.unpackb(messages.pack([[result(plan, prompt=value)], []]))]
        assert one["prompt"]


def arrays():
    draw = np.random.default_rng(3)
    for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "i8"):
        limits = np.iinfo(kind)
        long = [(70_000, 1)] if kind in ("u1", "i8") else []
        for shape in ((1,), (5, 3), (7, 2, 8), (2, 1, 3, 4), *long):
            yield draw.integers(limits.min, limits.max, shape, kind, endpoint=True)
    yield draw.normal(size=(4, 21)).astype("f4")
    yield np.array([[np.nan, np.inf, -0.0]])


@each("array", [*arrays()])
def test_arrays(array, plan, messages):
    """Lists for who reads lists; one value with the same numbers for who reads arrays."""
    same(messages, [[result(plan, prompt_logprobs=array)]])
    if not hasattr(result(plan), "routing_data"):
        pytest.skip("this FastDeploy has no routed experts")
    some = [[result(plan), result(plan, routing_data=array, finished=True)], [result(plan)]]
    same(messages, some)
    assert messages.pack(some, lambda: False) == messages.pack(some)
    shown = msgpack.unpackb(messages.pack(some, lambda: True), ext_hook=as_array)
    assert str(shown) == str(msgpack.unpackb(messages.pack(some)))
    assert some[0][1].routing_data is array


def as_array(code, content):
    assert code == 0x41
    kind, size, dimensions = chr(content[0]), content[1], content[2]
    shape = np.frombuffer(content[4:], "<u4", dimensions)
    return np.frombuffer(content[4 + 4 * dimensions :], f"<{kind}{size}").reshape(shape).tolist()


def test_named_tuples_of_arrays(plan, messages):
    rows = plan.fd.LogprobsLists(np.arange(6).reshape(2, 3), np.ones((2, 3), "f4"), np.array([1, 2]))
    some = [[result(plan, prompt_logprobs=rows)]]
    same(messages, some)
    shown = msgpack.unpackb(messages.pack(some, lambda: True), ext_hook=as_array)
    assert shown == msgpack.unpackb(messages.pack(some))
    same(messages, [[result(plan, prompt_logprobs=plan.fd.LogprobsLists([[1]], np.ones((1, 1)), [2]))]])


numbers = st.integers(-(2**31), 2**31 - 1)


@functools.cache
def rig_of_rows():
    rig = Rig("spec_topk", ("one",))
    rig.step({0: [30]})  # a first token is handled with more care
    return rig


@examples(25)
@given(st.data())
def test_any_rows(data):
    """Log-probabilities that nobody has read: the message's numbers."""
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 21))
    ids = data.draw(st.lists(numbers, min_size=rows * columns, max_size=rows * columns))
    bits = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=rows * columns, max_size=rows * columns))
    ranks = data.draw(st.lists(numbers, min_size=rows, max_size=rows))
    scores = np.array(bits, np.uint32).view(np.float32).reshape(rows, columns)
    rig = rig_of_rows()
    ids = np.array(ids).reshape(rows, columns)
    ids[:, 0] = np.where(ids[:, 0] == END, 0, ids[:, 0])
    step = Step.from_arrays("spec_topk", [rows], ids, scores, np.array(ranks), flag=3, as_recorded=True)
    rig.processor.parts.steps.process(step)
    (made,) = rig.sink.puts[-1]
    messages = plan_and_messages()[1]
    packed, asked = messages.pack([[made]]), messages.asked
    assert messages.pack([[made]]) == packed == PACK([[made.to_dict()]])
    assert messages.asked == asked


# ---- batches ---------------------------------------------------------------------------------------


def test_batches_of_all_sizes(plan, messages):
    for count in (0, 1, 16, 700):
        same(messages, [[result(plan, str(number))] for number in range(count)])
        same(messages, [[result(plan, str(number)) for number in range(count)], []])


def test_what_is_no_result_fails_as_with_msgpack(plan, messages):
    assert outcome(lambda: messages.pack([[result(plan), 5]])) == "AttributeError"
    assert outcome(lambda: messages.pack([5])) == "TypeError"
    same(messages, [[result(plan, "\ud800")]])


@each("which", ["RequestOutput", "CompletionOutput", "RequestMetrics"])
def test_another_to_dict_is_called(which, plan, messages):
    rig = rig_of_rows()
    with mock.patch.object(getattr(plan.fd, which), "to_dict", return_value={"another": 1}):
        (made,) = rig.step({0: [30]})["one"]  # its template is of before
        assert b"another" in messages.pack([[made]])
        same(messages, [[made]])
        rig.requests["one"].metrics.preempted_count += 1
        (made,) = rig.step({0: [30]})["one"]
        same(messages, [[made]])
    same(messages, [*rig.step({0: [30]}).values()])


def test_fastdeploys_own_classes(plan, messages):
    theirs = plan.fd.RequestOutput("theirs", finished=True, error_code=500, error_msg=["why"])
    same(messages, [[result(plan), theirs]])


# ---- steps -----------------------------------------------------------------------------------------


@each("channel", ["plain", "topk", "spec", "spec_topk"])
def test_results_of_steps(channel, rig_of):
    packed = Packed(default)
    rig = rig_of(channel, ["a", "b", "c"], cls=checking(plugin_class(), packed))
    for turn in range(6):
        if turn == 3:
            rig.requests["b"].metrics.preempted_count = 7  # another request's steps are not touched by it
            # as a prefill node has sent them
            rig.requests["c"].metrics.speculate_metrics = {"accepted_tokens": 2, "heads": [1, 0.5]}
        rig.step()
    rig.step({0: [2], 1: [50]})
    assert packed.difference is None
    assert (packed.results, packed.asked) == (20, 4)  # first tokens, and a last


@pytest.mark.parametrize("every", [60, pytest.param(1, marks=pytest.mark.nightly)])
def test_recorded_steps(every):
    judge, deliver = imported("tests.lib.step_replay.judge"), imported("tests.lib.step_replay.deliver")
    differences = {}
    for name in trace_names()[::every]:
        packed = Packed(default)
        judge.faults(Trace.load(name), checking(plugin_class(), packed), deliver.through_bytes)
        differences |= {name: packed.difference} if packed.difference else {}
    assert differences == {}


# ---- memory ----------------------------------------------------------------------------------------


def test_what_is_kept_of_a_request_goes_with_it(rig_of):
    rig = rig_of("spec_topk", ["a", "b", "c"])

    def kept():
        return [
            slot for slot, common in enumerate(rig.processor.parts.ending.templates) if common is not None
        ]

    rig.step()
    rig.step()
    assert kept() == [0, 1, 2]
    rig.step({0: [2], 1: [50], 2: [51]})  # a ends by its token
    assert kept() == [1, 2]
    rig.manager.stop_flags[1] = True  # b somewhere else
    rig.step({2: [52]})
    assert kept() == [2]
    rig.manager.tasks_list[2] = None
    rig.step({0: [9]})  # a shorter message
    assert kept() == []


def test_nothing_is_kept_of_what_was_packed(plan, messages):
    class Marked:
        def to_dict(self):
            return {}

    marked = Marked()
    gone = weakref.ref(marked)
    messages.pack([[marked], [result(plan, prompt=["a list"])]])
    del marked
    gc.collect()
    assert gone() is None


@pytest.mark.resident_memory
@pytest.mark.nightly
def test_steps_on_their_way_leave_memory_where_it_was():
    steps = 100_000
    script = TESTS / "isolated" / "delivery_memory.py"
    paths = [str(TESTS.parent), str(TESTS / "fastdeploy_double"), *sys.path]
    done = subprocess.run(
        [sys.executable, script, str(steps)],
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300, f"grew by {done.stdout.strip()} KiB in {steps // 2} steps"


def test_only_a_process_that_says_so_gets_arrays_as_one_value():
    reads = imported("fd_postproc.fastdeploy.engine.delivery.sending")._reads_arrays
    path = f"/dev/shm/response_{os.getpid()}_w7.pull"
    server = SimpleNamespace(worker_push_addresses={7: f"ipc://{path}", 8: "ipc:///dev/shm/another"})
    assert [reads(server, process) for process in (7, 8, 9, None)] == [False] * 4
    held = imported("fd_postproc.fastdeploy.array_readers").announce(path)
    assert [reads(server, process) for process in (7, 8, 9, None)] == [True, False, False, False]
    held.close()
    assert not reads(server, 7)
