"""The list: small ways in which FastDeploy may change, each by itself."""

from dataclasses import dataclass, replace

from tests.upstream import editing as edit

ALL = ""
PROCESSOR = "fastdeploy.output.token_processor"
STEP = (PROCESSOR, "fastdeploy.output._", "tests.restated.")
REQUEST = ("fastdeploy.engine.request", "fastdeploy.engine._results")
SCHEDULER, SERVER = "fastdeploy.scheduler.local_scheduler", "fastdeploy.inter_communicator.zmq_server"
ENGINE, METRICS = "fastdeploy.engine.common_engine", "fastdeploy.metrics.metrics"
SERVING = ("fastdeploy.entrypoints.openai.", "tests.restated.api.")

TAKES = ("_process_batch_output", "_process_slot", "_process_batch_output_use_zmq")
APPENDS = ("_process_batch_output", "_append_tokens", "_process_per_token", "_process_batch_output_use_zmq")
ENDS = ("_finish", "_process_batch_output", "_process_per_token")


@dataclass(frozen=True)
class Change:
    """One small change of FastDeploy.

    Attributes
    ----------
    kind, what : str
    edits : tuple of (str or tuple of str, function)
        Where (beginnings of module names), and the edit of a syntax tree.
    shapes : tuple of function
        Edits of the double's recording, where a tree has it in its text.
    environment : tuple of (str, str)
        Variables of FastDeploy's that are set.
    speculative : bool
        Whether the engine decodes speculatively.
    serving : bool
        Whether it is a change of the API server's.
    """

    kind: str
    what: str
    edits: tuple = ()
    shapes: tuple = ()
    environment: tuple = ()
    speculative: bool = False
    serving: bool = False

    @property
    def name(self):
        return f"{self.kind}: {self.what}"


def _over_zmq(changes):
    """The same where steps come as objects."""
    return [
        replace(one, kind="over ZeroMQ", what=f"{one.kind}, {one.what}", environment=OVER_ZMQ)
        for one in changes
    ]


def _in_serving(kind, *whats):
    return [Change(kind, what, ((SERVING, one),), serving=True) for what, one in whats]


def _renamed(kind, *names, where=ALL, shapes=True):
    return [
        Change(
            kind,
            name,
            ((where, edit.renamed(name, f"{name}_new")),),
            (edit.shape_renamed(name, f"{name}_new"),) if shapes else (),
        )
        for name in names
    ]


def _in_step(kind, *whats):
    return [Change(kind, what, ((STEP, one),)) for what, one in whats]


def _of_results():
    fields = []
    for cls in ("RequestOutput", "CompletionOutput", "RequestMetrics"):
        named = f"{cls}.routed_by"
        copied = "" if cls == "RequestMetrics" else "itself"
        fields += [
            Change(
                "field added",
                f"{named}, in to_dict",
                shapes=(edit.shape_field(cls, "routed_by", None, copied),),
            ),
            Change(
                "field added",
                f"{named}, 7 by default",
                shapes=(edit.shape_field(cls, "routed_by", 7, copied),),
            ),
        ]
    for cls in ("RequestOutput", "CompletionOutput"):
        fields += [
            Change(
                "field added",
                f"{cls}.routed_by, not in to_dict",
                shapes=(edit.shape_field(cls, "routed_by", None, ""),),
            ),
            Change(
                "key added",
                f"{cls}.to_dict has routed_by where it is not None",
                shapes=(edit.shape_field(cls, "routed_by", None, "itself|unless None"),),
            ),
        ]
    return [
        *fields,
        Change(
            "field added",
            "LogprobsLists.slots",
            shapes=(edit.shape_field("LogprobsLists", "slots", None, ""),),
        ),
        Change(
            "field added",
            "SpeculateMetrics.kind",
            shapes=(edit.shape_field("SpeculateMetrics", "kind", 0, ""),),
        ),
        Change(
            "field added",
            "StreamTransferData.output_type",
            shapes=(edit.shape_field("StreamTransferData", "output_type", 3, ""),),
        ),
        Change(
            "key changed",
            "finished becomes done",
            shapes=(edit.shape_key("RequestOutput", "finished", "done", "finished", "itself"),),
        ),
        Change("key removed", "error_msg", shapes=(edit.shape_key("RequestOutput", "error_msg"),)),
        Change(
            "key changed",
            "prompt only where there is one",
            shapes=(
                edit.shape_key("RequestOutput", "prompt"),
                edit.shape_field("RequestOutput", "priority", None, "itself|unless None"),
            ),
        ),
        Change(
            "key changed",
            "send_idx becomes index",
            shapes=(edit.shape_key("CompletionOutput", "send_idx", "send_idx", "index", "itself"),),
        ),
        Change(
            "default changed",
            "CompletionOutput.decode_type",
            shapes=(edit.shape_default("CompletionOutput", "decode_type", 2),),
        ),
        Change(
            "default changed",
            "CompletionOutput.reasoning_token_num",
            shapes=(edit.shape_default("CompletionOutput", "reasoning_token_num", None),),
        ),
        Change(
            "default changed",
            "RequestOutput.error_code",
            shapes=(edit.shape_default("RequestOutput", "error_code", 0),),
        ),
        Change(
            "default changed",
            "RequestOutput.output_type",
            shapes=(edit.shape_default("RequestOutput", "output_type", 4),),
        ),
        Change(
            "default changed",
            "RequestMetrics.gpu_cache_token_num",
            shapes=(edit.shape_default("RequestMetrics", "gpu_cache_token_num", None),),
        ),
        Change(
            "default changed",
            "Request.num_cached_tokens",
            shapes=(edit.shape_default("Request", "num_cached_tokens", None),),
        ),
        *(
            Change("enum member added", name, shapes=(edit.shape_member(name, "PAUSED", 99),))
            for name in ("RequestStatus", "RequestType")
        ),
        Change(
            "enum member added",
            "LoggingEventName",
            shapes=(edit.shape_member("LoggingEventName", "PAUSED", "PAUSED"),),
        ),
    ]


OVER_ZMQ = (("FD_USE_GET_SAVE_OUTPUT_V1", "1"),)
STREAMS = "fastdeploy.output._streams"

WHOLE_BATCH = """
class ModelRunnerOutput:
    decode_mode = "TARGET"
    cu_num_generated_tokens = sampled_token_ids = logprobs = prompt_logprobs = pooler_output = None

def process_model_runner_output(self, output, mtype=3):
    offsets, results = output.cu_num_generated_tokens, []
    for slot, (first, end) in enumerate(zip(offsets, offsets[1:])):
        task = self.resource_manager.tasks_list[slot]
        if task is None or self.resource_manager.stop_flags[slot]:
            continue
        data = _Row(slot, output.sampled_token_ids[first:end])
        result = self._stream_result(slot, task, task.request_id, data)
        if result is not None:
            results.append(result)
    self.postprocess(results, mtype)
"""
RECEIVES_BATCHES = """
def process_sampling_results_use_zmq(self):
    while True:
        try:
            self.process_model_runner_output(self.zmq_server.recv_pyobj())
        except Exception as error:
            self.fd.llm_logger.error(f"lost: {error}")
"""
FORY = """
from fastdeploy.inter_communicator import serializer
return serializer.loads(self.socket.recv())
"""


def _whole_batch(tree):
    """V1 as one object a step (FastDeploy's pull requests #6353, #6879)."""
    holder = edit.classes(tree, "StreamsMixin")
    for one in holder:
        new = edit.code(WHOLE_BATCH)
        tree.body.insert(tree.body.index(one), new[0])
        one.body = [
            each for each in one.body if getattr(each, "name", "") != "process_sampling_results_use_zmq"
        ]
        one.body += [new[1], *edit.code(RECEIVES_BATCHES)]
    return bool(holder)


def _fory(tree):
    """Objects by pyfory (``FD_USE_fory``)."""
    found = edit.functions(tree, "recv_pyobj")
    for one in found:
        one.body = edit.code(f"def f(self):\n    {FORY.strip().replace(chr(10), chr(10) + '    ')}")[0].body
    return bool(found)


def _service_adapter(tree):
    """The engine is an adapter (``FD_USE_NEW_ENGINE_ARCHITECTURE``), whose coordinator sends results."""
    found = edit.classes(tree, "EngineService")
    for one in found:
        one.name = "EngineServiceAdapter"
        for loop in edit.functions(one, "_zmq_send_generated_tokens"):
            loop.name = "send_results"
        for node in edit.ast.walk(one):
            if getattr(node, "attr", "") == "_zmq_send_generated_tokens":
                node.attr = "send_results"
        one.body.append(
            edit.code(
                "def _after_processor(self):\n    import os\n    os.environ['INFERENCE_MSG_QUEUE_ID'] = '7'"
            )[0]
        )
    return bool(found)


CUT_PER_REQUEST = """\
for each in batch_result:
    _one = self.resource_manager.requests.get(each.request_id)
    if getattr(_one, "wanted_columns", None) and each.outputs.top_logprobs:
        each.outputs.top_logprobs = each.outputs.top_logprobs.slice_columns(0, 1)
"""
CUT_AT_20 = """\
for each in batch_result:
    if each.outputs is not None and each.outputs.top_logprobs:
        for row in each.outputs.top_logprobs.logprobs:
            del row[20:]
"""
ENDED_FIRST = """\
batch_result = [one for one in batch_result if one.finished] + [
    one for one in batch_result if not one.finished
]
"""
BY_PRIORITY = """\
requests = self.resource_manager.requests
batch_result.sort(key=lambda one: getattr(requests.get(one.request_id), "priority", 0))
"""
NOT_HIDDEN = """\
requests = self.resource_manager.requests
batch_result = [
    one for one in batch_result if not getattr(requests.get(one.request_id), "hidden", False)
]
"""
AT_MOST_32 = """\
if len(batch_result) > 32:
    self.cached_generated_tokens.put_results(batch_result[:32])
    batch_result = batch_result[32:]
"""
COUNTED = """\
metrics = self.fd.main_process_metrics if hasattr(self, "fd") else main_process_metrics
metrics.request_success_total.inc(0.0 if len(token_ids) < 6 else 0.5)
"""

SHAPES_TO_COME = [
    Change("shape to come", "V1 as a whole batch, steps over a queue", ((STREAMS, _whole_batch),)),
    Change(
        "shape to come",
        "V1 as a whole batch, steps over ZeroMQ",
        ((STREAMS, _whole_batch),),
        environment=OVER_ZMQ,
    ),
    Change(
        "shape to come",
        "V1 as a whole batch, speculation over ZeroMQ",
        ((STREAMS, _whole_batch),),
        environment=OVER_ZMQ,
        speculative=True,
    ),
    Change(
        "shape to come",
        "speculation over ZeroMQ is no longer refused",
        ((STREAMS, edit.removed_first(("process_sampling_results_use_zmq",), "speculative_decoding")),),
        environment=OVER_ZMQ,
        speculative=True,
    ),
    Change(
        "shape to come",
        "StreamTransferData.output_type, over ZeroMQ",
        shapes=(edit.shape_field("StreamTransferData", "output_type", 3, ""),),
        environment=OVER_ZMQ,
    ),
    Change("shape to come", "pyfory in the place of pickle, steps over a queue", ((SERVER, _fory),)),
    Change(
        "shape to come",
        "pyfory in the place of pickle, steps over ZeroMQ",
        ((SERVER, _fory),),
        environment=OVER_ZMQ,
    ),
    Change(
        "shape to come",
        "pyfory in the place of pickle, speculation over ZeroMQ",
        ((SERVER, _fory),),
        environment=OVER_ZMQ,
        speculative=True,
    ),
    *(
        Change(
            "shape to come",
            f"a service adapter, coordinators, the queue's number set late, {where}",
            ((ENGINE, _service_adapter),),
            environment=environment,
        )
        for where, environment in (("steps over a queue", ()), ("steps over ZeroMQ", OVER_ZMQ))
    ),
    Change(
        "shape to come",
        "results with the kind of their step",
        ((STREAMS, edit.keyword_added("RequestOutput", "output_type", "getattr(data, 'output_type', 3)")),),
        environment=OVER_ZMQ,
    ),
    Change(
        "no change",
        "steps over ZeroMQ",
        ((STREAMS, edit.log_lines(("process_sampling_results_use_zmq",))),),
        environment=OVER_ZMQ,
    ),
]

CHANGES = [
    *SHAPES_TO_COME,
    *_renamed(
        "attribute renamed",
        *("eos_token_ids", "output_token_ids", "num_cached_tokens", "prompt_token_ids_len", "messages"),
        *("multimodal_inputs", "disaggregate_info", "ic_req_data", "last_token_time", "prefill_chunk_info"),
        *("send_idx", "token_ids", "top_logprobs", "draft_token_ids", "error_msg", "finished", "logprob"),
        *("sampled_token_ranks", "inference_start_time", "engine_recv_latest_token_time", "arrival_time"),
        *("model_execute_time", "sampling_mask", "trace_carrier", "decode_type", "num_input_image_tokens"),
    ),
    *_renamed(
        "attribute of the processor renamed",
        *("tokens_counter", "resource_manager", "cached_generated_tokens", "use_logprobs", "output_tokens"),
        *("_batch_result_buffer", "number_of_output_tokens", "total_step", "prefill_result_status"),
        *("scheduler_metrics_logger", "accept_token_num_per_head", "health_lock"),
        where=STEP,
    ),
    *_renamed(
        "method renamed",
        *("_process_batch_output", "postprocess", "_recycle_resources", "_record_metrics", "clear_data"),
        *("_record_completion_metrics", "_compute_speculative_status", "_put_abort_results", "healthy"),
        *("record_recv_token", "cal_cost_time", "_is_decode_stage", "_finalize_routing"),
    ),
    *_renamed(
        "metric renamed",
        *("generation_tokens_total", "time_per_output_token", "request_success_total", "request_token_ratio"),
        *("available_batch_size", "request_decode_time"),
    ),
    *_of_results(),
    # ---- parameters
    *(
        Change(
            "parameter added with a default",
            name,
            ((ALL, edit.parameter_added((name,), "priority", "None")),),
        )
        for name in (
            *("postprocess", "_record_metrics", "put_results", "_recycle_resources", "get_results"),
            *("_record_completion_metrics", "record_recv_token", "_send_batch_response"),
        )
    ),
    *(
        Change(
            "parameter added without a default",
            name,
            ((ALL, edit.parameter_added((name,), "priority", None)),),
        )
        for name in ("postprocess", "_record_metrics", "put_results", "_recycle_resources")
    ),
    Change(
        "parameter added without a default",
        "TokenProcessor",
        ((PROCESSOR, edit.parameter_added(("__init__",), "priority", None)),),
    ),
    Change(
        "keyword added",
        "RequestOutput(prompt_logprobs=None)",
        ((STEP, edit.keyword_added("RequestOutput", "prompt_logprobs", "None")),),
    ),
    Change(
        "keyword added",
        "CompletionOutput(text='')",
        ((STEP, edit.keyword_added("CompletionOutput", "text", "''")),),
    ),
    # ---- calls, helpers, places
    *(
        Change("call wrapped", name, ((STEP, edit.wrapped_calls(name)),))
        for name in ("put_results", "observe", "postprocess", "cal_cost_time")
    ),
    *(
        Change("moved to a helper", f"{name}, a {how}", ((STEP, edit.moved_to_a_helper((name,), how)),))
        for name in ("_process_batch_output", "postprocess", "_record_metrics")
        for how in ("method", "function")
    ),
    Change(
        "moved to a helper", "put_results, a method", ((SCHEDULER, edit.moved_to_a_helper(("put_results",))),)
    ),
    Change(
        "moved to a helper",
        "_send_batch_response, a method",
        ((SERVER, edit.moved_to_a_helper(("_send_batch_response",))),),
    ),
    Change(
        "moved to a helper",
        "the sender's loop, a method",
        ((ENGINE, edit.moved_to_a_helper(("_zmq_send_generated_tokens",))),),
    ),
    *(
        Change(
            "decorated",
            f"{name}{'' if wraps else ', without functools.wraps'}",
            ((STEP, edit.decorated((name,), wraps)),),
        )
        for name, wraps in (
            *(("_process_batch_output", True), ("_process_batch_output", False)),
            *(("postprocess", True), ("_record_metrics", False)),
        )
    ),
    *(
        Change("base class in between", name, ((where, edit.base_in_between(name)),))
        for name, where in (
            ("TokenProcessor", PROCESSOR),
            ("LocalScheduler", SCHEDULER),
            ("EngineService", ENGINE),
            ("ZmqServerBase", SERVER),
            ("MetricsManager", METRICS),
        )
    ),
    Change("made async", "postprocess", ((STEP, edit.made_async(("postprocess",))),)),
    Change(
        "made async",
        "_record_completion_metrics",
        ((STEP, edit.made_async(("_record_completion_metrics",))),),
    ),
    *(
        Change("log lines changed", name, ((STEP, edit.log_lines((name,))),))
        for name in ("_process_batch_output", "postprocess", "_finish", "process_sampling_results")
    ),
    Change("log lines changed", "put_results", ((SCHEDULER, edit.log_lines(("put_results",))),)),
    Change(
        "log lines changed", "_send_batch_response", ((SERVER, edit.log_lines(("_send_batch_response",))),)
    ),
    # ---- what a step does
    *_in_step(
        "end condition",
        (
            "stop_token_ids of the requests",
            edit.ends_at("eos_token_ids", "(getattr(TASK, 'stop_token_ids', None) or ())"),
        ),
        (
            "stop_token_ids of the sampling parameters",
            edit.ends_at("eos_token_ids", "TASK.get('stop_token_ids', ())"),
        ),
        (
            "a number of tokens",
            edit.ends_at("eos_token_ids", "(() if len(TASK.output_token_ids) < 4 else (12, 22, 32, 42))"),
        ),
        ("tokens above 140,000", edit.ends_at("eos_token_ids", "range(140000, 141000)")),
    ),
    *_in_step(
        "value of a result",
        (
            "an index that is not the slot",
            edit.keyword_becomes("CompletionOutput", "index", "task.idx if 'task' in locals() else OLD"),
        ),
        ("an index counted from 1", edit.keyword_becomes("CompletionOutput", "index", "OLD + 1")),
        ("send_idx counted from 1", edit.keyword_becomes("CompletionOutput", "send_idx", "OLD + 1")),
        (
            "the request's name without its suffix",
            edit.keyword_becomes("RequestOutput", "request_id", "OLD.split('_')[0]"),
        ),
        (
            "a text for requests with a user",
            edit.keyword_added("CompletionOutput", "text", "getattr(locals().get('task'), 'user', None)"),
        ),
        (
            "ic_req_data only of the first result",
            edit.keyword_becomes(
                "RequestOutput", "ic_req_data", "OLD if self.tokens_counter[task.request_id] == 0 else None"
            ),
        ),
        (
            "images counted as audio",
            edit.after_assignment(
                "num_cached_tokens",
                "IT.num_input_image_tokens = len(getattr(task, 'audio_output_token_ids', None) or ())",
            ),
        ),
        (
            "a count for audio",
            edit.after_assignment(
                "num_cached_tokens",
                "if task.get('audio_output_token_ids', None): IT.num_input_audio_tokens = 1",
            ),
        ),
        (
            "cached tokens of the prompt only",
            edit.after_assignment(
                "num_cached_tokens", "IT.num_cached_tokens = min(IT.num_cached_tokens, 32)"
            ),
        ),
        (
            "the priority of a request",
            edit.after_assignment(
                "num_cached_tokens", "if getattr(task, 'priority', 0): IT.error_msg = 'late'"
            ),
        ),
        ("log-probabilities rounded", edit.assigned("logprob", "round(OLD, 2)")),
        ("log-probabilities at least -20", edit.assigned("logprob", "max(OLD, -20.0)")),
    ),
    *_in_step(
        "columns",
        (
            "cut per request",
            edit.begins_with(
                ("postprocess",),
                CUT_PER_REQUEST,
            ),
        ),
        (
            "cut at 20",
            edit.begins_with(
                ("postprocess",),
                CUT_AT_20,
            ),
        ),
    ),
    *_in_step(
        "order",
        (
            "otherwise above 16 requests",
            edit.begins_with(
                ("postprocess",),
                "batch_result = batch_result[::-1] if len(batch_result) > 16 else batch_result",
            ),
        ),
        (
            "ended requests first",
            edit.begins_with(
                ("postprocess",),
                ENDED_FIRST,
            ),
        ),
        (
            "by priority",
            edit.begins_with(
                ("postprocess",),
                BY_PRIORITY,
            ),
        ),
        (
            "slots backwards above 32",
            edit.loop_over("batch", "OLD if len(list(OLD)) <= 32 else reversed(list(OLD))", TAKES),
        ),
    ),
    *_in_step(
        "results",
        (
            "without a token are kept back",
            edit.begins_with(
                ("postprocess",),
                "batch_result = [one for one in batch_result if one.finished or one.outputs.token_ids]",
            ),
        ),
        (
            "of hidden requests are dropped",
            edit.begins_with(
                ("postprocess",),
                NOT_HIDDEN,
            ),
        ),
        ("an empty list is not put", edit.begins_with(("postprocess",), "if not batch_result: return")),
        (
            "at most 32 at a time",
            edit.begins_with(
                ("postprocess",),
                AT_MOST_32,
            ),
        ),
        (
            "are counted",
            edit.begins_with(
                ("postprocess",),
                "self.results_so_far = getattr(self, 'results_so_far', 0) + len(batch_result)",
            ),
        ),
    ),
    *_in_step(
        "metric added",
        (
            "a counter in each step of a request",
            edit.begins_with(
                ("_record_metrics",),
                COUNTED,
            ),
        ),
        (
            "a sample for long gaps",
            edit.begins_with(
                ("_record_metrics",), "if len(token_ids) > 5: task.has_been_preempted_before = True"
            ),
        ),
        (
            "the first token of a request with a user",
            edit.begins_with(("_record_first_token_metrics",), "task.seen_first = True"),
        ),
    ),
    *_in_step(
        "skipped",
        (
            "requests whose status is PAUSED",
            edit.begins_with(("_process_slot",), "if getattr(task, 'paused', False): return None"),
        ),
        (
            "steps of one token of requests with a priority",
            edit.begins_with(
                ("_append_tokens",), "if getattr(task, 'priority', 0) == 2: tokens = tokens[:1]"
            ),
        ),
    ),
    *_in_step(
        "number changed",
        ("RESET_ABOVE", edit.constant("RESET_ABOVE", "4")),
    ),
    Change(
        "number changed",
        "the preempted mark",
        (("fastdeploy.config", edit.constant("PREEMPTED_TOKEN_ID", "-11")),),
    ),
    Change("number changed", "K", ((PROCESSOR, edit.constant("K", "OLD + 4")),)),
    Change(
        "number changed", "MAX_DRAFT_TOKENS", ((PROCESSOR, edit.constant("MAX_DRAFT_TOKENS", "OLD + 2")),)
    ),
    Change("number changed", "MAX_BSZ", ((PROCESSOR, edit.constant("MAX_BSZ", "OLD * 2")),)),
    # ---- the scheduler, the sender, the server
    Change(
        "scheduler",
        "ended requests first",
        (
            (
                SCHEDULER,
                edit.begins_with(
                    ("put_results",), "results = sorted(results, key=lambda one: not one.finished)"
                ),
            ),
        ),
    ),
    Change(
        "scheduler",
        "backwards above 16",
        (
            (
                SCHEDULER,
                edit.begins_with(
                    ("put_results",), "results = results[::-1] if len(results) > 16 else results"
                ),
            ),
        ),
    ),
    Change(
        "scheduler",
        "at most 8 of a request are kept",
        (
            (
                SCHEDULER,
                edit.begins_with(("put_results",), "for one in self.responses.values(): del one[:-8]"),
            ),
        ),
    ),
    Change(
        "scheduler",
        "results are stamped",
        ((SCHEDULER, edit.begins_with(("put_results",), "for one in results: one.put_at = 1.0")),),
    ),
    Change(
        "scheduler",
        "errors are dropped",
        (
            (
                SCHEDULER,
                edit.begins_with(
                    ("put_results",), "results = [one for one in results if one.error_code == 200]"
                ),
            ),
        ),
    ),
    Change(
        "scheduler",
        "fetched one by one above 16",
        (
            (
                SCHEDULER,
                edit.begins_with(
                    ("get_results",), "while len(self.responses) > 16: self.responses.popitem()"
                ),
            ),
        ),
    ),
    Change(
        "scheduler", "waits twice as long", ((SCHEDULER, edit.assigned("wait_response_timeout", "0.002")),)
    ),
    Change(
        "scheduler",
        "the wait has another name",
        ((SCHEDULER, edit.renamed("wait_response_timeout", "wait_seconds")),),
    ),
    Change(
        "server",
        "at most 64 requests in a message",
        (
            (
                SERVER,
                edit.begins_with(
                    ("_send_batch_response",), "if len(batch_data) > 64: batch_data = batch_data[:64]"
                ),
            ),
        ),
    ),
    Change("server", "another serialiser", ((SERVER, edit.argument_becomes("send", "b'x' + OLD")),)),
    Change(
        "server",
        "another order of keys",
        ((SERVER, edit.argument_becomes("packb", "[[dict(sorted(r.items())) for r in rs] for rs in OLD]")),),
    ),
    Change(
        "sender",
        "rounds are counted",
        ((ENGINE, edit.begins_with(("_zmq_send_generated_tokens",), "self.sent_rounds = 0")),),
    ),
    Change(
        "sender",
        "sleeps for 1 ms",
        ((ENGINE, edit.number_becomes(0.005, 0.001, ("_zmq_send_generated_tokens",))),),
    ),
    Change(
        "sender",
        "decodes text itself",
        ((ENGINE, edit.begins_with(("_decode_token",), "token_ids = list(token_ids)")),),
    ),
    # ---- requests and their stamps
    Change(
        "stamp added",
        "record_recv_token",
        ((REQUEST, edit.begins_with(("record_recv_token",), "self.preempted_count = self.preempted_count")),),
    ),
    Change(
        "stamp added",
        "record_recv_token counts",
        ((REQUEST, edit.begins_with(("record_recv_token",), "self.cpu_cache_token_num += 1")),),
    ),
    Change(
        "stamp added",
        "record_recv_first_token",
        ((REQUEST, edit.begins_with(("record_recv_first_token",), "self.preempted_count = 1")),),
    ),
    Change(
        "stamp changed", "model_forward_time", ((REQUEST, edit.assigned("model_forward_time", "OLD * 1000")),)
    ),
    Change(
        "request",
        "get is strict",
        (
            (
                REQUEST,
                edit.begins_with(("get",), "if key == 'prefill_chunk_info' and False: raise KeyError(key)"),
            ),
        ),
    ),
]


LOGPROBS = ("_create_chat_logprobs", "_create_completion_logprobs")
STREAMED = (
    *("ChatCompletionStreamResponse", "ChatCompletionResponseStreamChoice", "DeltaMessage", "LogProbEntry"),
    *("CompletionStreamResponse", "CompletionResponseStreamChoice", "CompletionLogprobs", "UsageInfo"),
)
WHOLE = ("ChatCompletionResponse", "ChatMessage", "CompletionResponse", "CompletionResponseChoice")
WITHOUT_NONE = """\
def model_dump_json(self, **options):
    return super().model_dump_json(**{**options, "exclude_none": True})
"""
IN_CAPITALS = """\
from pydantic import field_serializer
@field_serializer("model")
def _shout(self, value):
    return value.upper()
"""
STRIPPED = """\
from pydantic import field_validator
@field_validator("model")
def _strip(cls, value):
    return value[:60]
"""
NOT_UNDEFINED = """\
from pydantic import model_serializer
@model_serializer(mode="wrap")
def _shown(self, handler):
    return {**handler(self), "routed_by": 7}
"""
WIDE = "output_top_logprobs is not None and output_top_logprobs[0] and len(output_top_logprobs[0][0]) > 16"

CHANGES += [
    *_in_serving(
        "answer, field added",
        *((f"{name}, None by default", edit.in_class((name,), "routed_by: str = None")) for name in STREAMED),
        *((f"{name}, 7 by default", edit.in_class((name,), "routed_by: int = 7")) for name in STREAMED[::3]),
        *((f"{name}, first", edit.in_class((name,), "routed_by: int = 7", False)) for name in WHOLE),
    ),
    *_in_serving(
        "answer, field renamed",
        *(
            (name, edit.renamed(name, f"{name}_new"))
            for name in (
                *("reasoning_content", "sampling_mask", "completion_tokens_details", "draft_logprobs"),
                *("prompt_tokens_details", "token_logprobs", "arrival_time", "finish_reason"),
            )
        ),
    ),
    *_in_serving(
        "answer, class changed",
        ("None is left out", edit.in_class(STREAMED[:1], WITHOUT_NONE)),
        ("the model's name in capitals", edit.in_class((STREAMED[0], WHOLE[0]), IN_CAPITALS)),
        ("the model's name is cut", edit.in_class((STREAMED[0], WHOLE[0]), STRIPPED)),
        ("a key from a serialiser", edit.in_class((STREAMED[0], STREAMED[4]), NOT_UNDEFINED)),
        (
            "more is allowed",
            edit.in_class(STREAMED, "model_config = {'extra': 'allow', 'arbitrary_types_allowed': True}"),
        ),
        ("another default", edit.in_class(("UsageInfo",), "completion_tokens: int = None")),
        *((f"a base class in between, {name}", edit.base_in_between(name)) for name in STREAMED[2:5]),
    ),
    *_in_serving(
        "log-probabilities",
        ("backwards above 16 columns", edit.begins_with(LOGPROBS, f"if {WIDE}: return None")),
        (
            "none for some requests",
            edit.begins_with(LOGPROBS, "if getattr(self, 'hides_logprobs', False): return None"),
        ),
        ("counted", edit.begins_with(LOGPROBS, "self.logprobs_made = 1")),
        (
            "none of a row without ids",
            edit.begins_with(LOGPROBS, "if output_top_logprobs is None: return None"),
        ),
        (
            "at most four rows",
            edit.begins_with(
                LOGPROBS,
                "output_top_logprobs = output_top_logprobs and [one[:4] for one in output_top_logprobs]",
            ),
        ),
        ("another parameter", edit.parameter_added(LOGPROBS, "spelling", "None")),
        ("moved to a helper", edit.moved_to_a_helper(LOGPROBS)),
        ("decorated", edit.decorated(LOGPROBS)),
        ("decorated, without functools.wraps", edit.decorated(LOGPROBS, False)),
        ("renamed", edit.renamed(LOGPROBS[0], "_create_logprobs")),
    ),
    *_in_serving(
        "generator",
        *(
            (f"{name} {how}", one)
            for name in ("chat_completion_stream_generator", "completion_full_generator")
            for how, one in (
                ("decorated", edit.decorated((name,))),
                ("with a parameter more", edit.parameter_added((name,), "priority", "None")),
                ("sets an attribute", edit.begins_with((name,), "self.answers = 1")),
                ("renamed", edit.renamed(name, f"{name}_new")),
            )
        ),
        ("OpenAIServingChat: a base class in between", edit.base_in_between("OpenAIServingChat")),
        ("OpenAIServingChat: renamed", edit.renamed("OpenAIServingChat", "ChatServing")),
    ),
    *_over_zmq(
        [
            one
            for one in CHANGES
            if not one.environment
            and one.kind
            in ("end condition", "columns", "order", "results", "value of a result", "call wrapped")
        ]
    ),
]


def every_change():
    """All, each name once."""
    names = [change.name for change in CHANGES]
    assert len(set(names)) == len(names), [name for name in names if names.count(name) > 1]
    return CHANGES


def sixty():
    """About sixty of them: one of each kind, two of those with many."""
    by_kind = {}
    for one in every_change():
        by_kind.setdefault(one.kind, []).append(one)
    return [one for some in by_kind.values() for one in some[: 2 if len(some) > 5 else 1]]
