"""Objects used as FastDeploy's own unit tests use them: what works with its class works with the plug-in's.

Those tests make objects without __init__, with stubs for tasks and configuration, replace methods by
mocks, and patch names of the module.  Here both classes are treated alike, and must do alike.
"""

import copy
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from tests.lib.plugged import plugin_class, stock_class
from tests.lib.quiet import imported
from tests.lib.rows import each
from tests.lib.unit_style import CHANNELS, END, STEPS, bare, bare_task, module, outcome, real_request, write

pytestmark = pytest.mark.framework

of_both = each("made", [stock_class, plugin_class])


def assert_as_good(channel, change=None, **options):
    """Ours does what FastDeploy's does, if FastDeploy's does anything."""
    stock, _ = outcome(stock_class(), channel, change, **options)
    if "failed" not in stock:
        assert outcome(plugin_class(), channel, change, **options)[0] == stock
    return stock


# ---- Few attributes ------------------------------------------------------------------------------------


@each("make", [bare_task, real_request])
@each("channel", CHANNELS)
def test_an_object_without_init(channel, make):
    stock = assert_as_good(channel, make=make)
    assert stock["tokens"][0] == ([5, 6, 10, 16] if channel.startswith("spec") else [5, 10, 16])
    assert stock["puts"][0][1]["outputs"]["token_ids"] in ([8], [8, 9])


@each(
    "channel, make",
    [("plain", bare_task), ("topk", real_request), ("spec", real_request), ("spec_topk", bare_task)],
)
def test_what_fastdeploys_class_can_do_without_ours_can(channel, make):
    needed = set()
    for name in outcome(stock_class(), channel)[1]:
        stock = assert_as_good(channel, lambda processor, name=name: delattr(processor, name), make=make)
        if "failed" in stock:
            needed.add(name)
    assert {"cfg", "resource_manager", "output_tokens", "tokens_counter"} <= needed
    assert {"executor", "split_connector", "worker"}.isdisjoint(needed)


@each("channel, part", [("plain", "task"), ("spec_topk", "manager"), ("plain", "cfg")])
def test_what_fastdeploys_class_does_not_ask_of_others_ours_does_not(channel, part):
    """Attributes of a task, of the resource manager and of the configuration, one less at a time."""

    def holders(processor):
        if part == "cfg":
            return [processor.cfg, *vars(processor.cfg).values()]
        manager = processor.resource_manager
        return [manager] if part == "manager" else [manager.tasks_list[0]]

    def names(processor):
        seen.extend((i, name) for i, holder in enumerate(holders(processor)) for name in vars(holder))

    seen = []
    outcome(stock_class(), channel, names)
    fails = 0
    for i, name in seen:
        stock = assert_as_good(
            channel, lambda processor, i=i, name=name: delattr(holders(processor)[i], name)
        )
        fails += "failed" in stock
    assert 0 < fails < len(seen)


@each("get", [lambda key, default=None: None, lambda key, default=None: default])
@each("channel", CHANNELS)
def test_a_task_whose_get_knows_nothing(channel, get):
    def change(processor):
        processor.resource_manager.tasks_list[0].get = get

    assert "failed" not in assert_as_good(channel, change)


@of_both
def test_a_configuration_of_mocks(made):
    cls = made()
    cfg = mock.MagicMock()
    cfg.parallel_config.local_data_parallel_id = 0
    cfg.parallel_config.engine_worker_queue_port = ["9700"]
    cfg.speculative_config.method = "mtp"
    cfg.speculative_config.num_speculative_tokens = 3
    cfg.model_config.enable_logprob = True
    cfg.model_config.enable_keep_sampling_mask = False
    processor = cls(cfg, mock.MagicMock(), mock.MagicMock(), mock.MagicMock())
    assert isinstance(processor, cls)
    assert processor.use_logprobs is True
    assert processor.healthy()
    processor._finalizer()


# ---- Methods that are called, and replaced -------------------------------------------------------------

HOOKS = (
    *("_recycle_resources", "_record_metrics", "_record_first_token_metrics", "_record_completion_metrics"),
    *("_record_speculative_decoding_metrics", "_compute_speculative_status", "_finalize_routing"),
    *("_record_speculative_decoding_accept_num_per_request", "_is_decode_stage", "postprocess"),
)


@each("hook", HOOKS)
@each("make", [bare_task, real_request])
@each("channel", ["plain", "spec_topk"])
def test_a_replaced_method_is_called_as_often(channel, hook, make):
    """By both classes with as many arguments, positional or not."""
    counts = []
    for cls in (stock_class(), plugin_class()):
        replaced = mock.Mock(return_value=None)

        def change(processor, replaced=replaced):
            processor.scheduler_metrics_logger = mock.Mock()
            setattr(processor, hook, replaced)

        # No end: whose statistics are not counted, FastDeploy cannot finish.
        steps = STEPS[:4] if "accept_num" in hook else STEPS
        made, _ = outcome(cls, channel, change, steps, make)
        assert "failed" not in made
        counts.append([len(call.args) + len(call.kwargs) for call in replaced.call_args_list])
    assert counts[0] == counts[1]


@of_both
def test_put_abort_results_is_called_and_may_be_replaced(made):
    cls = made()
    processor, _ = bare(cls, "plain", [bare_task("req-0"), bare_task("req-1")])
    processor.resource_manager.to_be_aborted_req_id_set.add("req-1")
    processor._put_abort_results = mock.Mock()
    write(processor, "plain", 5, -9)
    with mock.patch.object(module().envs, "ENABLE_V1_KVCACHE_SCHEDULER", True, create=True):
        processor._process_batch_output()
    processor._put_abort_results.assert_called_once_with(processor.resource_manager.tasks_list[1])


@of_both
def test_postprocess_pairs_whatever_looks_like_a_result(made):
    """Outputs may be stand-ins with little more than the one attribute."""
    cls = made()
    processor, _ = bare(cls, "spec_topk", [])
    fd = module()
    target, draft = (
        fd.RequestOutput(request_id="r", outputs=SimpleNamespace(draft_top_logprobs=logprobs), finished=False)
        for logprobs in (None, "rows of the draft")
    )
    processor.postprocess([target], mtype=3)
    assert processor._batch_result_buffer == [target]
    processor.postprocess([draft], mtype=4)
    put = processor.cached_generated_tokens.put_results
    put.assert_called_once()
    assert put.call_args.args[0] == [target]
    assert target.outputs.draft_top_logprobs == "rows of the draft"
    assert processor._batch_result_buffer is None


@of_both
def test_a_waiting_stand_in_gets_the_rows_of_a_draft_message(made):
    cls = made()
    processor, _ = bare(cls, "spec_topk", [bare_task("r"), bare_task("s")])
    waiting = module().RequestOutput(
        request_id="r", outputs=SimpleNamespace(draft_top_logprobs=None), finished=False
    )
    processor._batch_result_buffer = [waiting]
    write(processor, "spec_topk", (5,), (6,), flag=4)
    processor._process_batch_output()
    assert processor.cached_generated_tokens.put_results.call_args.args[0] == [waiting]
    assert waiting.outputs.draft_top_logprobs.logprob_token_ids[0][0] == 5


@of_both
def test_postprocess_passes_on_and_swallows(made):
    cls = made()
    processor, _ = bare(cls, "spec_topk", [])
    result = module().RequestOutput(request_id="r", outputs=None, finished=False)
    processor.postprocess([result], mtype=99)
    processor.cached_generated_tokens.put_results.assert_called_once_with([result])
    processor.cached_generated_tokens.put_results.side_effect = RuntimeError("boom")
    processor.postprocess([result], mtype=99)
    assert processor.cached_generated_tokens.put_results.call_count == 2


@each("status", ["finished", "failed"])
@of_both
def test_recycle_resources_of_a_prefilled_request(made, status):
    cls = made()
    task = bare_task("r")
    task.disaggregate_info = {"role": "prefill"}
    processor, _ = bare(cls, "plain", [task])
    processor.engine_worker_queue.get_finished_req.side_effect = [[("r", status)]]
    result = module().RequestOutput(request_id="r", outputs=None, metrics=copy.copy(task.metrics))
    with mock.patch.object(module().envs, "ENABLE_V1_KVCACHE_SCHEDULER", False, create=True):
        processor._recycle_resources("r", 0, task, result, is_prefill=True)
    assert processor.resource_manager.stop_flags == [True]
    assert processor.resource_manager.tasks_list == [None]
    assert result.error_code == (200 if status == "finished" else 501)
    processor.split_connector.send_first_token.assert_called_once_with({"role": "prefill"}, [result])
    assert "r" not in processor.tokens_counter


@of_both
def test_draft_results_of_arrays(made):
    cls = made()
    processor, _ = bare(cls, "spec_topk", [bare_task("r"), bare_task("s"), bare_task("t")])
    processor.resource_manager.stop_flags[1] = True
    ids = np.arange(3 * 6 * 4).reshape(3, 6, 4)
    results = processor._process_batch_draft_tokens(
        4, batch=3, accept_num=[2, 1, 0], tokens=ids, scores=ids / 2, ranks=ids[:, :, 0]
    )
    assert [result.outputs.index for result in results] == [0, 2]
    assert results[0].outputs.draft_top_logprobs.logprob_token_ids == ids[0, :2].tolist()
    assert results[1].outputs.draft_top_logprobs is None


# ---- Names of the module -------------------------------------------------------------------------------


@each("channel", CHANNELS)
def test_switches_are_read_at_each_step(channel):
    """Patched on the module that FastDeploy reads them from, or that whole module replaced."""
    envs = {"ENABLE_V1_KVCACHE_SCHEDULER": 0, "FD_ENABLE_INTERNAL_ADAPTER": 1, "FD_USE_GET_SAVE_OUTPUT_V1": 0}
    with mock.patch.object(module(), "envs", SimpleNamespace(**envs)):
        stock = assert_as_good(channel)
        assert ("recycle", "req-1") in stock["manager"]
        assert END not in stock["puts"][-1][-1]["outputs"]["token_ids"]
    with mock.patch.dict("os.environ", {"ENABLE_V1_KVCACHE_SCHEDULER": "1"}):
        assert ("finish", "req-1") in assert_as_good(channel)["manager"]


@each("channel", ["plain", "spec"])
def test_log_lines_go_to_the_modules_logger(channel):
    for cls in (stock_class(), plugin_class()):
        with mock.patch.object(module(), "llm_logger", mock.Mock()) as log:
            assert "failed" not in outcome(cls, channel)[0]
        lines = [str(call.args[0]) for call in log.info.call_args_list]
        for name in ("req-0", "req-1"):
            assert any(name in line for line in lines), lines
        assert log.error.call_count == log.warning.call_count == 0


def test_mock_metrics_are_told_what_fastdeploy_tells_them():
    stock = assert_as_good("spec_topk")
    names = Counter(call.split("'")[1] for call in stock["calls"])
    assert names["time_to_first_token.observe"] == 2
    assert names["time_per_output_token.observe"] == 4
    assert names["request_success_total.inc"] == 1
    assert names["trace_print"] > 2


@of_both
def test_stamps_are_set_by_the_request(made):
    """One whose metrics do something else in record_recv_token is asked, each time."""
    cls = made()
    asked = []

    class Stamps(imported("fastdeploy.engine.request").RequestMetrics):
        def record_recv_token(self, *arguments):
            asked.append("token")
            super().record_recv_token(*arguments)

    task = bare_task("r")
    task.metrics = Stamps(arrival_time=1.0, inference_start_time=2.0, preprocess_end_time=1.5)
    processor, _ = bare(cls, "plain", [task, None])
    for token in (5, 6, 8):
        write(processor, "plain", token, 9)
        processor._process_batch_output()
    assert asked == ["token"] * 3  # the first, too: by record_recv_first_token


# ---- The thread ----------------------------------------------------------------------------------------


@each("zmq", [False, True])
@of_both
def test_run_starts_one_daemon_thread(made, zmq):
    cls = made()
    processor, _ = bare(cls, "plain", [])
    environment = {"FD_USE_GET_SAVE_OUTPUT_V1": str(int(zmq))}
    with (
        mock.patch.dict("os.environ", environment),
        mock.patch("fastdeploy.output.token_processor.threading.Thread") as thread,
    ):
        processor.run()
        with pytest.raises(Exception, match=r".+"):
            processor.run()
    loop = "process_sampling_results_use_zmq" if zmq else "process_sampling_results"
    assert thread.call_args.kwargs["target"].__func__ is getattr(type(processor), loop)
    assert thread.call_args.kwargs["daemon"] is True
    thread.return_value.start.assert_called_once_with()


@of_both
def test_run_needs_a_resource_manager(made):
    cls = made()
    processor, _ = bare(cls, "plain", [])
    processor.resource_manager = None
    with pytest.raises(AssertionError):
        processor.run()
