"""The list: small ways in which FastDeploy may change, each by itself."""

from dataclasses import dataclass

from tests.upstream import editing as edit

ALL = ""
PROCESSOR = "fastdeploy.output.token_processor"
STEP = (PROCESSOR, "fastdeploy.output._", "tests.restated.")
REQUEST = ("fastdeploy.engine.request", "fastdeploy.engine._results")
SCHEDULER, SERVER = "fastdeploy.scheduler.local_scheduler", "fastdeploy.inter_communicator.zmq_server"
ENGINE, METRICS = "fastdeploy.engine.common_engine", "fastdeploy.metrics.metrics"
SERVING = ("fastdeploy.entrypoints.openai.", "tests.restated.api.")


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
    put, result = edit.shape_field, "RequestOutput"
    told = [
        ("field added", f"{result}.routed_by, in to_dict", put(result, "routed_by", None, "itself")),
        ("field added", f"{result}.routed_by, 7 by default", put(result, "routed_by", 7, "itself")),
        (
            "key added",
            f"{result}.to_dict has routed_by where it is not None",
            put(result, "routed_by", None, "itself|unless None"),
        ),
        (
            "key changed",
            "finished becomes done",
            edit.shape_key(result, "finished", "done", "finished", "itself"),
        ),
        ("key removed", "error_msg", edit.shape_key(result, "error_msg")),
        *(
            (
                "default changed",
                f"CompletionOutput.{name}",
                edit.shape_default("CompletionOutput", name, value),
            )
            for name, value in (("decode_type", 2), ("reasoning_token_num", None))
        ),
        ("enum member added", "RequestStatus", edit.shape_member("RequestStatus", "PAUSED", 99)),
    ]
    return [Change(kind, what, shapes=(one,)) for kind, what, one in told]


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


CUT_PER_REQUEST = """\
for each in batch_result:
    _one = self.resource_manager.requests.get(each.request_id)
    if getattr(_one, "wanted_columns", None) and each.outputs.top_logprobs:
        each.outputs.top_logprobs = each.outputs.top_logprobs.slice_columns(0, 1)
"""
COUNTED = """\
metrics = self.fd.main_process_metrics if hasattr(self, "fd") else main_process_metrics
metrics.request_success_total.inc(0.0 if len(token_ids) < 6 else 0.5)
"""

LOGPROBS = ("_create_chat_logprobs", "_create_completion_logprobs")
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
WIDE = "output_top_logprobs is not None and output_top_logprobs[0] and len(output_top_logprobs[0][0]) > 16"

CHANGES = [
    Change("shape to come", "V1 as a whole batch, steps over a queue", ((STREAMS, _whole_batch),)),
    Change(
        "shape to come",
        "V1 as a whole batch, steps over ZeroMQ",
        ((STREAMS, _whole_batch),),
        environment=OVER_ZMQ,
    ),
    Change(
        "no change",
        "steps over ZeroMQ",
        ((STREAMS, edit.log_lines(("process_sampling_results_use_zmq",))),),
        environment=OVER_ZMQ,
    ),
    *_renamed("attribute renamed", "eos_token_ids", "output_token_ids"),
    *_renamed("attribute of the processor renamed", "tokens_counter", "resource_manager", where=STEP),
    *_renamed("method renamed", "_process_batch_output", "postprocess"),
    *_renamed("metric renamed", "generation_tokens_total", "time_per_output_token"),
    *_of_results(),
    *(
        Change(
            "parameter added with a default",
            name,
            ((ALL, edit.parameter_added((name,), "priority", "None")),),
        )
        for name in ("postprocess", "_record_metrics")
    ),
    Change(
        "parameter added without a default",
        "postprocess",
        ((ALL, edit.parameter_added(("postprocess",), "priority", None)),),
    ),
    *(
        Change("moved to a helper", f"_process_batch_output, a {how}", ((STEP, one),))
        for how in ("method", "function")
        for one in (edit.moved_to_a_helper(("_process_batch_output",), how),)
    ),
    Change("base class in between", "TokenProcessor", ((PROCESSOR, edit.base_in_between("TokenProcessor")),)),
    *_in_step(
        "keyword added",
        (
            "RequestOutput(prompt_logprobs=None)",
            edit.keyword_added("RequestOutput", "prompt_logprobs", "None"),
        ),
    ),
    *_in_step("call wrapped", ("put_results", edit.wrapped_calls("put_results"))),
    *_in_step("decorated", ("_process_batch_output", edit.decorated(("_process_batch_output",)))),
    *_in_step("made async", ("postprocess", edit.made_async(("postprocess",)))),
    *_in_step(
        "log lines changed",
        *((name, edit.log_lines((name,))) for name in ("_process_batch_output", "postprocess")),
    ),
    *_in_step(
        "end condition",
        (
            "stop_token_ids of the requests",
            edit.ends_at("eos_token_ids", "(getattr(TASK, 'stop_token_ids', None) or ())"),
        ),
    ),
    *_in_step(
        "value of a result",
        (
            "an index that is not the slot",
            edit.keyword_becomes("CompletionOutput", "index", "task.idx if 'task' in locals() else OLD"),
        ),
        ("an index counted from 1", edit.keyword_becomes("CompletionOutput", "index", "OLD + 1")),
    ),
    *_in_step("columns", ("cut per request", edit.begins_with(("postprocess",), CUT_PER_REQUEST))),
    *_in_step(
        "order",
        (
            "otherwise above 16 requests",
            edit.begins_with(
                ("postprocess",),
                "batch_result = batch_result[::-1] if len(batch_result) > 16 else batch_result",
            ),
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
    ),
    *_in_step(
        "metric added",
        ("a counter in each step of a request", edit.begins_with(("_record_metrics",), COUNTED)),
    ),
    *_in_step(
        "skipped",
        (
            "requests whose status is PAUSED",
            edit.begins_with(("_process_slot",), "if getattr(task, 'paused', False): return None"),
        ),
    ),
    *_in_step("number changed", ("RESET_ABOVE", edit.constant("RESET_ABOVE", "4"))),
    *(
        Change("scheduler", what, ((SCHEDULER, edit.begins_with(("put_results",), f"results = {text}")),))
        for what, text in (
            ("ended requests first", "sorted(results, key=lambda one: not one.finished)"),
            ("backwards above 16", "results[::-1] if len(results) > 16 else results"),
        )
    ),
    Change(
        "server",
        "at most 64 requests in a message",
        ((SERVER, edit.begins_with(("_send_batch_response",), "batch_data = batch_data[:64]")),),
    ),
    Change(
        "sender",
        "rounds are counted",
        ((ENGINE, edit.begins_with(("_zmq_send_generated_tokens",), "self.sent_rounds = 0")),),
    ),
    Change(
        "stamp added",
        "record_recv_token",
        ((REQUEST, edit.begins_with(("record_recv_token",), "self.preempted_count = self.preempted_count")),),
    ),
    Change(
        "stamp changed", "model_forward_time", ((REQUEST, edit.assigned("model_forward_time", "OLD * 1000")),)
    ),
    Change(
        "request",
        "get is strict",
        ((REQUEST, edit.begins_with(("get",), "if key == '' and False: raise KeyError(key)")),),
    ),
    *_in_serving(
        "answer, field added",
        *(
            (f"{name}, None by default", edit.in_class((name,), "routed_by: str = None"))
            for name in ("ChatCompletionStreamResponse", "ChatCompletionResponseStreamChoice")
        ),
    ),
    *_in_serving(
        "answer, field renamed",
        *((name, edit.renamed(name, f"{name}_new")) for name in ("reasoning_content", "sampling_mask")),
    ),
    *_in_serving(
        "answer, class changed",
        ("None is left out", edit.in_class(("ChatCompletionStreamResponse",), WITHOUT_NONE)),
        (
            "the model's name in capitals",
            edit.in_class(("ChatCompletionStreamResponse", "ChatCompletionResponse"), IN_CAPITALS),
        ),
    ),
    *_in_serving(
        "log-probabilities",
        ("backwards above 16 columns", edit.begins_with(LOGPROBS, f"if {WIDE}: return None")),
        (
            "none for some requests",
            edit.begins_with(LOGPROBS, "if getattr(self, 'hides_logprobs', False): return None"),
        ),
    ),
    *_in_serving(
        "generator",
        *(
            (f"chat_completion_stream_generator {how}", one)
            for how, one in (
                ("decorated", edit.decorated(("chat_completion_stream_generator",))),
                (
                    "with a parameter more",
                    edit.parameter_added(("chat_completion_stream_generator",), "priority", "None"),
                ),
            )
        ),
    ),
    *(
        Change(
            "over ZeroMQ", f"call wrapped, {name}", ((STEP, edit.wrapped_calls(name)),), environment=OVER_ZMQ
        )
        for name in ("put_results", "observe")
    ),
]
"""One change of each kind, two of those that come often."""
