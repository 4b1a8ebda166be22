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
BATCH, APPEND = "_process_batch_output", "postprocess"

STATEMENT = "self.called = True"
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


def _renamed(kind, name, where=ALL):
    return Change(
        kind, name, where, edit.renamed(name, f"{name}_new"), edit.shape_renamed(name, f"{name}_new")
    )


def _of_shape(kind, what, shape):
    return Change(kind, what, shape=shape)


CHANGES = [
    Change(
        "no change",
        "steps over ZeroMQ",
        STREAMS,
        edit.log_lines("process_sampling_results_use_zmq"),
        environment=OVER_ZMQ,
    ),
    *(Change("log lines changed", name, STEP, edit.log_lines(name)) for name in (BATCH, APPEND)),
    Change("base class in between", "TokenProcessor", PROCESSOR, edit.base_in_between("TokenProcessor")),
    Change("number changed", "RESET_ABOVE", STEP, edit.assigned("RESET_ABOVE", "4")),
    _renamed("attribute renamed", "output_token_ids"),
    _renamed("attribute of the processor renamed", "tokens_counter", STEP),
    _renamed("metric renamed", "time_per_output_token"),
    *(
        Change("new statement", name, STEP, edit.begins_with((name,), STATEMENT))
        for name in (BATCH, APPEND, "_record_metrics", "_process_slot", "_append_tokens")
    ),
    Change("over ZeroMQ", APPEND, STEP, edit.begins_with((APPEND,), STATEMENT), None, OVER_ZMQ),
    Change("decorated", BATCH, STEP, edit.decorated(BATCH)),
    Change("parameter added", APPEND, ALL, edit.parameter_added((APPEND,), "priority")),
    *(
        Change(kind, function, where, edit.begins_with((function,), STATEMENT))
        for kind, where, function in (
            ("scheduler", SCHEDULER, "put_results"),
            ("server", SERVER, "_send_batch_response"),
            ("sender", ENGINE, "_zmq_send_generated_tokens"),
            ("stamp added", REQUEST, "record_recv_token"),
            ("request", REQUEST, "get"),
            ("log-probabilities", SERVING, LOGPROBS[0]),
            ("log-probabilities", SERVING, LOGPROBS[1]),
        )
    ),
    Change("stamp changed", "model_forward_time", REQUEST, edit.assigned("model_forward_time", "OLD * 1000")),
    *(
        _of_shape(
            "field added", f"RequestOutput.routed_by, {what}", edit.shape_field(RESULT, "routed_by", *how)
        )
        for what, how in (
            ("in to_dict", (None, "itself")),
            ("7 by default", (7, "itself")),
            ("in to_dict where it is not None", (None, "itself|unless None")),
        )
    ),
    _of_shape(
        "key changed",
        "finished becomes done",
        edit.shape_key(RESULT, "finished", "done", "finished", "itself"),
    ),
    _of_shape("key removed", "error_msg", edit.shape_key(RESULT, "error_msg")),
    *(
        _of_shape("default changed", f"CompletionOutput.{name}", edit.shape_default(COMPLETION, name, value))
        for name, value in (("decode_type", 2), ("reasoning_token_num", None))
    ),
    _of_shape("enum member added", "RequestStatus", edit.shape_member("RequestStatus", "PAUSED", 99)),
    *(
        Change(kind, what, SERVING, one)
        for kind, what, one in (
            *(
                ("answer, field added", name, edit.in_class(name, "routed_by: str = None"))
                for name in (CHUNK, CHOICE)
            ),
            *(
                ("answer, field renamed", name, edit.renamed(name, f"{name}_new"))
                for name in ("reasoning_content", "sampling_mask")
            ),
            ("answer, class changed", "None is left out", edit.in_class(CHUNK, WITHOUT_NONE)),
            ("answer, class changed", "the model's name in capitals", edit.in_class(CHUNK, IN_CAPITALS)),
            ("generator", "decorated", edit.decorated(GENERATOR)),
        )
    ),
]
"""A function of each seam, and data of each kind."""
