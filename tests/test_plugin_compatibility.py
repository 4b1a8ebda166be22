"""The plug-in's check of itself: both classes on canned steps, in a sandbox."""

import enum
import importlib.util
import os
import sys
import threading
import types

import pytest
from quiet import Double, imported

from fd_postproc.fastdeploy.trial import compatibility
from fd_postproc.fastdeploy.trial.compatibility import compare
from fd_postproc.fastdeploy.trial.differences import difference
from fd_postproc.fastdeploy.trial.facts import Facts
from fd_postproc.fastdeploy.trial.private_metrics import PrivateMetrics, private_copy
from fd_postproc.fastdeploy.trial.sandbox import SILENT, Sandbox

pytestmark = pytest.mark.framework

VARIANT = "fastdeploy.output.token_processor_variant"


@pytest.fixture
def real():
    """FastDeploy's module, as the engine has it."""
    return Double().output__token_processor


@pytest.fixture
def variant(real, monkeypatch):
    """The same text loaded once more, to be changed by the test."""
    spec = importlib.util.spec_from_file_location(VARIANT, real.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, VARIANT, module)
    spec.loader.exec_module(module)
    return module


def same(module):
    """A class of our own that is FastDeploy's."""
    return type("Same", (module.TokenProcessor,), {"fd": module})


def ours(**changed):
    """make_class of a class of ours with some methods changed; each gets the inherited method first."""

    def make(module):
        base = module.TokenProcessor

        def override(name, method):
            inherited = getattr(base, name)
            return lambda self, *arguments, **named: method(inherited, self, *arguments, **named)

        body = {name: override(name, method) for name, method in changed.items()}
        return type("Ours", (base,), {"fd": module, **body})

    return make


# ---- Equal classes ------------------------------------------------------------------------------------


def test_equal_classes_are_compatible_and_the_features_are_told(real):
    verdict = compare(real, same)
    assert verdict.compatible, verdict.reason
    assert "columns in the header of topk and spec_topk" in verdict.features
    assert {"metrics without labels", "draft logprobs", "sampling masks"} <= set(verdict.features)


def test_our_class_is_compatible(real):
    from fd_postproc.fastdeploy.engine.processor import make_class

    verdict = compare(real, make_class)
    assert verdict.compatible, verdict.reason


def test_the_check_is_made_once_for_a_module(variant, monkeypatch):
    made = []

    def make(module):
        made.append(module)
        return same(module)

    first = compatibility.check(variant, make)
    assert compatibility.check(variant, make) is first
    assert len(made) == 1
    assert 0 < first.seconds < 100


# ---- Differences --------------------------------------------------------------------------------------


def late_index(inherited, self, *arguments):
    result = inherited(self, *arguments)
    result.outputs.send_idx += 1
    return result


def shared_metrics(inherited, self, task, *arguments):
    inherited(self, task, *arguments)
    return task.metrics


def float_ranks(inherited, self):
    received = inherited(self)
    return received._replace(ranks=received.ranks and [float(rank) for rank in received.ranks])


def no_observation(inherited, self, task, now, tokens):
    task.last_token_time = now
    self.fd.main_process_metrics.generation_tokens_total.inc(len(tokens))


def one_more_success(inherited, self, task, now):
    inherited(self, task, now)
    self.fd.main_process_metrics.request_success_total.inc()


def no_trace(inherited, self, task, *events):
    pass


def draft_dropped(inherited, self, results, mtype):
    for result in results if mtype == 4 else ():
        result.outputs.draft_top_logprobs = None
    return inherited(self, results, mtype)


def not_told(inherited, self, task):
    self.cached_generated_tokens.put_results([])


def step_not_counted(inherited, self, name, count):
    if count >= 0:
        inherited(self, name, count)


def raises(inherited, self, *arguments):
    raise LookupError("planted")


def kept_slot(inherited, self, task_id, index, task, result=None, is_prefill=False):
    stamps = inherited(self, task_id, index, task, result, is_prefill)
    self.tokens_counter[task_id] = 0
    return stamps


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"_new_result": late_index}, "send_idx: 0 is expected, ours is 1"),
        ({"_stamp": shared_metrics}, "changed by a later step"),
        ({"_decode_topk": float_ranks}, "sampled_token_ranks"),
        ({"_record_metrics": no_observation}, "time_per_output_token"),
        ({"_record_completion_metrics": one_more_success}, "request_success_total"),
        ({"_print_trace": no_trace}, "trace events"),
        ({"_deliverable": draft_dropped}, "draft logprobs: "),
        ({"_put_abort_results": not_told}, "results put"),
        ({"_record_speculative_decoding_accept_num_per_request": step_not_counted}, "rejected_tokens"),
        ({"_finish": raises}, "ours raises LookupError: planted"),
        ({"_recycle_resources": kept_slot}, "tokens_counter"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_difference_is_found_and_named(real, changed, told):
    if os.environ.get("FD_POSTPROC_FASTDEPLOY"):
        pytest.skip("these methods are the restated step's")
    verdict = compare(real, ours(**changed))
    assert not verdict.compatible
    assert told in verdict.reason


def test_a_result_that_another_process_could_not_read_is_a_difference(real, monkeypatch):
    def make(module):
        body = {"__slots__": (), "__module__": __name__}
        outputs = type("CompletionOutput", (module.CompletionOutput,), body)
        monkeypatch.setitem(globals(), "CompletionOutput", outputs)

        def new_result(self, *arguments):
            result = module.TokenProcessor._new_result(self, *arguments)
            result.outputs = outputs(
                **{name: getattr(result.outputs, name) for name in result.outputs.__dataclass_fields__}
            )
            return result

        return type("Ours", (module.TokenProcessor,), {"fd": module, "_new_result": new_result})

    monkeypatch.setitem(sys.modules, __name__, types.SimpleNamespace(__dict__=globals()))
    verdict = compare(real, make)
    assert not verdict.compatible
    assert "ickl" in verdict.reason


def test_an_exception_in_fastdeploys_own_class_is_no_verdict(variant):
    def broken(self, *arguments):
        raise OSError("planted")

    variant.TokenProcessor._decode_spec = broken
    verdict = compare(variant, same)
    assert not verdict.compatible
    assert verdict.reason.startswith("cannot tell: ")
    assert "planted" in verdict.reason


def test_a_class_that_cannot_be_made_is_no_verdict(real):
    def make(module):
        raise TypeError("LogprobsLists is something else")

    assert compare(real, make).reason == "cannot tell: TypeError: LogprobsLists is something else"


# ---- What varies between versions ---------------------------------------------------------------------


def test_an_older_fastdeploy_is_not_served(variant, monkeypatch):
    monkeypatch.delattr(variant, "SpeculateMetrics")
    verdict = compare(variant, same)
    assert not verdict.compatible
    assert "has no SpeculateMetrics; served are FastDeploy 2.4 to 2.6" in verdict.reason


def test_requests_without_stamps_of_their_own_are_not_served(variant):
    variant.RequestMetrics = type("RequestMetrics", (), {})
    assert "older than 2.4" in compare(variant, same).reason


def test_requests_of_another_form_can_be_made(variant):
    """Arguments without a default, others missing, no status of a prefill that is running."""

    class Request(variant.Request):
        def __init__(self, request_id, sampling_params, prompt_token_ids_len, eos_token_ids, metrics):
            super().__init__(
                request_id,
                prompt_token_ids_len=prompt_token_ids_len,
                eos_token_ids=eos_token_ids,
                metrics=metrics,
                sampling_params=sampling_params,
            )

    variant.Request = Request
    variant.RequestStatus = enum.Enum("RequestStatus", "RUNNING RUNNING_DECODE")
    variant.RequestStatus.RUNNING_PREFILL = None
    verdict = compare(variant, same)
    assert verdict.compatible, verdict.reason


def test_headers_without_columns_are_recognised_and_served(variant):
    Received = imported("fd_postproc.bench.baseline.messages").Received

    def decode_topk(self):
        batch, columns = int(self.output_tokens[1, 0]), self.fd.K + 1
        ids = self.output_tokens.numpy()[2 : 2 + batch * columns].reshape([batch, columns])
        scores = self.output_scores.numpy()[: batch * columns].reshape([batch, columns])
        ranks = self.output_ranks.numpy()[:batch]
        return Received(3, batch, None, ids.tolist(), scores.tolist(), ranks.tolist())

    variant.TokenProcessor._decode_topk = decode_topk
    verdict = compare(variant, same)
    assert verdict.compatible, verdict.reason
    assert "columns in the header of spec_topk" in verdict.features


def test_the_older_name_of_the_aborted_set_is_found(variant):
    def let_go(self, name, task):
        manager = self.resource_manager
        if name in manager.abort_req_ids_set:
            manager.recycle_abort_task(name)
            self._put_abort_results(task)
        if name in manager.to_be_rescheduled_request_id_set:
            manager.reschedule_preempt_task(name)

    def is_discarded(self, name):
        manager = self.resource_manager
        both = manager.to_be_rescheduled_request_id_set, manager.abort_req_ids_set
        return bool(self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER) and any(name in names for names in both)

    variant.TokenProcessor = type(
        "TokenProcessor",
        (variant.TokenProcessor,),
        {"_let_go": let_go, "_is_discarded": is_discarded, "__module__": __name__},
    )
    facts = Facts.of(variant, Sandbox(variant))
    assert facts.abort_set == "abort_req_ids_set"
    verdict = compare(variant, same)
    assert verdict.compatible, verdict.reason
    assert "aborts by abort_req_ids_set" in verdict.features


def labelled(variant):
    """FastDeploy's metrics since its pull request #7865, as far as one of them goes."""
    kept = []

    class Labelled(type(variant.main_process_metrics)):
        def __init__(self):
            pass

        def __getattr__(self, name):
            return getattr(real_metrics, name)

        def inc_value(self, name, value, labelvalues):
            kept.append((name, value, labelvalues))

        obs_value = set_value = inc_value

    def record(self, task, now, tokens):
        task.last_token_time = now
        self.fd.main_process_metrics.inc_value("generation_tokens_total", len(tokens), {"model": "m"})

    real_metrics = variant.main_process_metrics
    variant.main_process_metrics = Labelled()
    variant.TokenProcessor._record_metrics = record
    return kept


def test_labelled_metrics_are_compared_by_name_and_label(variant):
    kept = labelled(variant)
    verdict = compare(variant, same)
    assert verdict.compatible, verdict.reason
    assert "labelled metrics" in verdict.features
    assert kept == []

    def unlabelled(inherited, self, task, now, tokens):
        task.last_token_time = now
        self.fd.main_process_metrics.generation_tokens_total.inc(len(tokens))

    verdict = compare(variant, ours(_record_metrics=unlabelled))
    assert not verdict.compatible
    assert "generation_tokens_total" in verdict.reason


# ---- Our class on another FastDeploy ------------------------------------------------------------------


def changed_default(variant):
    def new_result(self, *arguments):
        result = StockNewResult(self, *arguments)
        result.outputs.reasoning_token_num = 7
        return result

    StockNewResult = variant.TokenProcessor._new_result
    variant.TokenProcessor._new_result = new_result


def added_field(variant):
    def finish(self, slot, task, result, *arguments):
        StockFinish(self, slot, task, result, *arguments)
        result.finish_reason = "stop"

    StockFinish = variant.TokenProcessor._finish
    variant.TokenProcessor._finish = finish


def renamed_key(variant):
    class RequestOutput(variant.RequestOutput):
        def to_dict(self):
            told = super().to_dict()
            told["is_finished"] = told.pop("finished")
            return told

    RequestOutput.__module__, RequestOutput.__qualname__ = VARIANT, "RequestOutput"
    variant.RequestOutput = RequestOutput


@pytest.mark.parametrize("plant", [changed_default, added_field])
def test_our_class_stands_aside_where_fastdeploys_step_differs(variant, plant):
    from fd_postproc.fastdeploy.engine.processor import make_class

    plant(variant)
    verdict = compare(variant, make_class)
    assert not verdict.compatible
    assert any(word in verdict.reason for word in ("reasoning_token_num", "finish_reason")), verdict.reason


def test_our_class_follows_a_renamed_key(variant):
    from fd_postproc.fastdeploy.engine.processor import make_class

    renamed_key(variant)
    verdict = compare(variant, make_class)
    assert verdict.compatible, verdict.reason


# ---- Nothing outside is touched -----------------------------------------------------------------------


def samples():
    return imported("fastdeploy.metrics.metrics").get_filtered_metrics()


def test_nothing_of_the_real_module_registry_or_environment_changes(real):
    from prometheus_client import REGISTRY

    before = dict(vars(real)), dict(vars(real.TokenProcessor)), dict(os.environ), samples()
    collectors, threads = set(REGISTRY._collector_to_names), threading.active_count()
    modules = set(sys.modules)
    assert compare(real, same).compatible
    after = dict(vars(real)), dict(vars(real.TokenProcessor)), dict(os.environ), samples()
    assert all(left.keys() == right.keys() for left, right in zip(before[:3], after[:3], strict=True))
    assert all(after[i][key] is value for i in (0, 1) for key, value in before[i].items())
    assert before[2:] == after[2:]
    assert set(REGISTRY._collector_to_names) == collectors
    assert threading.active_count() == threads
    assert set(sys.modules) == modules


def test_other_threads_see_the_real_names_during_the_check(real):
    names = ("main_process_metrics", "trace_print", "llm_logger", "time", "envs")
    wanted = [getattr(real, name) for name in names]
    seen, done = set(), threading.Event()

    def watch():
        while not done.is_set():
            seen.add(all(getattr(real, name) is value for name, value in zip(names, wanted, strict=True)))
            done.wait(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    compare(real, same)
    done.set()
    watcher.join()
    assert seen == {True}


# ---- The sandbox --------------------------------------------------------------------------------------


def test_the_sandbox_replaces_what_acts_and_keeps_what_is_data(real):
    box = Sandbox(real).module
    assert box.RequestOutput is real.RequestOutput
    assert box.RequestStatus is real.RequestStatus
    assert box.MAX_BSZ == real.MAX_BSZ
    assert box.llm_logger is SILENT
    assert box.TokenProcessor is not real.TokenProcessor
    assert box.main_process_metrics is not real.main_process_metrics
    for cls in box.TokenProcessor.__mro__:
        for value in vars(cls).values():
            if isinstance(value, types.FunctionType):
                assert value.__globals__ is not vars(real)


def test_the_sandbox_copies_every_kind_of_method(variant):
    source = """
import functools
def doubled(function):
    @functools.wraps(function)
    def call(self):
        return 2 * function(self)
    return call
class Base:
    def who(self): return "base of " + NAME
class TokenProcessor(Base):
    fd = None
    table = {"a": 1}
    def who(self): return super().who()
    @staticmethod
    def fixed(): return NAME
    @classmethod
    def named(cls): return cls.__name__ + NAME
    @property
    def shown(self): return NAME
    @doubled
    def twice(self): return NAME
    def default(self, a=1, *, b=NAME if "NAME" in globals() else None): return a
NAME = "real"
main_process_metrics = None
"""
    module = types.ModuleType("kinds_of_methods")
    exec(source, vars(module))
    module.TokenProcessor.fd = module
    box = Sandbox(module)
    box.module.NAME = "private"
    cls = box.module.TokenProcessor
    one = cls()
    assert (one.who(), one.fixed(), one.named()) == ("base of private", "private", "TokenProcessorprivate")
    assert (one.shown, one.twice(), one.default()) == ("private", "privateprivate", 1)
    assert one.fd is box.module
    cls.table["a"] = 2
    assert module.TokenProcessor.table == {"a": 1}
    assert module.TokenProcessor().who() == "base of real"


def test_the_clock_of_the_sandbox_ends_waits_without_an_end(real):
    clock = Sandbox(real).clock
    for _ in range(50):
        clock.sleep(0.005)
    with pytest.raises(RuntimeError, match="never comes"):
        clock.sleep(0.005)


def test_private_metrics_have_the_real_buckets_and_their_own_values(real):
    metrics = PrivateMetrics(real.main_process_metrics)
    theirs, own = real.main_process_metrics.time_per_output_token, metrics.time_per_output_token
    before = [bucket.get() for bucket in theirs._buckets]
    assert type(own) is type(theirs)
    assert own._upper_bounds == theirs._upper_bounds
    own.observe(0.03)
    assert [bucket.get() for bucket in theirs._buckets] == before
    assert metrics.samples()["time_per_output_token"]["_sum"] == 0.03
    metrics.reset()
    assert metrics.samples() == {}
    assert metrics.time_per_output_token is own
    with pytest.raises(AttributeError):
        metrics.no_such_metric  # noqa: B018


def test_metrics_with_labels_are_not_made_in_the_shared_file():
    imported("fastdeploy.metrics.metrics")
    from prometheus_client import CollectorRegistry, Counter

    counter = Counter("trial_of_labels", "A test's.", ["model"], registry=CollectorRegistry())
    copied = private_copy(counter)
    copied.labels("m").inc(2)
    assert copied.labels("m").value == 2
    assert "trial_of_labels" not in samples()


# ---- The comparison -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "actual", "told"),
    [
        ({"a": 1}, {"a": True}, ", a: 1 is expected, ours is True"),
        ({"a": 1}, {"b": 1}, ": ours lacks 'a'"),
        ({"a": 1}, {"a": 1, "b": 2}, ": ours has 'b' besides"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "in the order"),
        ([1, [2.0]], [1, [3.0]], "[1][0]: 2.0 is expected, ours is 3.0"),
        ([1], [1, 2], "1 entries are expected, ours has 2"),
        ({"metrics": 1.0}, {"metrics": 1.4}, None),
        ({"metrics": 1.0}, {"metrics": 1.6}, ", metrics: 1.0 is expected"),
        ({"score": 1.0}, {"score": 1.4}, ", score"),
        (0.0, -0.0, ": 0.0 is expected"),
        (float("nan"), float("nan"), None),
        (None, None, None),
    ],
)
def test_values_are_compared_strictly_and_stamps_by_nearness(expected, actual, told):
    found = difference(expected, actual, slack=0.5)
    assert found is None if told is None else told in found


def test_facts_are_read_from_the_code(real):
    facts = Facts.of(real, Sandbox(real))
    assert facts.abort_set == "to_be_aborted_req_id_set"
    assert facts.packed_topk
    assert facts.packed_spec_topk
    assert facts.speculative_mark
    assert not facts.labelled
