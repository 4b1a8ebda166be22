"""In a process of its own: FastDeploy with one change, and what the plug-in does there."""

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import logging
import os
import sys
import tempfile
import traceback
from functools import partial

PACKAGES = ("fastdeploy.", "tests.restated.")
FAST, SLOW, ASIDE, DIFFERENT, RAISES, NO_PLACE, BROKEN = (
    *("equal and fast", "equal, a part left", "falls back", "ACTIVE AND DIFFERENT", "EXCEPTION"),
    *("no such place", "FastDeploy itself fails"),
)
GOOD = (FAST, SLOW, ASIDE)
RELOADED = tuple(
    f"fastdeploy.{name}"
    for name in (
        *("output.token_processor", "output.stream_transfer_data", "engine.request", "worker.output"),
        *(
            "scheduler.local_scheduler",
            "scheduler.data",
            "inter_communicator",
            "inter_communicator.zmq_server",
            "engine.common_engine",
        ),
    )
)
"""Of a source tree, which takes long to import: the modules that are imported anew for each change."""
SERVED = tuple(
    f"fastdeploy.entrypoints.openai.{name}" for name in ("protocol", "serving_chat", "serving_completion")
)
"""The same of an API server's."""
SCRIPTS = 12
ANSWERS = 40
BATCH = 40


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds FastDeploy's modules, with the edits of one change in their text.

    Attributes
    ----------
    found : list of str
        Modules in which an edit has found its place.
    """

    def __init__(self, change):
        self.change, self.found = change, []

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(PACKAGES):
            return None
        edits = [one for where, one in self.change.edits if name.startswith(where)]
        spec = importlib.machinery.PathFinder.find_spec(name, path) if edits else None
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            return None
        with open(spec.origin, "rb") as file:
            tree = ast.parse(importlib.util.decode_source(file.read()))
        if sum(one(tree) for one in edits) == 0:
            return None
        self.found.append(name)
        # A file of its own: what reads FastDeploy's sources finds these.
        folder = tempfile.mkdtemp(prefix="changed-")
        file = os.path.join(folder, os.path.basename(spec.origin))
        with open(file, "w") as out:
            out.write(ast.unparse(ast.fix_missing_locations(tree)))
        return importlib.util.spec_from_file_location(
            name, file, submodule_search_locations=spec.submodule_search_locations
        )


def judge(change):
    """(outcome, why): one of the words above, and the parts that are left, or the reason."""
    for name in SERVED if change.serving else RELOADED:
        sys.modules.pop(name, None)
    finder = Changed(change)
    sys.meta_path.insert(0, finder)
    os.environ.update(change.environment)
    if change.shapes:
        _change_shapes(change)
    logging.disable(logging.CRITICAL)
    if change.serving:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            told = _judged_serving()
        return told if finder.found else (NO_PLACE, "")
    try:
        module = importlib.import_module("fastdeploy.output.token_processor")
        importlib.import_module("fastdeploy.inter_communicator.zmq_server")
        importlib.import_module("fastdeploy.scheduler.local_scheduler")
    except Exception as error:
        return BROKEN, f"{type(error).__name__}: {error}"
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        told = _judged(module, change)
    if told == (ASIDE, ""):
        told = ASIDE, said.getvalue().strip().rpartition("is used: ")[2]
    if not finder.found and not (change.shapes and not _is_tree()):
        return NO_PLACE, ""
    return told


def _is_tree():
    return not importlib.import_module("fastdeploy").__version__.endswith("double")


def _change_shapes(change):
    """The double takes its classes from a recording: it is changed, too."""
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "shapes")
    name = os.environ.get("FD_POSTPROC_DOUBLE") or "26"
    file = name if name.endswith(".json") else os.path.join(folder, f"{name}.json")
    with open(file) as before:
        told = json.load(before)
    for one in change.shapes:
        told = one(told)
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as after:
        json.dump(told, after)
    os.environ["FD_POSTPROC_DOUBLE"] = after.name


def _judged_serving():
    """As an API server decides; then with more answers than its trial has."""
    trial = importlib.import_module("fd_postproc.fastdeploy.api.trial")
    canned = importlib.import_module("fd_postproc.fastdeploy.api.canned")
    left = {}
    for name in ("serving_chat", "serving_completion"):
        what = name.partition("_")[2]
        try:
            module = importlib.import_module(f"fastdeploy.entrypoints.openai.{name}")
        except Exception as error:
            return BROKEN, f"{type(error).__name__}: {error}"
        try:
            verdict, blocks = trial.compare(module)
            if not verdict.compatible:
                left[what] = verdict.reason
                continue
            left |= {f"{what}, {name}": why for name, why in verdict.left}
            more = [canned.random_script(number, what == "chat") for number in range(1000, 1000 + ANSWERS)]
            found = trial.in_a_thread_of_its_own(partial(trial._first_difference, module, blocks, more))
        except Exception:
            return RAISES, traceback.format_exc().strip().splitlines()[-1]
        if found:
            return DIFFERENT, f"{what}: {found}"
    told = "; ".join(f"{name}: {why}" for name, why in left.items())
    if left.keys() == {"chat", "completion"}:
        return ASIDE, told
    return (SLOW, told) if left else (FAST, "")


def _judged(module, change):
    """As an engine decides; then what it is active with is held against FastDeploy's own, harder."""
    try:
        entry = importlib.import_module("fd_postproc.fastdeploy.engine.entry")
        if _falls_back(entry.token_processor(), module):
            return ASIDE, ""  # it is on standard error
        processor_class = importlib.import_module("fd_postproc.fastdeploy.engine.processor_class")
        activation = importlib.import_module("fd_postproc.fastdeploy.engine.activation")
        decision = activation.decide(module, processor_class.make_class, change.speculative)
        if not decision.compatible:
            return ASIDE, decision.reason
        importlib.import_module("fastdeploy.engine.common_engine")
        taken = importlib.import_module("fd_postproc.fastdeploy.report")._fast_paths(module)
    except Exception:
        return RAISES, traceback.format_exc().strip().splitlines()[-1]
    streamed = bool(change.environment) and not change.speculative
    difference = _difference(module, processor_class.make_class, taken, streamed)
    if difference:
        return DIFFERENT, difference
    left = [name for name, is_on in taken.items() if not is_on]
    if not taken:
        return SLOW, "no fast path can be examined"
    return (
        (SLOW, ", ".join(left))
        if left
        else (FAST, f"unknown: {', '.join(decision.unknown)}" if decision.unknown else "")
    )


def _falls_back(cls, module):
    return cls is module.TokenProcessor


# ---- The plug-in's parts beside FastDeploy's, with more than its own trial has ----------------------------


def _difference(module, make_class, taken, streamed):
    """The first difference that the plug-in's own trial did not find; None without one."""
    compatibility = importlib.import_module("fd_postproc.fastdeploy.trial.compatibility")
    trial = importlib.import_module("fd_postproc.fastdeploy.trial.trial")
    sandbox = importlib.import_module("fd_postproc.fastdeploy.trial.sandbox")
    features = importlib.import_module("fd_postproc.fastdeploy.trial.features")
    more_steps = importlib.import_module("fd_postproc.fastdeploy.trial.more_steps")
    make_task = trial.make_task
    trial.make_task = lambda box, slot, differing: _enriched(make_task(box, slot, differing), slot)
    box, ours = sandbox.Sandbox(module), sandbox.Sandbox(module)
    facts, cls = features.Facts.of(module, box), make_class(ours.module)
    for name, value in facts.traits.items():
        setattr(cls, name, value)
    pair = compatibility.Pair(box, box.module.TokenProcessor), compatibility.Pair(ours, cls)
    for number in range(1000, 1000 + SCRIPTS):
        script = more_steps.script(number, facts, streamed)
        try:
            found = compatibility.first_difference_in(script, *pair, facts)
        except RuntimeError:  # FastDeploy's own class does not take such a step
            continue
        if found:
            return f"{script.name}: {found}"
    trial.make_task = make_task
    return _difference_on_the_way_out(module, make_class, taken)


def _enriched(task, slot):
    """A request with what changes of the list look at; FastDeploy's ordinary ones have none of it."""
    task.stop_token_ids = [21, 22, 31, 1500, 100 + slot]
    task.wanted_columns, task.priority, task.hidden = 1, slot % 3, slot % 5 == 1
    task.user, task.audio_output_token_ids, task.paused = "a user", [1, 2], slot % 7 == 3
    return task


def _difference_on_the_way_out(module, make_class, taken):
    """The trials of scheduler, server and sender once more, with a batch that is not small."""
    trial = importlib.import_module("fd_postproc.fastdeploy.engine.delivery.trial")
    report = importlib.import_module("fd_postproc.fastdeploy.report")
    own = trial._steps

    def steps(plan):
        yield from own(plan)
        for size in (BATCH, 2 * BATCH):
            for number in range(3):
                yield (
                    [_result(plan, trial.MANY_NAMES[slot], slot, number == 2) for slot in range(size)],
                    True,
                    True,
                )

    trial._steps = steps
    again = report._fast_paths(module)
    wrong = [name for name, is_on in taken.items() if is_on and not again.get(name)]
    return f"with {BATCH} requests: {', '.join(wrong)}" if wrong else None


def _result(plan, name, slot, finished):
    made = plan.new_result(slot, 1, name, 3, None)
    made.outputs.token_ids, made.finished = [slot + 3], finished and slot % 3 == 0
    return made
