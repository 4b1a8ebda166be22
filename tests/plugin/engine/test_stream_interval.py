"""FD_POSTPROC_STREAM_INTERVAL: results of a request wait for later ones, and leave as one.

What a client gets is the same without it, but for where a chunk ends.
"""

import copy
import gc
import random
import sys
import threading
from types import SimpleNamespace

import pytest

from tests.lib.quiet import Double, imported
from tests.lib.rig import END
from tests.lib.rows import each

pytestmark = pytest.mark.framework
double = Double()
SECONDS = 0.05
ROWS = ("top_logprobs", "draft_top_logprobs")


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock of the hand-over; it goes when the test says so."""
    now = SimpleNamespace(at=1000.0)
    monkeypatch.setattr(
        imported("fd_postproc.fastdeploy.engine.results._results"), "monotonic", lambda: now.at
    )
    return now


@pytest.fixture
def services(clock, rig_of):
    """A function that makes engines, whose results a test takes out of their scheduler."""

    def make(tokens, channel="plain", names=(), **mode):
        return Service(tokens, rig_of(channel, names, **mode), names)

    return make


def scheduler_of(names):
    scheduler = double.scheduler__local_scheduler.LocalScheduler()
    scheduler.wait_response_timeout = 0
    scheduler.requests.update(dict.fromkeys(names))
    return scheduler


def joining(handover):
    """A hand-over that joins the results of all requests: those of no process are told to be."""
    handover.join_for({}, frozenset([None]))
    return handover


class Service:
    def __init__(self, tokens, rig, names):
        self.rig, self.scheduler = rig, scheduler_of(names)
        processor = self.rig.processor
        processor.cached_generated_tokens = self.scheduler
        processor.parts.pairing.delivery.interval = tokens, SECONDS
        self.handover = joining(processor.parts.pairing.delivery.handover_in(self.scheduler))
        self.handover.take()  # its sender is there
        self.taken = {}

    def take(self):
        """What the sender gets now; all of it is kept by request."""
        got = self.handover.take()
        for name, results in got.items():
            self.taken.setdefault(name, []).extend(results)
        return {name: [result.outputs.token_ids for result in results] for name, results in got.items()}


def joined(results):
    """What a client gets of a request, wherever its chunks end."""
    got = {"tokens": [], "masks": [], "ends": [], "metrics": None, **{name: [[], [], []] for name in ROWS}}
    since = 0  # tokens of it that came before it ended, and began anew
    for sent in results:
        outputs = sent["outputs"]
        if sent["finished"] or sent["error_code"] != 200:
            got["ends"].append((len(got["tokens"]), sent["finished"], sent["error_code"], sent["error_msg"]))
        got["metrics"] = sent["metrics"]
        if outputs is None:
            continue
        if outputs["send_idx"] is not None:  # as with an abort
            assert outputs["send_idx"] >= len(got["tokens"]) - since  # more, if prefilled elsewhere
        got["tokens"] += outputs["token_ids"]
        since = len(got["tokens"]) if sent["finished"] else since
        for name in ROWS:
            for whole, part in zip(got[name], outputs[name] or ((), (), ()), strict=True):
                whole += part
        mask = sent.get("extra", {}).get("outputs.sampling_mask")
        if mask is not None:
            got["masks"] += mask if mask and isinstance(mask[0], list) else [mask]
    return got


def as_sent(results):
    return [imported("tests.lib.fakes").as_sent(result) for result in results]


# ---- what leaves when ----------------------------------------------------------------------------------


def test_the_first_result_and_the_end_leave_at_once_the_others_by_number(services):
    service = services(3, names=["a"])
    got = []
    for token in (5, 6, 7, 8, 9, 10, END):
        service.rig.step({0: [token]})
        got.append(service.take())
    assert got == [{"a": [[5]]}, {}, {}, {"a": [[6, 7, 8]]}, {}, {}, {"a": [[9, 10], [END]]}]
    assert [result.outputs.send_idx for result in service.taken["a"]] == [0, 1, 4, 6]


def holders(name):
    """The sets that hold a name: of requests whose answer has begun."""
    return [one for one in gc.get_referrers(name) if type(one) is set]


def test_ids_of_requests_that_ended_in_another_way_are_forgotten(services):
    """As an abort's, whose result is FastDeploy's: a client may choose long ids."""
    names = [f"request {number}" for number in range(4)]
    service = services(3, names=names)
    service.rig.step({slot: [5] for slot in range(4)})
    service.take()
    assert all(map(holders, names))
    for name in names[:3]:
        del service.scheduler.requests[name]
    service.rig.step({3: [6]})
    assert [bool(holders(name)) for name in names] == [False, False, False, True]


def test_what_waits_leaves_in_time_with_steps_and_without(services, clock):
    service = services(100, names=["a", "b"])
    service.rig.step({0: [5], 1: [6]})
    service.take()
    service.rig.step({0: [7]})
    clock.at += 0.03
    service.rig.step({1: [8]})
    assert service.take() == {}
    clock.at += 0.03
    service.rig.step({0: [9]})  # of which the first ones wait for 60 ms
    assert service.take() == {"a": [[7, 9]]}
    clock.at += 0.03
    assert service.take() == {"b": [[8]]}


def test_an_id_that_is_used_again_after_an_abort_begins_anew(services):
    """The abort's end is FastDeploy's own result, which comes past the hand-over."""
    service = services(3, names=["a"])
    service.rig.step({0: [5]})
    assert service.take() == {"a": [[5]]}
    again = service.rig.processor.plan
    first = again.new_result(0, 0, "a", 3, None)
    first.outputs.token_ids = [7]
    for aborts in (True, False):  # or its end was taken by others
        if aborts:
            end = again.fd.RequestOutput("a", finished=True, error_code=499)
            service.scheduler.put_results([end])
            service.handover.take()
            service.scheduler.requests["a"] = None
        assert service.handover.put([first])
        assert service.take() == {"a": [[7]]}
    service.rig.processor.tokens_counter["a"] = 0
    service.rig.step({0: [8]})  # which nobody has looked at
    assert service.take() == {"a": [[8]]}


def test_results_that_were_looked_at_stay_apart(services):
    service = services(3, names=["a"])
    for n in range(4):
        result = service.rig.processor.plan.new_result(0, n, "a", 3, None)
        result.outputs.token_ids = [5 + n]
        assert service.handover.put([result])
        service.take()
    assert [one.outputs.token_ids for one in service.taken["a"]] == [[5], [6], [7], [8]]


def test_draft_rows_and_masks_are_joined(services):
    """As lists, which the draft message and the worker have given."""
    service, results_ = services(3, "topk", ["a"]), "fd_postproc.fastdeploy.engine.results._results"
    parts, lists = service.rig.processor.parts, service.rig.processor.fd.LogprobsLists
    deliver, pair = parts.pairing.deliver, imported(results_).pair

    def with_drafts(results):
        pair(results, {("a", 0): lists([[7, 8]], [[-0.5, -1.5]], [3])})
        deliver(results)

    parts.pairing.deliver, parts.steps._sampling_masks = with_drafts, lambda: {0: [9]}
    for token in (5, 6, 7, 8):
        service.rig.step({0: [token]})
        service.take()
    then, parts.steps._sampling_masks = copy.copy(service.rig.requests["a"].metrics), dict
    for token in (9, 10, 11):  # and a result without a mask stays apart from one with it
        service.rig.step({0: [token]})
        parts.steps._sampling_masks = lambda: {0: [9]}
    service.take()
    assert service.taken["a"][1].metrics == then  # those of its last
    first, joined, *apart = (one.outputs for one in service.taken["a"])
    assert (first.draft_top_logprobs, first.sampling_mask) == (([[7, 8]], [[-0.5, -1.5]], [3]), [9])
    assert joined.draft_top_logprobs == lists([[7, 8]] * 3, [[-0.5, -1.5]] * 3, [3] * 3)
    assert (joined.token_ids, joined.sampling_mask) == ([6, 7, 8], [[9]] * 3)
    assert [(one.token_ids, one.sampling_mask) for one in apart] == [([9], None), ([10, 11], [[9]] * 2)]


def test_rows_of_other_widths_stay_apart(services):
    """The widest that a request of a step has asked for is that of all."""
    service = services(9, "topk", ["a"])
    for token, columns in (5, 2), (6, 2), (7, 2), (8, 4), (9, 4), (10, 1):
        service.rig.step({0: [token]}, columns=columns)
        service.take()
    service.handover.release()
    service.take()
    rows = [[len(row) for row in one.outputs.top_logprobs[0]] for one in service.taken["a"]]
    assert rows == [[2], [2, 2], [4, 4], [1]]


def test_the_sender_wakes_by_itself(services, monkeypatch):
    monkeypatch.undo()  # on the real clock
    service = services(100, names=["a"])
    service.scheduler.wait_response_timeout = 300
    service.rig.step({0: [5]})
    service.take()
    got = []
    thread = threading.Thread(target=lambda: got.append(service.take()))
    thread.start()
    service.rig.step({0: [6]})
    service.rig.step({0: [7]})
    thread.join(60)
    assert got in ([{"a": [[6, 7]]}], [{"a": [[6]]}])  # that, should the second step have taken so long


def test_a_speculative_step_may_be_enough_by_itself(services):
    service, got = services(3, "spec", ["a"]), []
    for tokens in ([5], [6, 7], [8], [9, 10, 11], [12, 13]):
        service.rig.step({0: tokens})
        got.append(service.take())
    assert got == [{"a": [[5]]}, {}, {"a": [[6, 7, 8]]}, {"a": [[9, 10, 11]]}, {}]


def test_what_waits_leaves_when_our_sender_ends(services):
    service = services(3, names=["a"])
    for token in (5, 6, 7):
        service.rig.step({0: [token]})
        if token == 5:
            service.take()
    service.handover.release()  # FastDeploy's loop goes on
    for tokens in [[6], [7]], [[8]]:
        assert [one.outputs.token_ids for one in service.scheduler.get_results()["a"]] == tokens
        service.rig.step({0: [8]})


def test_an_error_from_another_thread_comes_behind_what_waits(services, plan):
    service = services(9, names=["a"])
    for token in (5, 6, 7):
        service.rig.step({0: [token]})
        if token == 5:
            service.take()
    error = plan.fd.RequestOutput("a", finished=True, error_code=500, error_msg="no")
    service.scheduler.put_results([error])
    got = service.handover.take()["a"]
    assert [one.error_code for one in got] == [200, 500]
    assert got[0].outputs.token_ids == [6, 7]


def test_results_wait_only_for_processes_that_take_them_apart(services):
    service = services(3, names=["a", "b", "c"])
    service.handover.join_for({"a": 1, "b": 2}, frozenset([1]))  # of c nobody knows
    got = []
    for tokens in ({0: [5], 1: [6], 2: [7]}, {0: [8], 1: [9], 2: [10]}, {0: [11], 1: [12], 2: [13]}):
        service.rig.step(tokens)
        got.append(service.take())
    service.rig.step({0: [14], 1: [15], 2: [16]})
    service.rig.step({0: [17], 1: [18], 2: [19]})
    got.append(service.take())
    assert got == [
        {"a": [[5]], "b": [[6]], "c": [[7]]},
        *({"b": [[one]], "c": [[one + 1]]} for one in (9, 12)),
        {"a": [[8, 11, 14, 17]], "b": [[15], [18]], "c": [[16], [19]]},
    ]
    service.rig.step({0: [20]})
    service.handover.join_for({"a": 1}, frozenset())  # it has fallen back
    service.rig.step({0: [21]})
    assert service.take() == {"a": [[20], [21]]}


def test_processes_are_asked_when_they_are_new_and_now_and_then(log):
    readers = imported("fd_postproc.fastdeploy.engine.delivery.joined_readers")
    flags = imported("fd_postproc.fastdeploy.array_readers")
    paths = {one: f"/dev/shm/response_{random.randrange(1 << 40)}_w{one}.pull" for one in (1, 2, 3)}
    addresses = {1: f"ipc://{paths[1]}"}
    engine = SimpleNamespace(
        send_response_server=SimpleNamespace(worker_push_addresses=addresses),
        llm_logger=double.utils.llm_logger,
    )
    made, held = readers.JoinedReaders(), flags.announce(paths[1], flags.JOINED)
    assert made.of(engine, 5.0) == {1}
    assert not flags.reads_arrays(paths[1])
    addresses.update({one: f"ipc://{paths[one]}" for one in (2, 3)})
    with flags.announce(paths[2], flags.JOINED):
        assert made.of(engine, 5.1) == {1, 2}
        held.close()
        assert made.of(engine, 5.2) == {1, 2}
        assert made.of(engine, 5.1 + readers.PERIOD_S) == {2}
    assert [one.levelname for one in log.records] == ["INFO", "INFO", "WARNING", "WARNING"]
    del engine.send_response_server.worker_push_addresses  # one socket for all
    assert made.of(engine, 9.0) == set()


def test_requests_that_never_end_are_forgotten(services):
    service, names = services(4), [f"request {number}" for number in range(3000)]
    before = list(map(sys.getrefcount, names))
    for name in names:
        service.scheduler.requests[name] = None
        result = service.rig.processor.plan.new_result(0, 0, name, 3, None)
        result.outputs.token_ids = [5]
        assert service.handover.put([result])
        service.handover.take()
        del service.scheduler.requests[name], result
    kept = [now > then for now, then in zip(map(sys.getrefcount, names), before, strict=True)]
    assert 0 < sum(kept) < 2000


@each("name", ["FD_POSTPROC_API", "FD_USE_HF_TOKENIZER", "ZMQ_SEND_BATCH_DATA"])
def test_it_is_off_where_the_engine_knows_that_nothing_takes_results_apart(name, rig_of, log, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_STREAM_INTERVAL", "4")
    on = name == "FD_USE_HF_TOKENIZER"
    monkeypatch.setenv(name, str(int(on)))
    processor = rig_of("plain").processor
    if name != "FD_POSTPROC_API":
        monkeypatch.setattr(processor.fd.envs, name, on, raising=False)
    assert name in processor.parts.lifecycle._why_not_joined()


WORDS = [
    ("4", (4, 0.05), "WARNING"),
    ("10, 200", (10, 0.2), "WARNING"),
    ("0", (0, 0.05), None),
    ("1", (0, 0.0), "ERROR"),
    ("-4", (0, 0.0), "ERROR"),
]


@pytest.mark.parametrize(("value", "interval", "level"), WORDS)
def test_the_log_says_whether_it_is_used(value, interval, level, rig_of, log, monkeypatch):
    """A rig has no scheduler of FastDeploy's, and so no fast path into it."""
    monkeypatch.setenv("FD_POSTPROC_STREAM_INTERVAL", value)
    assert rig_of("plain").processor.parts.pairing.delivery.interval == interval
    said = [one for one in log.records if "STREAM_INTERVAL" in one.getMessage()]
    assert [one.levelname for one in said] == ([] if level is None else [level])


# ---- the same is said ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channel", "mode"),
    [
        ("spec_topk", {}),
        ("topk", {"multimodal": True}),
        *(pytest.param(one, {}, marks=pytest.mark.nightly) for one in ("plain", "topk", "spec")),
    ],
)
def test_random_requests_get_the_same(channel, mode, services, clock):
    own = {"multimodal_inputs": {"num_input_image_tokens": 1}} if mode else {}
    slots, taken, counts = 5, [], []
    for tokens in (0, 4, 10):
        rng, service, names = random.Random(7), services(tokens, channel, slots=slots), iter(range(1000))
        seated, made = {}, {}
        for _ in range(60):
            for slot in range(slots):
                if slot not in seated and rng.random() < 0.5:
                    name = seated[slot] = f"request {next(names)}"
                    service.scheduler.requests[name] = None
                    service.rig.insert(name, slot, **own)
            step = {}
            for slot, name in seated.items():
                most = 3 if channel.startswith("spec") else 1
                step[slot] = [rng.randrange(5, 99) for _ in range(rng.randint(min(1, most), most))]
                fate = rng.random()
                if fate < 0.04:
                    step[slot][-1] = END
                elif fate < 0.06:
                    service.rig.manager.to_be_aborted_req_id_set.add(name)
                    step[slot] = -9
                elif fate < 0.07:
                    service.rig.requests[name].metrics = None  # its step raises
            service.rig.step(step)
            assert not service.rig.escaped
            for slot, name in list(seated.items()):
                made.setdefault(name, []).append((clock.at, service.rig.processor.tokens_counter.get(name)))
                if service.rig.has_left(name, slot):
                    del seated[slot]
            clock.at += rng.choice((0.001, 0.01, 0.03))
            if rng.random() < 0.7:
                service.take()
                for name in seated.values():
                    due = [count for at, count in made[name] if at + SECONDS <= clock.at and count]
                    sent = sum(len(one.outputs.token_ids) for one in service.taken.get(name, ()))
                    assert sent >= max(due, default=0)
        clock.at += 1
        service.take()
        without = {"metrics": None}  # they have clocks
        told = {name: [one | without for one in as_sent(many)] for name, many in service.taken.items()}
        taken.append({name: joined(results) for name, results in told.items()})
        counts.append(sum(map(len, service.taken.values())))
    assert taken[0] == taken[1] == taken[2]
    assert counts[2] < counts[1] < 0.8 * counts[0]
    assert len(taken[0]) > 5
