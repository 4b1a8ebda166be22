"""The list: small ways in which FastDeploy may change, each by itself."""

from dataclasses import dataclass

from tests.upstream import editing as edit

ALL = ""
PROCESSOR, STREAMS = "fastdeploy.output.token_processor", "fastdeploy.output._streams"
STEP = (PROCESSOR, "fastdeploy.output._", "tests.restated.")
REQUEST = ("fastdeploy.engine.request", "fastdeploy.engine._results")
SCHEDULER, SERVER = "fastdeploy.scheduler.local_scheduler", "fastdeploy.inter_communicator.zmq_server"
ENGINE = "fastdeploy.engine.common_engine"
SERVING = ("fastdeploy.entrypoints.openai.", "tests.restated.api.")
OVER_ZMQ = (("FD_USE_GET_SAVE_OUTPUT_V1", "1"),)
RESULT, COMPLETION = "RequestOutput", "CompletionOutput"
LOGPROBS = ("_create_chat_logprobs", "_create_completion_logprobs")
CHUNK, CHOICE = "ChatCompletionStreamResponse", "ChatCompletionResponseStreamChoice"
GENERATOR = "chat_completion_stream_generator"
BATCH, APPEND, RECORD = "_process_batch_output", "postprocess", "_record_metrics"

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

def process_sampling_results_use_zmq(self):
    while True:
        try:
            self.process_model_runner_output(self.zmq_server.recv_pyobj())
        except Exception as error:
            self.fd.llm_logger.error(f"lost: {error}")
"""
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
BACKWARDS = "batch_result = batch_result[::-1] if len(batch_result) > 16 else batch_result"
KEPT_BACK = "batch_result = [one for one in batch_result if one.finished or one.outputs.token_ids]"
ENDED_FIRST = "results = sorted(results, key=lambda one: not one.finished)"
STAMP = "self.preempted_count = self.preempted_count"
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


@dataclass(frozen=True)
class Change:
    """One small change of FastDeploy.

    Attributes
    ----------
    kind, what : str
    where : str or tuple of str
        Beginnings of the names of the modules that are edited.
    edit : function, optional
        Of a syntax tree.
    shape : function, optional
        Of the double's recording, where a tree has it in its text.
    environment : tuple of (str, str)
        Variables of FastDeploy's that are set.
    """

    kind: str
    what: str
    where: str | tuple[str, ...] = ALL
    edit: object = None
    shape: object = None
    environment: tuple = ()

    @property
    def name(self):
        return f"{self.kind}: {self.what}"

    @property
    def serving(self):
        """Whether it is a change of the API server's."""
        return self.where == SERVING


def _whole_batch(tree):
    """V1 as one object a step (FastDeploy's pull requests #6353, #6879)."""
    output, *methods = edit.code(WHOLE_BATCH)

    def make(one):
        one.body = [each for each in one.body if getattr(each, "name", "") != methods[1].name] + methods
        return [output, one]

    return edit.replaced(edit.is_class("StreamsMixin"), make)(tree)


def _renamed(kind, *names, where=ALL):
    return [
        Change(kind, name, where, edit.renamed(name, f"{name}_new"), edit.shape_renamed(name, f"{name}_new"))
        for name in names
    ]


CHANGES = [
    Change("shape to come", "V1 as a whole batch, steps over a queue", STREAMS, _whole_batch),
    Change("shape to come", "V1 as a whole batch, over ZeroMQ", STREAMS, _whole_batch, None, OVER_ZMQ),
    Change(
        "no change",
        "steps over ZeroMQ",
        STREAMS,
        edit.log_lines("process_sampling_results_use_zmq"),
        environment=OVER_ZMQ,
    ),
    *_renamed("attribute renamed", "eos_token_ids", "output_token_ids"),
    *_renamed("attribute of the processor renamed", "tokens_counter", "resource_manager", where=STEP),
    *_renamed("method renamed", BATCH, APPEND),
    *_renamed("metric renamed", "generation_tokens_total", "time_per_output_token"),
    *(
        Change("field added", f"RequestOutput.routed_by, {what}", shape=shape)
        for what, shape in (
            ("in to_dict", edit.shape_field(RESULT, "routed_by", None, "itself")),
            ("7 by default", edit.shape_field(RESULT, "routed_by", 7, "itself")),
            (
                "in to_dict where it is not None",
                edit.shape_field(RESULT, "routed_by", None, "itself|unless None"),
            ),
        )
    ),
    Change(
        "key changed",
        "finished becomes done",
        shape=edit.shape_key(RESULT, "finished", "done", "finished", "itself"),
    ),
    Change("key removed", "error_msg", shape=edit.shape_key(RESULT, "error_msg")),
    *(
        Change(
            "default changed", f"CompletionOutput.{name}", shape=edit.shape_default(COMPLETION, name, value)
        )
        for name, value in (("decode_type", 2), ("reasoning_token_num", None))
    ),
    Change("enum member added", "RequestStatus", shape=edit.shape_member("RequestStatus", "PAUSED", 99)),
    *(
        Change("parameter added with a default", name, ALL, edit.parameter_added((name,), "priority", "None"))
        for name in (APPEND, RECORD)
    ),
    Change(
        "parameter added without a default", APPEND, ALL, edit.parameter_added((APPEND,), "priority", None)
    ),
    *(
        Change("moved to a helper", f"{BATCH}, a {how}", STEP, edit.moved_to_a_helper(BATCH, how))
        for how in ("method", "function")
    ),
    Change("base class in between", "TokenProcessor", PROCESSOR, edit.base_in_between("TokenProcessor")),
    *(
        Change(kind, what, STEP, one)
        for kind, what, one in (
            ("keyword added", "prompt_logprobs=None", edit.keyword_added(RESULT, "prompt_logprobs", "None")),
            ("call wrapped", "put_results", edit.wrapped_calls("put_results")),
            ("decorated", BATCH, edit.decorated(BATCH)),
            ("made async", APPEND, edit.made_async(APPEND)),
            *(("log lines changed", name, edit.log_lines(name)) for name in (BATCH, APPEND)),
            (
                "end condition",
                "stop_token_ids of the requests",
                edit.ends_at("eos_token_ids", "(getattr(TASK, 'stop_token_ids', None) or ())"),
            ),
            (
                "value of a result",
                "an index that is not the slot",
                edit.keyword_becomes(COMPLETION, "index", "task.idx if 'task' in locals() else OLD"),
            ),
            (
                "value of a result",
                "an index counted from 1",
                edit.keyword_becomes(COMPLETION, "index", "OLD + 1"),
            ),
            ("columns", "cut per request", edit.begins_with((APPEND,), CUT_PER_REQUEST)),
            ("order", "otherwise above 16 requests", edit.begins_with((APPEND,), BACKWARDS)),
            ("results", "without a token are kept back", edit.begins_with((APPEND,), KEPT_BACK)),
            ("metric added", "a counter in each step of a request", edit.begins_with((RECORD,), COUNTED)),
            (
                "skipped",
                "requests whose status is PAUSED",
                edit.begins_with(("_process_slot",), "if getattr(task, 'paused', False): return None"),
            ),
            ("number changed", "RESET_ABOVE", edit.assigned("RESET_ABOVE", "4")),
        )
    ),
    *(
        Change("over ZeroMQ", f"call wrapped, {name}", STEP, edit.wrapped_calls(name), None, OVER_ZMQ)
        for name in ("put_results", "observe")
    ),
    *(
        Change(kind, what, where, edit.begins_with((function,), text))
        for kind, what, where, function, text in (
            ("scheduler", "ended requests first", SCHEDULER, "put_results", ENDED_FIRST),
            ("scheduler", "backwards", SCHEDULER, "put_results", "results = results[::-1]"),
            ("server", "64 requests", SERVER, "_send_batch_response", "batch_data = batch_data[:64]"),
            ("sender", "rounds are counted", ENGINE, "_zmq_send_generated_tokens", "self.sent_rounds = 0"),
            ("stamp added", "record_recv_token", REQUEST, "record_recv_token", STAMP),
            ("request", "get is strict", REQUEST, "get", "if key == '' and False: raise KeyError(key)"),
        )
    ),
    Change("stamp changed", "model_forward_time", REQUEST, edit.assigned("model_forward_time", "OLD * 1000")),
    *(
        Change(kind, what, SERVING, one)
        for kind, what, one in (
            *(
                ("answer, field added", name, edit.in_class((name,), "routed_by: str = None"))
                for name in (CHUNK, CHOICE)
            ),
            *(
                ("answer, field renamed", name, edit.renamed(name, f"{name}_new"))
                for name in ("reasoning_content", "sampling_mask")
            ),
            ("answer, class changed", "None is left out", edit.in_class((CHUNK,), WITHOUT_NONE)),
            (
                "answer, class changed",
                "the model's name in capitals",
                edit.in_class((CHUNK, "ChatCompletionResponse"), IN_CAPITALS),
            ),
            (
                "log-probabilities",
                "none above 16 columns",
                edit.begins_with(LOGPROBS, f"if {WIDE}: return None"),
            ),
            (
                "log-probabilities",
                "none for some requests",
                edit.begins_with(LOGPROBS, "if getattr(self, 'hides_logprobs', False): return None"),
            ),
            ("generator", "decorated", edit.decorated(GENERATOR)),
            ("generator", "with a parameter", edit.parameter_added((GENERATOR,), "priority", "None")),
        )
    ),
]
"""One change of each kind, two of those that come often."""
