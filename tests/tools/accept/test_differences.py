"""The differential trial: both classes on random steps; every difference is found and named."""

import os
import sys
import types

import pytest

from tests.lib.other_classes import difference_of, ours, same
from tests.lib.rows import each
from tools.accept import classes as compatibility
from tools.accept.differences import difference
from tools.accept.features import Facts
from tools.accept.sandbox import Sandbox

pytestmark = pytest.mark.framework


def test_our_class_in_fastdeploys_place_is_tried_beside_fastdeploys_own(real, monkeypatch):
    """Not beside itself, without an end."""
    from fd_postproc.fastdeploy.engine.processor_class import make_class

    monkeypatch.setattr(real, "TokenProcessor", make_class(real))
    assert difference_of(real, make_class) == ""


@each("default", [{}, {"watermark": 7}])
def test_our_class_is_compatible_also_with_another_argument_to_construct_it(variant, monkeypatch, default):
    from fd_postproc.fastdeploy.engine.processor_class import make_class

    stock = variant.TokenProcessor.__init__

    def init(self, cfg, cached_generated_tokens, engine_worker_queue, split_connector, *, watermark):
        stock(self, cfg, cached_generated_tokens, engine_worker_queue, split_connector)
        self.watermark = watermark

    init.__kwdefaults__ = default
    monkeypatch.setattr(variant.TokenProcessor, "__init__", init)
    assert difference_of(variant, make_class) == ""


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


@each(
    "changed, told",
    [
        ({"_new_result": late_index}, "send_idx: 1 is expected, ours is 2"),
        ({"_stamp": shared_metrics}, "changed by a later step"),
        ({"_decode_topk": float_ranks}, "sampled_token_ranks"),
        ({"_record_metrics": no_observation}, "time_per_output_token"),
        ({"_record_completion_metrics": one_more_success}, "request_success_total"),
        ({"_print_trace": no_trace}, "trace events"),
        ({"_deliverable": draft_dropped}, "draft_top_logprobs: "),
        ({"_put_abort_results": not_told}, "results put"),
        ({"_record_speculative_decoding_accept_num_per_request": step_not_counted}, "rejected_tokens"),
        ({"_finish": raises}, "ours raises LookupError: planted"),
        ({"_recycle_resources": kept_slot}, "tokens_counter"),
    ],
)
def test_a_difference_is_found_and_named(real, changed, told):
    if os.environ.get("FD_POSTPROC_FASTDEPLOY"):
        pytest.skip("these methods are the restated step's")
    assert told in difference_of(real, ours(**changed))


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
    assert "ickl" in difference_of(real, make)


def test_an_exception_in_fastdeploys_own_class_is_no_verdict(variant):
    def broken(self, *arguments):
        raise OSError("planted")

    variant.TokenProcessor._decode_spec = broken
    told = difference_of(variant, same)
    assert "spec, mixed: 0 of 6 ran: FastDeploy's own class fails" in told
    assert "planted" in told


def test_a_class_that_cannot_be_made_is_no_verdict(real):
    def make(module):
        raise TypeError("LogprobsLists is something else")

    assert difference_of(real, make) == "TypeError: LogprobsLists is something else"


# ---- The comparison -----------------------------------------------------------------------------------


@each(
    "expected, actual, told",
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
    with Sandbox(real) as box:
        facts = Facts.of(real, box)
    assert facts.abort_set == "to_be_aborted_req_id_set"
    assert facts.packed_topk
    assert facts.packed_spec_topk
    assert facts.speculative_mark


@each(
    "actual, told",
    [
        ([("a", 1), ("b", 2)], None),
        ([("a", 1)], "1 things happened, not 2"),
        ([("a", 1), ("c", 2)], "b in FastDeploy's class, c in ours"),
        ([("a", 1), ("b", 3)], "b: 2 is expected"),
    ],
)
def test_what_happened_is_compared_by_place_and_number(actual, told):
    found = compatibility._first_difference_in_lists([("a", 1), ("b", 2)], actual, slack=0.5)
    assert found is None if told is None else found.startswith(told)
