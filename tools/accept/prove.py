"""Ours beside FastDeploy's own code, in the tree that is first on the import path.

Each comparison gives an empty text where both did the same, or the first difference.
"""

import ast
import asyncio
import contextlib
import functools
import importlib
import logging
import pickle
import pkgutil
import random
import time
from collections import Counter
from types import SimpleNamespace

from fd_postproc.fastdeploy.api import connections, feed, unpacking
from fd_postproc.fastdeploy.engine.delivery import sending
from fd_postproc.fastdeploy.engine.processor_class import make_class
from fd_postproc.fastdeploy.engine.results.result_classes import plan_of
from fd_postproc.fastdeploy.events.guard import Guard
from fd_postproc.fastdeploy.gate import judgements
from fd_postproc.fastdeploy.gate.contract import contract_gap
from fd_postproc.fastdeploy.gate.judgements import gate
from fd_postproc.fastdeploy.gate.seams import SEAMS

from . import (
    answer_scripts,
    answers,
    classes,
    deliveries,
    manager_rounds,
    parser_trial,
    random_steps,
    reading,
    trial,
    virtual_time,
)

SAME = ""
OVER_ZEROMQ = "token processor, ZeroMQ"
"""The part of the token processor that only steps as objects need."""
STEPS = ("token processor", "dictionaries", "stamps", "metrics")
WAY_OUT = ("delivery", "wake-up", "sending")
DISPATCHER = ("api connections", "api unpacking")
TEXTS = ("api detokenising", "api parsers")
_GUARD = Guard("api connections")


def _told(run, *arguments):
    """The text of what a comparison finds; it never raises."""
    try:
        return run(*arguments) or SAME
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ---- The engine's class ------------------------------------------------------------------------------------


def processor(module, rounds, streamed, traits, progress, make=make_class):
    """The first difference of FastDeploy's class and `make`'s; steps are messages of a queue, or objects."""
    gap = contract_gap(module)
    if gap:
        return gap
    pair, facts = classes.prepared(module, make)
    with pair[0].box:
        return _first_of_all(pair, facts, rounds, streamed, traits, progress)


def _first_of_all(pair, facts, rounds, streamed, traits, progress):
    """The first difference in random scripts; of each kind FastDeploy's own class has to take a quarter."""
    traits["mark"] = facts.mark
    tried, equal, refused = Counter(), Counter(), {}
    for number in range(rounds):
        if number % 50 == 0:
            progress("steps over ZeroMQ" if streamed else "steps", number, rounds)
        script = random_steps.script(number, facts, streamed)
        kind = f"{script.channel}, {script.role}"
        tried[kind] += 1
        try:
            found = classes.first_difference_in(script, *pair, facts)
        except RuntimeError as error:
            refused[kind] = str(error)
            continue
        if found:
            return f"random script {number}: {found}"
        equal[kind] += 1
    few = [f"{kind}: {equal[kind]} of {tried[kind]} ran: {refused[kind]}" for kind in refused
           if equal[kind] < tried[kind] / 4]  # fmt: skip
    return few[0] if few else SAME


# ---- Scheduler and sender ----------------------------------------------------------------------------------


def way_out(module):
    """Whether delivery and sending are equal, and the wait ends; by seam."""
    plan = plan_of(module)
    scheduler = importlib.import_module("fastdeploy.scheduler.local_scheduler").LocalScheduler
    service = getattr(importlib.import_module(sending.ENGINE), "EngineService", None)
    stock = sending.Stock.of(scheduler, service, importlib.import_module(sending.SERVER))
    told = deliveries.try_out(plan, stock)
    return {
        "delivery": SAME if told.hands_over else "differs, or takes another way",
        "sending": SAME if told.sends else "differs, or takes another way",
        "wake-up": SAME if deliveries.is_woken(scheduler, plan) else "does not wait as long as it says",
    }


def decode_log(module):
    """Whether the scheduler's log adds up, and counts once as many tokens are computed as a prefill needs."""
    log_module = importlib.import_module("fastdeploy.engine.sched.scheduler_metrics_logger")
    log = log_module.SchedulerMetricsLogger(enabled=True, dp_rank=0)
    parts, whole = _twin(log), _twin(log)
    parts.on_decode_tokens(2)
    parts.on_decode_tokens(3)
    whole.on_decode_tokens(5)
    if vars(parts) != vars(whole):
        return "a sum leaves another state behind"
    for need, done, decodes in ((None, 5, False), (5, 4, False), (5, 5, True), (5, 6, True)):
        task = SimpleNamespace(need_prefill_tokens=need, num_computed_tokens=done)
        if module.TokenProcessor._is_decode_stage(None, task) is not decodes:
            return f"a request decodes otherwise at {done} of {need} tokens"
    return SAME


def _twin(log):
    twin = object.__new__(type(log))
    for name, value in vars(log).items():
        setattr(twin, name, value.copy() if isinstance(value, list | dict | set) else value)
    return twin


# ---- The API server ----------------------------------------------------------------------------------------


def chunks(rounds, progress, whole=False):
    """The first difference of streams of chat and completions; `whole`: of answers that are not streamed."""
    for name in ("serving_chat", "serving_completion"):
        module = importlib.import_module(f"fastdeploy.entrypoints.openai.{name}")
        chat = name == "serving_chat"
        scripts = answer_scripts.scripts(chat, rounds)
        what = functools.partial(progress, f"{'answers' if whole else 'streams'} of {name}")
        found = answers.first_difference(module, scripts, what, whole)
        if found:
            return f"{name}: {found}"
    return SAME


def dispatcher(module):
    """The first difference of what reaches the queues of results, with and without our parts."""
    stock, outcomes = importlib.import_module("msgpack"), []
    module.ZMQMetricsStats = module.main_process_metrics = _Anything()
    are_batches = hasattr(module.DealerConnectionManager, unpacking.DISPATCHER)
    for msgpack, make in ((stock, dict), (unpacking.UnpackingMsgpack(stock), connections.RequestMap)):
        module.msgpack = msgpack
        received = _dispatched(module, make) if are_batches else _listened(module, make is not dict)
        with virtual_time.Loop() as loop:
            outcomes.append(loop.run_until_complete(received))
    theirs, ours = outcomes
    return SAME if repr(theirs) == repr(ours) else "queues get other results"


class _Anything:
    """Stands for metrics: takes every call and attribute."""

    msg_recv_total = 0

    def __call__(self, *arguments, **named):
        return self

    def __getattr__(self, name):
        return self


async def _dispatched(module, make):
    manager = object.__new__(module.DealerConnectionManager)
    names = ["chatcmpl-1", "cmpl-2", "embd-3", "plain"]
    manager.request_map = make({name: asyncio.Queue() for name in names})
    queues = dict(manager.request_map)
    manager.pull_metrics_address, manager.running, manager.lock = "", True, asyncio.Lock()
    manager.pull_client = _Messages(manager, names)
    manager.request_num, manager.connection_load = {}, []
    await asyncio.wait_for(module.DealerConnectionManager._dispatch_batch_responses(manager), 60)
    _, queue = await manager.get_connection("chatcmpl-9", 2)
    await manager.cleanup_request("chatcmpl-9")
    left = sorted(manager.request_map), type(queue).__name__ in ("Queue", "QuickQueue")
    return [[queue.get_nowait() for _ in range(queue.qsize())] for queue in queues.values()], left


async def _listened(module, is_ours):
    """What streams get of results that come one by one; ours waits at the queue in their place."""
    cls, names, waits = module.DealerConnectionManager, ["chatcmpl-1", "cmpl-2", "embd-3", "plain"], []
    manager, dealer = cls(0), _Messages(None, names)
    manager.running, dealer.manager, dealer.transport = True, manager, _Anything()
    dealer.pack = lambda groups: pickle.dumps(groups[0])
    manager.connections, manager.connection_load, manager.connection_heap = [dealer], [0], [(0, 0)]
    connect = connections.with_inboxes(cls.get_connection, _GUARD) if is_ours else cls.get_connection
    for name in names:
        request = SimpleNamespace(return_token_ids=False, include_draft_logprobs=False)
        asked = SimpleNamespace(columns=None, prompt_columns=None)
        connections.registering.set(feed.Feed(name, request, asked, None, _GUARD, _GUARD))
        waits.append((await connect(manager, name, 2))[1])
    await asyncio.wait_for(cls._listen_connection(manager, dealer, 0), 60)
    sizes = [manager.request_map[name].qsize() for name in names]
    got = [[await one.get() for _ in range(size)] for one, size in zip(waits, sizes, strict=True)]
    await manager.cleanup_request("plain")
    are_known = {type(one) is feed.Feed for one in waits} == {is_ours}
    return are_known, got, sorted(manager.request_map), manager.connection_load


class _Messages:
    """Stands for the stream: random results of requests, then the end."""

    def __init__(self, manager, names):
        self.manager, self.left, self.draw, self.names = manager, 400, random.Random(5), names
        self.pack = importlib.import_module("msgpack").packb

    async def read(self):
        self.left -= 1
        if self.left == 0:
            self.manager.running = False
        if self.left % 150 == 7:
            return [b"\xc1 no message"]
        return [b"", self.pack([self._results() for _ in range(self.draw.randrange(1, 6))])]

    def _results(self):
        name, draw = self.draw.choice(self.names), self.draw
        spelt = name if name == "plain" else f"{name}{draw.choice('_:')}{draw.randrange(3)}"
        rows = [[[5, 70000], [6, 1]], [[-0.5, -1.5], [-0.25, 0.0]], [1, 300]]
        return [
            {
                "request_id": spelt,
                "outputs": {"token_ids": [5], "send_idx": number, "top_logprobs": draw.choice((None, rows))},
                "finished": draw.random() < 0.1,
            }
            for number in range(draw.randrange(1, 4))
        ]


TEXT_NAMES = {
    *("envs", "FD_USE_HF_TOKENIZER", "decode_status", "extend", "tokenizer", "batch_decode", "isinstance"),
    *("list", "len", "replace", "append", "decode_token", "NotImplementedError"),
}
PARSER_NAMES = {
    *("__class__", "__name__", "content", "data_processor_logger", "decode", "decode_status", "eos_token_id"),
    *("eos_token_ids", "extract_reasoning_content", "extract_reasoning_content_streaming", "tools_called"),
    *("extract_tool_calls", "extract_tool_calls_streaming", "get", "hasattr", "ids2tokens", "info", "len"),
    *("model_status_dict", "reasoning_content", "reasoning_parser", "tokenize", "tokenizer", "tool_calls"),
    *("tool_parser_dict", "tool_parser_obj"),
}
"""Names that methods may use which are read here, not run."""


READ_NAMES = {
    "extract_reasoning_content_streaming": frozenset(
        {
            "DeltaMessage", "_extract_response_content", "_is_with_tool", "endswith", "find", "len", "lstrip",
            "partition", "response_end_token", "response_end_token_id", "response_start_token",
            "response_start_token_id", "startswith", "strip", "think_end_token", "think_end_token_id",
            "think_start_token", "think_start_token_id", "tool_call_end_token_id", "tool_call_start_token",
            "tool_call_start_token_id", "tool_begin_token", "tool_begin_token_id",
        }
    ),
    "extract_tool_calls_streaming": frozenset(
        {
            "ALL", "Allow", "DOTALL", "DeltaFunctionCall", "DeltaMessage", "DeltaToolCall", "Exception",
            "JSONDecodeError", "MalformedJSON", "STR", "append", "bracket_counts", "buffer", "core", "count",
            "current_tool_id", "current_tool_name_sent", "data_processor_logger", "debug", "decoder",
            "dumps", "end", "endswith", "enumerate", "error", "escape", "exceptions", "find", "format_exc",
            "get", "group", "isinstance", "json", "len", "loads", "log_request_error", "logger", "lstrip",
            "max", "model_dump", "partial_json_parser", "prev_tool_call_arr", "random_tool_call_id", "re",
            "replace", "request_id", "rindex", "rstrip", "search", "split", "str", "streamed_args_for_tool",
            "strip", "tool_call_end_token", "tool_call_start_token", "tool_call_start_token_id", "traceback",
            "valid", "warning",
        }
    ),
}  # fmt: skip
"""Names that the streaming methods of FastDeploy's parsers, and what they call, may use."""


def parsers(tree):
    """The names that parsers' methods use and no accepted version did, by a tree's classes."""
    told = {}
    for (cls, start, _), methods in reading.parsers(tree).items():
        for name, node in methods.items():
            constants = compile(ast.Module([node], []), "a parser", "exec").co_consts
            used = {each for one in constants if hasattr(one, "co_names") for each in one.co_names}
            new = used - READ_NAMES[start] - {"NotImplementedError", "AttributeError"}
            if new:
                told[cls] = f"{name} uses {', '.join(sorted(new))}"
    return told


def names(seam):
    """The names that a seam's functions use and no accepted version did, by a seam's modules."""
    row = SEAMS[seam]
    for place in row.modules:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError:
            continue
        for name, function in judgements.functions_of(row, module, ()):
            new = {*function.__code__.co_names} - TEXT_NAMES - PARSER_NAMES
            if new and "output_fallback_manager" not in new:  # which is asked for an object at run time
                return (
                    f"{name} is read, not run, and uses what no known version does: {', '.join(sorted(new))}"
                )
    return SAME


def proven(parts, rounds, progress):
    """By part (a seam, or `OVER_ZEROMQ`), an empty text or the first difference; and the facts.

    Parameters
    ----------
    parts : list of str
        Those to be tried.
    rounds : int
        Random scripts for each comparison.
    progress : callable
        It is given what runs, and how many of how many scripts have run.
    """
    logging.disable(logging.CRITICAL)
    traits, told, wanted = {}, {}, set(parts)
    real = time.time
    time.time = lambda: 1_800_000_000.0  # the same for both: sums of many stamps are compared
    trial._BETWEEN_STEPS = 0.0
    gate.judge = lambda *arguments, **named: judgements.Verdict((), {})  # nothing is left to FastDeploy
    if wanted & {*STEPS, OVER_ZEROMQ, "decode log", *WAY_OUT}:
        module = importlib.import_module("fastdeploy.output.token_processor")
    if wanted & {*STEPS, OVER_ZEROMQ}:
        queue = streamed = SAME
        if wanted & {*STEPS}:
            queue = _told(processor, module, rounds, False, traits, progress)
        if wanted & {"token processor", OVER_ZEROMQ}:
            streamed = queue or _told(processor, module, rounds, True, {}, progress)
        told |= dict.fromkeys(STEPS, queue)
        if OVER_ZEROMQ in wanted:
            told[OVER_ZEROMQ] = streamed
        else:  # known, and it calls what is new
            told["token processor"] = queue or streamed
    if "decode log" in wanted:
        told["decode log"] = _told(decode_log, module)
    if "scheduling" in wanted:
        told["scheduling"] = _told(manager_rounds.first_difference, rounds, progress)
    if wanted & {*WAY_OUT}:
        progress("delivery", 0, 1)
        try:
            told |= way_out(module)
        except Exception as error:
            told |= dict.fromkeys(WAY_OUT, f"{type(error).__name__}: {error}")
    time.time = real
    if "api chunks" in wanted:
        told["api chunks"] = _told(chunks, rounds, progress)
    if "api answers" in wanted:
        told["api answers"] = _told(functools.partial(chunks, whole=True), rounds, progress)
    if wanted & {*DISPATCHER}:
        progress("dispatcher", 0, 1)
        utils = importlib.import_module("fastdeploy.entrypoints.openai.utils")
        told |= dict.fromkeys(DISPATCHER, _told(dispatcher, utils))
    for seam in wanted & {*TEXTS}:
        told[seam] = _told(names, seam)
    told["streams"] = SAME
    tried = parser_trial.differences(_modules(reading.FOLDERS)) if reading.PARSERS in wanted else {}
    return {"facts": traits, "parts": told, "parsers": tried}


def _modules(folders):
    """Names of the modules in some of FastDeploy's folders, as far as there are any."""
    for name in [one.replace("/", ".") for one in folders]:
        with contextlib.suppress(ModuleNotFoundError):
            path = importlib.import_module(name).__path__
            yield from (one.name for one in pkgutil.iter_modules(path, f"{name}."))
