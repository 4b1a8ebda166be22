"""The table of what is replaced in FastDeploy.

A *seam* is a place in FastDeploy where an object of the plug-in stands instead of FastDeploy's own, or a
function of FastDeploy's that the plug-in calls less often.  Each seam is one row of `SEAMS`, and
`replacements` sets nothing else.  The log, the gauges, the doctor and docs/seams.md take their words from
there.  Standard library only.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ENGINE, API, WORKER = "engine", "api", "worker"
PACKAGE = "fastdeploy."


class NotPlain(Exception):
    """Raised for code or an object of FastDeploy's that does more than is known here; it stays in use."""


@dataclass(frozen=True)
class Seam:
    """One object of FastDeploy's that the plug-in replaces."""

    name: str  # in the gauge ``fd_postproc_fast_path{path=...}``, the log and the doctor's report
    side: str  # the process in which it is replaced
    modules: tuple[str, ...]  # FastDeploy's modules where it is looked for; each that has it gets ours
    places: tuple[str, ...]
    """Attributes that are set: ``name`` of the module, or ``Class.name``; ``*.name``: of each class that
    defines it.  Empty: nothing is set, FastDeploy's own is called less often."""
    ours: str  # what takes its place: ``module:name`` below `fd_postproc.fastdeploy`
    gain: str  # what becomes faster or safer
    falls_back: str  # what happens where ours raises, for the log and the page
    stands_for: tuple[str, ...] = ()
    """FastDeploy's functions whose text ours stands for, replaced or done inline: ``Class.name``,
    ``*.name`` or ``name`` of its modules, or ``module:Class.name``.  The gate reads them; one that no
    version has, as a ``__post_init__``, is unknown where it comes to be.  ``=module:NAME`` is data that ours
    restates: an enum's members, a class's bases and the values in its body, or a constant."""
    looked_at: tuple[str, ...] = ()
    """Functions that are checked again at each call, so that a later wrapper still runs."""
    facts: tuple[str, ...] = ()
    """What versions with different statements do differently: attributes that our class needs."""
    has_path: bool = True  # whether it has that gauge; otherwise ``fd_postproc_active`` of its side is its
    is_program: bool = False  # whether its module reads the command line and loads a model when imported

    @property
    def attributes(self) -> set[str]:
        """The last names of `places`."""
        return {place.rpartition(".")[2] for place in self.places}

    @functools.cached_property
    def functions(self) -> tuple[str, ...]:
        """The functions of `stands_for`."""
        return tuple(one for one in self.stands_for if not one.startswith("="))

    @property
    def data(self) -> tuple[str, ...]:
        """The data of `stands_for`."""
        return tuple(one for one in self.stands_for if one.startswith("="))

    @property
    def module(self) -> str:
        """The first of `modules`."""
        return self.modules[0]

    def maker(self) -> Callable[..., Any]:
        """The object that `ours` names, whose module this imports."""
        module, _, name = self.ours.partition(":")
        ours: Callable[..., Any] = getattr(importlib.import_module(f"..{module}", __package__), name)
        return ours

    def loaded(self) -> Any:
        """FastDeploy's module, if it has been imported; None otherwise."""
        return next((sys.modules[name] for name in self.modules if name in sys.modules), None)


# ---- What is said of them ----------------------------------------------------------------------------------


STOCK_STEP_MS, STEP_MS = 70.0, 0.4
"""CPU time of the engine for a step of 256 requests, 2 tokens and 21 columns each: FastDeploy's, ours."""

_COSTS_MS = {"dictionaries": 12.0, "stamps": 6.5, "sending": 5.0, "metrics": 1.4, "delivery": 0.3}
"""Additional cost of such a step where a path is left to FastDeploy (`tools/step_costs.py`)."""


def text_of(taken: dict[str, bool], why: dict[str, str] | None = None) -> str:
    """The engine's fast paths, for the log and the doctor, with the reasons why some are left."""
    off, why = [name for name, is_on in taken.items() if not is_on], why or {}
    if not off:
        return f"every fast path is taken ({', '.join(taken)})"
    reasons = "; ".join(f"{name} ({why.get(name) or f'elsewhere {SEAMS[name].gain}'})" for name in off)
    cost = STEP_MS + sum(_COSTS_MS.get(name, 0.0) for name in off)
    waits = "; the sender looks for results now and then, 2 ms late on average" if "wake-up" in off else ""
    if "sending" in off:
        waits += "; requests of an API process that dies run on to their last token"
    return (
        f"results are right, but slower than they could be: {len(taken) - len(off)} of {len(taken)} fast "
        f"paths are taken; left to FastDeploy, which differs there: {reasons}; a step of 256 requests costs "
        f"about {cost:.1f} ms instead of {STEP_MS} (FastDeploy's own: {STOCK_STEP_MS:.0f}){waits}; please "
        "report it, with FastDeploy's version"
    )


ASIDE_COST = f"a step of 256 requests then costs about {STOCK_STEP_MS:.0f} ms of CPU instead of {STEP_MS}"
"""The cost of falling back, for the log and the doctor."""


# ---- The table ---------------------------------------------------------------------------------------------

_REQUEST = "fastdeploy.engine.request"
_PROCESSOR = "fastdeploy.output.token_processor"
_SCHEDULER = "fastdeploy.scheduler.local_scheduler"
_UTILS = "fastdeploy.entrypoints.openai.utils"
_CLIENT = "fastdeploy.entrypoints.engine_client"
_SERVING = "fastdeploy.entrypoints.openai.serving_"
_INPUTS = tuple(
    f"fastdeploy.input.{name}"
    for name in ("base_processor", "processor", "text_processor", "ernie4_5_processor")
)
_TASKS = ("exist_tasks", "put_tasks", "get_tasks", "set_exist_tasks")
_SENDS = ("_send_batch_response", "send_response")
_SAVING = "fastdeploy.model_executor.pre_and_post_process"
_REPLACED = (
    *("process_sampling_results", "_process_batch_output", "_process_batch_draft_tokens", "postprocess"),
    *("process_sampling_results_use_zmq", "_process_batch_output_use_zmq", "_process_per_token"),
    *("_reschedule_preempt_task_use_zmq", "_record_metrics", "_is_decode_stage", "clear_data", "healthy"),
    *("_record_speculative_decoding_metrics", "_record_speculative_decoding_accept_num_per_request"),
)
"""Methods of the token processor that ours replace, with those that only they call or that ours do inline."""

_ROWS = (
    Seam(
        "token processor",
        ENGINE,
        (_PROCESSOR,),
        (),
        "engine.processor_class:make_class",
        "a step is decoded, advanced and delivered in one loop",
        "the request ends with an error, or the step is lost and counted: FastDeploy has nothing for a step",
        (
            *(f"TokenProcessor.{name}" for name in _REPLACED),
            "inter_communicator.zmq_server:ZmqIpcServer.recv_pyobj",
            *(f"engine.request:{name}" for name in ("Request.get", "RequestOutput.__init__")),
            "engine.request:CompletionOutput.__post_init__",
            *(f"=engine.request:{name}" for name in ("Request", "RequestOutput", "CompletionOutput")),
            *("=engine.request:RequestMetrics", "=output.token_processor:TokenProcessor"),
            "=spec_decode.types:SpecMethod",
        ),
        facts=(
            "makes_empty_results",  # a request without an accepted token gets a result all the same
            "aborts_itself",  # an aborted request ends with a result of this class's (before 2.6)
            "completes_prefills",  # a prefilled request counts as completed (since 2.6)
        ),
        has_path=False,
    ),
    Seam(
        "dictionaries",
        ENGINE,
        (_REQUEST,),
        (),
        "engine.results.result_classes:plan_of",
        "results become bytes and dictionaries by their request's template, not by FastDeploy's to_dict",
        "FastDeploy's to_dict makes the dictionaries of the request's results",
        ("RequestOutput.to_dict", "CompletionOutput.to_dict", "RequestMetrics.to_dict"),
    ),
    Seam(
        "stamps",
        ENGINE,
        (_PROCESSOR,),
        (),
        "engine.results.result_classes:plan_of",
        "requests are advanced in one loop, which sets the four known time stamps",
        "the request ends with an error that its client sees",
        ("engine.request:RequestMetrics.record_recv_token",),
    ),
    Seam(
        "metrics",
        ENGINE,
        ("fastdeploy.metrics.metrics",),
        (),
        "engine.results._results:Sums",
        "a step's samples of FastDeploy's metrics are summed up, not observed one by one",
        "the samples are lost, the request goes on",
        ("output.token_processor:TokenProcessor._record_metrics",),
    ),
    Seam(
        "delivery",
        ENGINE,
        (_SCHEDULER,),
        (),
        "engine.delivery.delivery:handover_in",
        "a step's results go into FastDeploy's scheduler and out of it at once, not one by one",
        "the scheduler's own put_results gets what is not in it yet, its get_results gives what is there",
        (
            *("LocalScheduler.put_results", "LocalScheduler.get_results"),
            *(f"scheduler.data:ScheduledResponse.{name}" for name in ("__init__", "request_id", "finished")),
            *("=scheduler.local_scheduler:LocalScheduler", "=scheduler.data:ScheduledResponse"),
        ),
        looked_at=("LocalScheduler.put_results", "LocalScheduler.get_results"),
    ),
    Seam(
        "wake-up",
        ENGINE,
        (_SCHEDULER,),
        ("wait_response_timeout",),
        "engine.delivery.wake_up:WakeUp",
        "FastDeploy's sender is woken when results are put, it does not look for them now and then",
        "the scheduler keeps the wait that it has",
        ("LocalScheduler.put_results", "LocalScheduler.get_results"),
    ),
    Seam(
        "sending",
        ENGINE,
        ("fastdeploy.engine.common_engine",),
        ("EngineService._zmq_send_generated_tokens",),
        "engine.delivery.delivery:Delivery",
        "a step's results are sorted, packed and sent in one go, not one by one, without dictionaries",
        "FastDeploy's send_response sends the batch, and its loop goes on with what was put back",
        (
            *("EngineService._zmq_send_generated_tokens", "EngineService._decode_token"),
            *("inter_communicator.zmq_server:ZmqServerBase._send_batch_response",),
            *("inter_communicator.zmq_server:ZmqServerBase.send_response",),
            *("inter_communicator.zmq_server:_msgpack_default",),
            *(f"=inter_communicator.zmq_server:{name}" for name in ("ZmqServerBase", "ZmqIpcServer")),
        ),
        looked_at=(
            "EngineService._decode_token",
            *(f"inter_communicator.zmq_server:ZmqServerBase.{name}" for name in _SENDS),
        ),
    ),
    Seam(
        "scheduling",
        ENGINE,
        ("fastdeploy.engine.sched.resource_manager_v1",),
        ("schedule", "exist_tasks", "put_tasks"),
        "engine.scheduling:Scheduling",
        "the schedule thread does not ask again between two steps what cannot have changed",
        "FastDeploy's round is made",
        (
            *("ResourceManagerV1.schedule", "ResourceManagerV1._is_decoding"),
            *("ResourceManagerV1.allocated_slots", "ResourceManagerV1.update_metrics"),
            "ResourceManagerV1._log_console_scheduler_metrics",
            *(f"inter_communicator.engine_worker_queue:EngineWorkerQueue.{name}" for name in _TASKS),
            "engine.common_engine:EngineService._schedule_request_to_worker_v1",
        ),
        looked_at=(
            "ResourceManagerV1.schedule",
            *(f"inter_communicator.engine_worker_queue:EngineWorkerQueue.{name}" for name in _TASKS[:2]),
        ),
    ),
    Seam(
        "decode log",
        ENGINE,
        ("fastdeploy.engine.sched.scheduler_metrics_logger",),
        (),
        "engine.processor.step:adds_up",
        "the scheduler's log gets a step's tokens in one call, not each request's",
        "the log lacks the tokens, the request goes on",
        (
            "SchedulerMetricsLogger.on_decode_tokens",
            "output.token_processor:TokenProcessor._is_decode_stage",
            "=engine.sched.scheduler_metrics_logger:SchedulerMetricsLogger",
        ),
    ),
    Seam(
        "api chunks",
        API,
        (_SERVING + "chat", _SERVING + "completion"),
        (
            "OpenAIServingChat.chat_completion_stream_generator",
            "OpenAIServingCompletion.completion_stream_generator",
            "asyncio",
        ),
        "api.activation:install",
        "chunks in the middle of a stream are written from a template, without FastDeploy's generator",
        "FastDeploy's generator gets the result and writes the chunk",
        (
            "OpenAIServingChat.chat_completion_stream_generator",
            "OpenAIServingCompletion.completion_stream_generator",
            *(
                f"OpenAIServingCompletion.{name}"
                for name in ("_call_process_response_dict", "_process_echo_logic")
            ),
            *(
                f"entrypoints.openai.response_processors:ChatResponseProcessor.{name}"
                for name in ("__init__", "process_response_chat", "enable_multimodal_content")
            ),
            "input.base_processor:BaseTextProcessor.process_response_dict",
        ),
        has_path=False,
    ),
    Seam(
        "api answers",
        API,
        (_SERVING + "chat", _SERVING + "completion"),
        (
            "OpenAIServingChat.chat_completion_full_generator",
            "OpenAIServingCompletion.completion_full_generator",
        ),
        "api.answers:install",
        "long lists of answers that are not streamed go around FastDeploy's models into the response",
        "FastDeploy's models get the values from then on",
        (
            *("OpenAIServingChat.create_chat_completion", "OpenAIServingCompletion.create_completion"),
            "OpenAIServingChat.chat_completion_full_generator",
            "OpenAIServingCompletion.completion_full_generator",
            "OpenAIServingChat._create_chat_completion_choice",
            "OpenAIServingCompletion.request_output_to_completion_response",
            *("OpenAIServingChat._make_sampling_mask_list", "OpenAIServingChat._create_chat_logprobs"),
            "OpenAIServingCompletion._create_completion_logprobs",
            *("*._build_logprobs_response", "*._build_prompt_logprobs", "*._make_logprob_dict"),
            *("utils:clamp_prompt_logprobs", "worker.output:Logprob.__post_init__"),
            "entrypoints.openai.response_processors:ChatResponseProcessor.process_response_chat",
        ),
    ),
    Seam(
        "api connections",
        API,
        (_UTILS,),
        (
            *("DealerConnectionManager.__init__", "DealerConnectionManager.initialize"),
            *("DealerConnectionManager.get_connection", "DealerConnectionManager.request_map"),
        ),
        "api.connections:install",
        "results are kept that come before their request is registered",
        "FastDeploy's map drops an early result; its request ends with an error that says so",
        (
            *("DealerConnectionManager._dispatch_batch_responses", "DealerConnectionManager.get_connection"),
            *("DealerConnectionManager.cleanup_request", "utils:get_base_request_id"),
            "=entrypoints.openai.utils:DealerConnectionManager",
        ),
    ),
    Seam(
        "api dispatcher",
        API,
        (_UTILS,),
        (
            "DealerConnectionManager._dispatch_batch_responses",
            *("DealerConnectionManager._listen_connection", "main_process_metrics"),
            "DealerConnectionManager.pull_client",
        ),
        "api.dispatcher:install",
        "results are received after any error, or their streams end with one",
        "FastDeploy's own loop is started again",
    ),
    Seam(
        "api unpacking",
        API,
        (_UTILS,),
        ("msgpack",),
        "api.unpacking:install",
        "log-probabilities stay packed until they are written, and experts are arrays",
        "msgpack unpacks the message",
        ("DealerConnectionManager._dispatch_batch_responses", "utils:get_base_request_id"),
    ),
    Seam(
        "api watchdog",
        API,
        (_CLIENT,),
        (
            "EngineClient.add_requests",
            "EngineClient.check_health",
            "EngineClient.run_control_method",
            "serving_chat.OpenAIServingChat.create_chat_completion",
            "serving_completion.OpenAIServingCompletion.create_completion",
            "serving_embedding.OpenAIServingEmbedding.create_embedding",
            "serving_reward.OpenAIServingReward.create_reward",
        ),
        "api.watchdog:install",
        "requests end when the engine's process is gone",
        "FastDeploy's own method answers; the engine is not watched",
    ),
    Seam(
        "api start",
        API,
        (_CLIENT,),
        ("EngineClient.create_zmq_client",),
        "api.entry:install",
        "the program's own classes are replaced, and the gauges are set, when the server starts",
        "FastDeploy's own classes stay",
    ),
    Seam(
        "api detokenising",
        API,
        _INPUTS,
        ("*.__init__", "*.ids2tokens"),
        "api.text.detokenising:install",
        "new text is put together from the bytes of the tokens",
        "FastDeploy's ids2tokens decodes, from the state before",
        ("*.ids2tokens",),
    ),
    Seam(
        "api parsers",
        API,
        _INPUTS,
        ("*.process_response_dict_streaming", "*.process_response_dict_normal"),
        "api.text.parsers:install",
        "known parsers are given an excerpt of the answer so far, and results of several tokens in pieces",
        "FastDeploy's own method parses the whole answer so far",
        ("*.process_response_dict_streaming", "*.process_response_dict_normal", "*.ids2tokens"),
    ),
    Seam(
        "api responses",
        API,
        ("fastdeploy.entrypoints.openai.api_server",),
        ("JSONResponse", "connection_manager"),
        "api.responses:install",
        "long answers that are not streamed are written in pieces",
        "the answer is an error; FastDeploy's models get the values of the next ones",
        is_program=True,
    ),
    Seam(
        "save ops",
        WORKER,
        ("fastdeploy.model_executor.ops.gpu", "fastdeploy.model_executor.ops.*"),
        (
            *("save_output", "save_output_topk", "speculate_save_output", "speculate_save_output_topk"),
            *("mtp_save_first_token", "mtp_save_first_token_with_topk"),
        ),
        "worker.entry:replace_save_ops",
        "a step is one small message, and no kernel limit has to be raised",
        "FastDeploy's op sends, if nothing was sent; over ZeroMQ the worker ends with the exception",
        has_path=False,
    ),
    Seam(
        "streams",
        WORKER,
        (_SAVING,),
        ("_build_stream_transfer_data",),
        "worker.stream_builder:install",
        "a step over ZeroMQ is one frame, not an object with tensors for each request",
        "FastDeploy's builder makes its objects, if no piece of a long step was sent",
        (
            "_build_stream_transfer_data",
            *(f"worker.output:LogprobsTensors.{name}" for name in ("slice_rows", "tolists")),
            "output.stream_transfer_data:StreamTransferData.__post_init__",
        ),
        has_path=False,
    ),
)

SEAMS = {row.name: row for row in _ROWS}
"""All seams by name."""

API_PARTS = {row.name: row for row in _ROWS if row.side == API and row.has_path}
"""The API side's seams besides chunks, in the order of their installation."""
