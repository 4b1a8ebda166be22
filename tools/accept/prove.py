"""Ours beside FastDeploy's own code, in the tree that is first on the import path.

Each comparison gives an empty text where both did the same, or the first difference.
"""

import asyncio
import importlib
import logging
import random
import time
from functools import partial

SAME = ""
GROUPS = {
    "engine": ("token processor", "dictionaries", "stamps", "metrics", "decode log"),
    "way out": ("delivery", "wake-up", "sending"),
    "chunks": ("api chunks",),
    "dispatcher": ("api connections", "api unpacking", "api stream_queue"),
    "texts": ("api detokenising", "api parsers"),
    "worker": ("streams",),
}
"""Seams that are tried together."""


def _told(run, *arguments):
    """The text of what a comparison finds; it never raises."""
    try:
        return run(*arguments) or SAME
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ---- The engine's class ------------------------------------------------------------------------------------


def processor(module, rounds, streamed, traits):
    """The first difference of the classes, where steps are messages of a queue or objects."""
    canned = importlib.import_module("fd_postproc.fastdeploy.trial.canned")
    compatibility = importlib.import_module("fd_postproc.fastdeploy.trial.compatibility")
    features = importlib.import_module("fd_postproc.fastdeploy.trial.features")
    more_steps = importlib.import_module("fd_postproc.fastdeploy.trial.more_steps")
    sandbox = importlib.import_module("fd_postproc.fastdeploy.trial.sandbox")
    make_class = importlib.import_module("fd_postproc.fastdeploy.engine.processor_class").make_class
    gap = compatibility.contract_gap(module)
    if gap:
        return gap
    box, ours = sandbox.Sandbox(module), sandbox.Sandbox(module)
    facts = features.Facts.of(module, box)
    cls = make_class(ours.module)
    for name, value in facts.traits.items():
        setattr(cls, name, value)
        traits[name] = value
    pair = compatibility.Pair(box, box.module.TokenProcessor), compatibility.Pair(ours, cls)
    for script in (*canned.STREAMED_SCRIPTS, *_zeros(canned)) if streamed else canned.SCRIPTS:
        found = compatibility.first_difference_in(script, *pair, facts)
        if found:
            return f"{script.name}: {found}"
    equal = 0
    for number in range(rounds):
        try:
            found = compatibility.first_difference_in(more_steps.script(number, facts, streamed), *pair, facts)
        except RuntimeError:  # FastDeploy's own class does not take it
            continue
        if found:
            return f"random script {number}: {found}"
        equal += 1
    return SAME if equal >= rounds // 4 else f"FastDeploy's own class takes {equal} of {rounds} scripts only"


def _zeros(canned):
    """Token 0 over ZeroMQ, which FastDeploy took for none until February 2026."""
    steps = tuple(canned.CannedMessage(((token,), (12,))) for token in (0, 11, 0))
    yield canned.Script("token 0", "plain", (canned.RUNNING, canned.FIRST), steps, streamed=True)


# ---- Scheduler and sender ----------------------------------------------------------------------------------


def way_out(module):
    """Whether delivery and sending are equal, and the wait ends; by seam."""
    result_classes = importlib.import_module("fd_postproc.fastdeploy.engine.results.result_classes")
    sending = importlib.import_module("fd_postproc.fastdeploy.engine.delivery.sending")
    trial = importlib.import_module("fd_postproc.fastdeploy.engine.delivery.trial")
    wake_up = importlib.import_module("fd_postproc.fastdeploy.engine.delivery.wake_up")
    plan = result_classes.plan_of(module)
    scheduler = importlib.import_module("fastdeploy.scheduler.local_scheduler").LocalScheduler
    service = getattr(importlib.import_module(sending.ENGINE), "EngineService", None)
    stock = sending.Stock.of(scheduler, service, importlib.import_module(sending.SERVER))
    told = trial.try_out(plan, stock)
    return {
        "delivery": SAME if told.hands_over else "differs, or takes another way",
        "sending": SAME if told.sends else "differs, or takes another way",
        "wake-up": SAME if wake_up.is_woken(scheduler, {}, plan) else "does not wait as long as it says",
    }


def decode_log(module):
    """Whether the scheduler's log adds up."""
    adds_up = importlib.import_module("fd_postproc.fastdeploy.engine.delivery.decode_log").adds_up
    logs = importlib.import_module("fastdeploy.engine.sched.scheduler_metrics_logger")
    log = logs.SchedulerMetricsLogger(enabled=True, dp_rank=0)
    decodes = partial(module.TokenProcessor._is_decode_stage, None)
    return SAME if adds_up(log, decodes) else "a sum leaves another state behind"


# ---- The API server ----------------------------------------------------------------------------------------


def chunks(rounds):
    """The first difference of the answers of chat and completions."""
    trial = importlib.import_module("fd_postproc.fastdeploy.api.trial")
    canned = importlib.import_module("fd_postproc.fastdeploy.api.canned")
    for name in ("serving_chat", "serving_completion"):
        module = importlib.import_module(f"fastdeploy.entrypoints.openai.{name}")
        scripts = [canned.random_script(number, name == "serving_chat") for number in range(rounds)]
        verdict, blocks = trial.compare(module)
        if not verdict.compatible:
            return f"{name}: {verdict.reason}"
        found = trial.in_a_thread_of_its_own(partial(trial._first_difference, module, blocks, scripts))
        if found:
            return f"{name}: {found}"
    return SAME


def dispatcher(module):
    """The first difference of what reaches the queues of results, with and without our msgpack and map."""
    unpacking = importlib.import_module("fd_postproc.fastdeploy.api.unpacking")
    connections = importlib.import_module("fd_postproc.fastdeploy.api.connections")
    if not hasattr(module.DealerConnectionManager, unpacking.DISPATCHER):
        return "results come one by one here"
    stock = importlib.import_module("msgpack")
    module.ZMQMetricsStats = module.main_process_metrics = _Anything()
    outcomes = []
    for msgpack, make in ((stock, dict), (unpacking.UnpackingMsgpack(stock), connections.RequestMap)):
        module.msgpack = msgpack
        outcomes.append(asyncio.run(_dispatched(module, make)))
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
    *("envs", "FD_USE_HF_TOKENIZER", "decode_status", "extend", "tokenizer", "batch_decode", "isinstance", "list"),
    *("len", "replace", "append", "decode_token", "NotImplementedError"),
}
PARSER_NAMES = {
    *("__class__", "__name__", "content", "data_processor_logger", "decode", "decode_status", "eos_token_id"),
    *("eos_token_ids", "extract_reasoning_content", "extract_reasoning_content_streaming", "tools_called"),
    *("extract_tool_calls", "extract_tool_calls_streaming", "get", "hasattr", "ids2tokens", "info", "len"),
    *("model_status_dict", "reasoning_content", "reasoning_parser", "tokenize", "tokenizer", "tool_calls"),
    *("tool_parser_dict", "tool_parser_obj"),
}
"""Names that methods may use which are read here, not run: real tokenizers try them at the start."""


def names(seam, table):
    """The names that a seam's functions use and no accepted version did, by a seam's modules."""
    row = importlib.import_module("fd_postproc.fastdeploy.seams").SEAMS[seam]
    gate = importlib.import_module("fd_postproc.fastdeploy.gate")
    for place in row.modules:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError:
            continue
        for name, function in gate.functions_of(row, module, ()):
            new = {*function.__code__.co_names} - table
            if new:
                return f"{name} uses {', '.join(sorted(new))}"
    return SAME


def proven(groups, rounds):
    """By seam, an empty text or the first difference, for some of `GROUPS`; and the facts."""
    logging.disable(logging.CRITICAL)
    module = importlib.import_module("fastdeploy.output.token_processor")
    traits, told = {}, {}
    real = time.time
    time.time = lambda: 1_800_000_000.0  # the same for both: sums of many stamps are compared
    importlib.import_module("fd_postproc.fastdeploy.trial.trial")._BETWEEN_STEPS = 0.0
    if "engine" in groups:
        queue = _told(processor, module, rounds, False, traits)
        told = dict.fromkeys(("token processor", "dictionaries", "stamps", "metrics"), queue)
        told["token processor, socket"] = queue or _told(processor, module, rounds, True, {})
        told["decode log"] = queue or _told(decode_log, module)
    if "way out" in groups:
        try:
            told |= way_out(module)
        except Exception as error:
            told |= dict.fromkeys(GROUPS["way out"], f"{type(error).__name__}: {error}")
    time.time = real
    if "chunks" in groups:
        told["api chunks"] = _told(chunks, rounds)
    if "dispatcher" in groups:
        utils = importlib.import_module("fastdeploy.entrypoints.openai.utils")
        told |= dict.fromkeys(GROUPS["dispatcher"], _told(dispatcher, utils))
    if "texts" in groups:
        told["api detokenising"] = _told(names, "api detokenising", TEXT_NAMES)
        told["api parsers"] = _told(names, "api parsers", PARSER_NAMES)
    if "worker" in groups:
        told["streams"] = SAME
    return {"facts": traits, "seams": told}
