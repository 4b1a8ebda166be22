"""Our token processor beside FastDeploy's own, on the real classes."""

import ast

import pytest

from tests.lib.real_tree import LIB, check, each_tree, run, serves
from tests.lib.service_tool import TREES

pytestmark = pytest.mark.fastdeploy

OTHER_FORMS = {
    ("save_output", 3),  # an op of Intel HPU's
    ("speculate_save_output_topk", 9),  # of the XPU proposer, whose build has no such op
    ("save_output", 4),  # the others before preempted_idx: until January 2026
    ("save_output_topk", 6),
    ("speculate_save_output", 5),
    ("speculate_save_output", 8),
}

# What FastDeploy's unit tests assert of texts in its log, which are ours to choose.
OF_TEXTS = frozenset(
    {
        "test_process_batch_output.py::TestTokenProcessorProcessBatchOutput::"
        "test_process_batch_output_aborted_task_negative_token_speculative_decoding"
    }
)

# The dispatcher ends for good after an error; ours goes on (`api.dispatcher`).
OF_ENDS = frozenset(
    f"test_dealer_connection_manager.py::TestDealerConnectionManagerAsync::test_dispatch_{what}"
    for what in (
        "connection_error_exits_loop",
        "os_error_exits_loop",
        "generic_error_increments_and_exits_after_max",
    )
)

# Asks a part of an answer for its class; the parts of ours are stand-ins, which only an answer holds.
OF_PARTS = frozenset(
    {"test_max_streaming_tokens.py::TestMaxStreamingResponseTokens::test_create_chat_completion_choice"}
)

TRIAL = """
import json, sys
from pathlib import Path
from tools.accept import accepting, reading
tree = Path(sys.argv[1])
found = reading.functions(tree, {})
new = accepting.new_in(tree, {}, found)
verdict = accepting.accepted(tree, {}, found, new, 24, lambda *at: None)
left = {why: sorted(parts) for why, parts in verdict.left.items()}
print("told: " + json.dumps([verdict.error, verdict.accepted, left]))
"""

WAY_OUT = """
import importlib, json
from tools.accept import prove
print("told: " + json.dumps(prove.way_out(importlib.import_module("fastdeploy.output.token_processor"))))
"""


@each_tree
def test_the_differential_trial_is_equal_or_a_reason_is_given(tree, tmp_path):
    """With a record that knows nothing, so that everything is tried; older trees send results one by one."""
    serves(tree)
    (error, accepted, left), _ = run(tree, TRIAL, tree, folder=tmp_path)
    older = "differs, or takes another way"
    assert error == ""
    assert "token processor" in accepted
    assert {why: parts for why, parts in left.items() if not why.endswith(older)} == {}


@each_tree
def test_random_steps_are_equal(tree, tmp_path):
    _random(tree, tmp_path, seed=0, results=2000)


@each_tree
def test_random_steps_are_equal_when_fastdeploy_looks_at_the_results(tree, tmp_path):
    """As its loops, its schedulers and its offline use look at each of them."""
    _random(tree, tmp_path, 0, 1000, "looked")


@each_tree
def test_results_are_packed_as_msgpack_packs_them(tree, tmp_path):
    serves(tree)
    if "_msgpack_default" not in (tree / "fastdeploy/inter_communicator/zmq_server.py").read_text():
        pytest.skip("it pickles results one by one, and its code sends them")
    told = _random(tree, tmp_path, 0, 2000, "packed")
    assert told["packed"] > 1500
    assert told["asked"] < told["packed"] / 2  # first tokens, ends, what is no steady state


@each_tree
def test_speculative_steps_come_through_fastdeploys_own_socket(tree, tmp_path):
    assert serves(tree, FD_USE_GET_SAVE_OUTPUT_V1="1")["compatible"]
    assert _random(tree, tmp_path, 0, 600, "sent")["sent"] > 30


@pytest.mark.nightly
@each_tree
def test_more_random_steps_are_equal(tree, tmp_path):
    told = _random(tree, tmp_path, seed=10_000, results=20_000)
    assert all(count > 100 for count in told["by"].values()), told["by"]
    source = (tree / "fastdeploy" / "output" / "token_processor.py").read_text()
    assert told["masks"] > 1000 * ("use_sampling_mask" in source)
    assert told["experts"] > 200 * ("routing_host_view" in source)


def _random(tree, tmp_path, seed, results, *looked):
    serves(tree)
    told, _ = run(tree, str(LIB / "random_trials.py"), seed, results, *looked, folder=tmp_path)
    assert told["difference"] is None, told
    assert len(told["refused_by_stock"]) <= told["scripts"] // 50, told["refused_by_stock"]
    return told


@each_tree
def test_results_go_out_the_fast_path(tree, tmp_path):
    serves(tree)
    told, _ = run(tree, WAY_OUT, folder=tmp_path)
    if "_msgpack_default" not in (tree / "fastdeploy/inter_communicator/zmq_server.py").read_text():
        del told["sending"]  # it pickles results one by one
    assert set(told.values()) == {""}


@each_tree
def test_fastdeploys_own_unit_tests_pass_with_our_class(tree, tmp_path):
    """Those that pass on its own class do on ours."""
    serves(tree)
    stock, ours = (_unit_tests(tree, tmp_path / name, int(name == "ours")) for name in ("stock", "ours"))
    passed, passed_by_ours = (
        {name for name, outcome in told.items() if outcome == "passed"} for told in (stock, ours)
    )
    assert len(passed) > 10
    assert passed - passed_by_ours - OF_TEXTS == set()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("tree", "file"),
    [
        pytest.param(tree, file, id=f"{tree.name}-{file.relative_to(tree / 'tests')}")
        for tree in TREES
        for folder in ("output", "entrypoints", "scheduler", "inter_communicator", "engine", "metrics")
        for file in sorted((tree / "tests" / folder).rglob("test_*.py"))
    ],
)
def test_fastdeploys_own_unit_tests_do_the_same_with_the_plug_in_on(tree, file, tmp_path):
    """What passes, fails and is skipped without it does so with it; none waits for ever."""
    off, on = (
        {name: outcome for name, outcome in told.items() if name not in OF_ENDS | OF_PARTS}
        for told in (
            _unit_tests(tree, tmp_path / "off", file),
            _unit_tests(tree, tmp_path / "on", file, FD_PLUGINS="fd_postproc"),
        )
    )
    assert on == off


def _unit_tests(tree, folder, what, **variables):
    """The outcome of each test, by its name."""
    folder.mkdir()
    return run(tree, str(LIB / "unit_tests_of_a_tree.py"), what, folder=folder, **variables)[0]


@each_tree
def test_every_call_of_a_save_op_has_a_form_that_is_known(tree):
    """By the syntax tree of all of FastDeploy: other forms are left to its own op, and are listed here."""
    from fd_postproc.ops.table import SAVE_OPS

    check(tree)
    unknown = []
    for path in (tree / "fastdeploy").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(errors="replace"))):
            name = getattr(getattr(call, "func", None), "id", None)
            if not isinstance(call, ast.Call) or name not in SAVE_OPS:
                continue
            given, known = len(call.args), SAVE_OPS[name]
            most = len(known.parameters)
            forms = {most, most - known.has_shorter_form}
            if call.keywords or given not in forms:
                unknown.append((path.name, name, given))
    assert {one for one in unknown if one[1:] not in OTHER_FORMS} == set()
