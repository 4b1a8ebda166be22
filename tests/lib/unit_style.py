"""Objects as FastDeploy's own unit tests make them: without __init__, with stubs and mocks."""

import time
from types import SimpleNamespace
from unittest import mock

from tests.lib.quiet import imported
from tests.lib.step_replay.judge import as_told

CHANNELS = ("plain", "topk", "spec", "spec_topk")
CLOCK = 1_763_000_100.0
END = 7
DRAFT = 4


def module():
    return imported("fastdeploy.output.token_processor")


class Recorder:
    """Stands for any object: every call is noted with its arguments, any attribute is such an object."""

    def __init__(self, calls=None, name=""):
        self._calls, self._name = [] if calls is None else calls, name

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return Recorder(self._calls, f"{self._name}.{name}".lstrip("."))

    def __getitem__(self, index):
        return Recorder(self._calls, f"{self._name}[{index}]")

    def __call__(self, *arguments, **named):
        self._calls.append([self._name, *arguments, *named.items()])


class Manager(SimpleNamespace):
    """As few things as a step needs of a resource manager."""

    def __init__(self, tasks):
        super().__init__(
            max_num_seqs=len(tasks),
            stop_flags=[task is None for task in tasks],
            tasks_list=list(tasks),
            req_dict={},
            requests={},
            to_be_rescheduled_request_id_set=set(),
            to_be_aborted_req_id_set=set(),
            calls=[],
        )

    def note(name, value=None):
        def method(self, *arguments):
            self.calls.append((name, *(getattr(each, "request_id", each) for each in arguments)))
            return value

        return method

    finish_requests_async = note("finish")
    recycle_abort_task = note("abort")
    reschedule_preempt_task = note("reschedule")
    _recycle_block_tables = note("recycle")
    cache_output_tokens = note("cache")
    info = note("info", "nothing to tell")
    total_block_number = note("blocks", 8)
    available_batch = note("free", 1)
    clear_data = note("clear")
    del note


def bare_task(name, **attributes):
    """A task that is no Request and has what a step reads."""
    request = imported("fastdeploy.engine.request")
    stamps = request.RequestMetrics(
        arrival_time=CLOCK - 3,
        preprocess_start_time=CLOCK - 2.5,
        preprocess_end_time=CLOCK - 2,
        inference_start_time=CLOCK - 1,
        scheduler_recv_req_time=CLOCK - 2.4,
    )
    stamps.decode_inference_start_time = CLOCK - 0.5
    task = SimpleNamespace(
        request_id=name,
        disaggregate_info=None,
        eos_token_ids=[END],
        metrics=stamps,
        output_token_ids=[],
        messages=[{"role": "user", "content": "hi"}],
        num_cached_tokens=3,
        ic_req_data=None,
        prompt_token_ids_len=4,
        num_total_tokens=1,
        block_tables=[1],
        status=request.RequestStatus.RUNNING_DECODE,
        trace_carrier=None,
        user="u",
        need_prefill_tokens=4,
        num_computed_tokens=4,
        multimodal_inputs=None,
        **attributes,
    )
    task.get = lambda key, default=None: getattr(task, key, default)
    return task


def real_request(name):
    """A Request with the same content."""
    bare = bare_task(name)
    request = imported("fastdeploy.engine.request").Request(request_id=name)
    for key, value in vars(bare).items():
        if key not in ("get", "num_total_tokens"):
            setattr(request, key, value)
    return request


def configuration(channel, role="mixed"):
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            local_data_parallel_id=0, enable_expert_parallel=False, data_parallel_size=1
        ),
        speculative_config=SimpleNamespace(
            method="mtp" if channel.startswith("spec") else None,
            num_speculative_tokens=2,
            enable_draft_logprob=channel == "spec_topk",
        ),
        model_config=SimpleNamespace(enable_logprob=channel.endswith("topk")),
        scheduler_config=SimpleNamespace(name="default", splitwise_role=role),
        cache_config=SimpleNamespace(
            enable_prefix_caching=False, enable_output_caching=False, block_size=64, total_block_num=8
        ),
        routing_replay_config=SimpleNamespace(enable_routing_replay=False),
    )


def tensors(channel):
    """As many elements as FastDeploy allocates."""
    paddle, fd = imported("paddle"), module()
    rows = fd.MAX_BSZ * (fd.MAX_DRAFT_TOKENS if channel == "spec_topk" else 1)
    shape = {
        "plain": [fd.MAX_BSZ + 2, 1],
        "topk": [rows * (fd.K + 1) + 2, 1],
        "spec": [fd.SPECULATE_MAX_BSZ * (fd.MAX_DRAFT_TOKENS + 1) + 2],
        "spec_topk": [rows * (fd.K + 1) + fd.MAX_BSZ + 3, 1],
    }[channel]
    made = {"output_tokens": paddle.full(shape, 2, "int64")}
    if channel.endswith("topk"):
        made["output_scores"] = paddle.full([rows * (fd.K + 1), 1], 0.0, "float32")
        made["output_ranks"] = paddle.full([rows], 0, "int64")
    return made


def bare(cls, channel, tasks):
    """An object without __init__, with what the newest of FastDeploy's classes keeps."""
    processor = cls.__new__(cls)
    attributes = {
        "cfg": configuration(channel),
        "cached_generated_tokens": mock.Mock(),
        "executor": mock.Mock(),
        "engine_worker_queue": mock.Mock(),
        "split_connector": mock.Mock(),
        "resource_manager": Manager(tasks),
        "scheduler_metrics_logger": None,
        "_benchmark_logger": None,
        "tokens_counter": {task.request_id: 0 for task in tasks if task is not None},
        "total_step": 0,
        "number_of_output_tokens": 0,
        "prefill_result_status": {},
        "use_logprobs": channel.endswith("topk"),
        "use_sampling_mask": False,
        "enable_draft_logprob": channel == "spec_topk",
        "speculative_decoding": channel.startswith("spec"),
        "_batch_result_buffer": None,
        "num_draft_tokens": 0,
        "num_accepted_tokens": 0,
        "num_emitted_tokens": 0,
        "max_num_emitted_tokens": 0,
        "speculative_stats_step": 0,
        "total_step_per_request": {},
        "accept_token_num_per_head_per_request": {},
        "accept_token_num_per_head": [0] * 6,
        "worker": None,
        "routing_cache_manager": None,
        "engine_output_token_hang": False,
        **tensors(channel),
    }
    for name, value in attributes.items():
        setattr(processor, name, value)
    return processor, list(attributes)


def write(processor, channel, first, second=(5, 6), flag=3):
    """Two slots' tokens into the tensors, element by element as such tests do; 21 columns."""
    tokens, wide = processor.output_tokens, module().K + 1
    one = [entry[0] if isinstance(entry, tuple) else entry for entry in (first, second)]
    counts = [len(entry) if isinstance(entry, tuple) else entry for entry in (first, second)]
    if channel == "plain":
        tokens[1, 0], tokens[2, 0], tokens[3, 0] = 2, *one
    elif channel == "topk":
        tokens[1, 0] = 2 | wide << 16
        for i, token in enumerate(one):
            tokens[2 + i * wide, 0] = token
            processor.output_scores[i * wide, 0] = -0.5 - i
    elif channel == "spec":
        tokens[1], tokens[2], tokens[3] = 2, *counts
    else:
        tokens[1, 0], tokens[2, 0], tokens[3, 0], tokens[4, 0] = flag | wide << 8, 2, *counts
    if channel.startswith("spec"):
        base, stride, row = (258, 6, 1) if channel == "spec" else (3 + 512, 6 * wide, wide)
        for i, entry in enumerate((first, second)):
            for j, token in enumerate(entry if isinstance(entry, tuple) else ()):
                place = base + i * stride + j * row
                tokens[place if channel == "spec" else (place, 0)] = token


def told_by(processor):
    """What was put, in an order and form that can be compared."""
    puts = processor.cached_generated_tokens.put_results.call_args_list
    waiting = processor._batch_result_buffer or []
    batches = [*(call.args[0] for call in puts), waiting]
    return [[as_told(result.to_dict()) for result in results] for results in batches if results]


STEPS = [((5, 6), (8, 9)), ((3,), (4,), DRAFT), ((10,), (12, 13)), ((14,), (15,), DRAFT), ((16,), (END, 11))]


def outcome(cls, channel, change=None, steps=STEPS, make=bare_task):
    """What an object without __init__ does in some steps; `change` gets it first.

    A step that raises, or ends a request with an error that says so, is "failed".
    """
    tasks = [make("req-0"), make("req-1")]
    if channel != "spec_topk":
        steps = [step for step in steps if DRAFT not in step]
    processor, names = bare(cls, channel, tasks)
    calls = []
    with (
        mock.patch.object(module(), "main_process_metrics", Recorder(calls)),
        mock.patch.object(module(), "trace_print", Recorder(calls, "trace_print")),
        mock.patch.object(module(), "time", SimpleNamespace(time=lambda: CLOCK, sleep=None)),
        mock.patch.object(time, "time", return_value=CLOCK),
    ):
        try:
            if change is not None:
                change(processor)
            for step in steps:
                write(processor, channel, *step)
                processor._process_batch_output()
            puts = told_by(processor)
        except Exception as error:
            return {"failed": type(error).__name__}, names
    if any(result["error_code"] == 500 for results in puts for result in results):
        return {"failed": "an error result"}, names
    return {
        "puts": puts,
        "tokens": [task.output_token_ids for task in tasks],
        "counter": dict(processor.tokens_counter),
        "calls": sorted(map(repr, calls)),
        "manager": processor.resource_manager.calls,
        "flags": processor.resource_manager.stop_flags,
        "totals": (processor.total_step, processor.number_of_output_tokens),
    }, names
