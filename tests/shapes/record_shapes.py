"""Records the shapes of a FastDeploy tree that the double takes its classes from; shapes/README.md.

    python tests/shapes/record_shapes.py TREE > tests/shapes/NAME.json

TREE is a source tree (the folder that holds ``fastdeploy/``); the interpreter must have what FastDeploy
imports on a CPU, and this package.  What is written are names, orders, defaults and outcomes: no text of the
tree, but for messages that clients read.
"""

import argparse
import contextlib
import dataclasses
import dis
import enum
import importlib
import inspect
import json
import os
import sys
import tempfile
import typing
import warnings
from pathlib import Path

FORMAT = 1
CLASSES = {
    "fastdeploy.engine.request": (
        *("Request", "RequestOutput", "CompletionOutput", "RequestMetrics"),
        *("PoolingOutput", "PoolingRequestOutput"),
    ),
    "fastdeploy.worker.output": ("SpeculateMetrics", "LogprobsLists"),
    "fastdeploy.output.stream_transfer_data": ("StreamTransferData",),
}
ENUMS = {
    "fastdeploy.engine.request": ("RequestStatus", "RequestType"),
    "fastdeploy.trace.constants": ("LoggingEventName",),
}
IMPORTED_ENUMS = ("SpecMethod",)  # recorded where the token processor has them
PROCESSOR = "fastdeploy.output.token_processor"
SWITCHES_BESIDES = ("FD_ENABLE_RETURN_TEXT", "FD_PLUGINS", "INFERENCE_MSG_QUEUE_ID", "ZMQ_SEND_BATCH_DATA")
METRICS_WITHOUT_THIS = ("spec_decode",)  # made when speculative decoding begins
STORAGE = "FD_PD_TRANSFER_VIA_STORAGE"
OUTCOME = "an outcome"  # of a transfer
LONG_AGO = 1e9  # seconds since the epoch


# ---- values --------------------------------------------------------------------------------------------


def plain(value):
    """A value as JSON can have it."""
    if isinstance(value, float) and value > LONG_AGO:
        return {"now": True}
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return {"enum": f"{type(value).__name__}.{value.name}"}
    if isinstance(value, tuple):
        return {"tuple": [plain(item) for item in value]}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {"dict": {str(key): plain(item) for key, item in value.items()}}
    return {"object": type(value).__name__}


# ---- classes -------------------------------------------------------------------------------------------


def parameters(cls):
    """[name] or [name, default] of each constructor argument."""
    return [
        [one.name] if one.default is one.empty else [one.name, plain(one.default)]
        for one in inspect.signature(cls).parameters.values()
        if one.kind < one.VAR_KEYWORD
    ]


def bare(cls):
    """An object of nothing but what its constructor must have."""
    needed = [entry[0] for entry in parameters(cls) if len(entry) == 1]
    return cls(**dict.fromkeys(needed))


def attributes(made):
    """Names of an object's attributes in order."""
    if hasattr(made, "__dict__"):
        return list(vars(made))
    if hasattr(made, "_fields"):
        return list(made._fields)
    return [field.name for field in dataclasses.fields(made)]


def followers(cls, argument="prompt_token_ids_len", value=4321):
    """Other attributes of a request, and of its metrics, that its constructor gives the argument's value."""
    needed = [entry[0] for entry in parameters(cls) if len(entry) == 1]
    made = cls(**{**dict.fromkeys(needed), argument: value})
    metrics = getattr(made, "metrics", None)
    own = [name for name, other in vars(made).items() if other == value and name != argument]
    return (
        own + [f"metrics.{name}" for name in attributes(metrics) if getattr(metrics, name) == value]
        if metrics
        else own
    )


class Mark:
    """Stands in an attribute; what its own to_dict returns tells that it was asked."""

    def __init__(self, name):
        self.name = name

    def to_dict(self):
        return f"dictionary of {self.name}"


def shape_of(cls):
    """What a class looks like from outside."""
    named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    made = bare(cls)
    kind = "dataclass" if dataclasses.is_dataclass(cls) else "named tuple" if named_tuple else "class"
    told = {
        "kind": kind,
        "slots": not hasattr(made, "__dict__"),
        "hashable": cls.__hash__ is not None,
        "fields": [field.name for field in dataclasses.fields(cls)] if kind == "dataclass" else [],
        "parameters": parameters(cls),
        "attributes": [[name, plain(getattr(made, name))] for name in attributes(made)],
        "methods": sorted(
            name
            for name, value in vars(cls).items()
            if callable(getattr(value, "__func__", value)) or isinstance(value, property)
            if not isinstance(value, type)
        ),
    }
    if cls.__name__ == "Request":
        told["length_is_also"] = followers(cls)
    if not named_tuple and hasattr(cls, "to_dict") and cls.__name__ != "Request":
        told |= dictionary_of(cls)
    return told


def dictionary_of(cls):
    """Keys of to_dict in order: whose attribute each shows, how, and when it is there."""
    names = attributes(bare(cls))

    def shown(**given):
        made = bare(cls)
        for name in names:
            setattr(made, name, given.get(name, Mark(name)))
        return made.to_dict()

    copied = []
    full, keys = shown(), []
    for key, value in full.items():
        owner = next((name for name in names if value == f"dictionary of {name}"), None)
        how = "its to_dict()"
        if owner is None:
            owner, how = value.name, "itself"
        told = [key, owner, how]
        without = shown(**{owner: None})
        if key not in without:
            told.append("unless None" if key in shown(**{owner: 0}) else "unless empty")
        keys.append(told)
        if how == "itself":
            content = [1]
            copied.append(shown(**{owner: content}).get(key) is not content)
    return {"to_dict": keys, "to_dict_copies": all(copied)}


# ---- the module, its switches and metrics ---------------------------------------------------------------


def names_in(code):
    """Every name and text in a code object."""
    found = {*code.co_names}
    for constant in code.co_consts:
        if inspect.iscode(constant):
            found |= names_in(constant)
        elif isinstance(constant, str):
            found.add(constant)
    return found


def token_processor(module):
    cls = module.TokenProcessor
    return {
        "constructor": parameters(cls),
        "methods": sorted(name for name, value in vars(cls).items() if inspect.isfunction(value)),
        "attributes": sorted(
            {one.argval for one in dis.get_instructions(cls.__init__) if one.opname == "STORE_ATTR"}
        ),
    }


def switches(module, mentioned):
    from fastdeploy import envs

    names = sorted({*mentioned & set(envs.environment_variables)} | {*SWITCHES_BESIDES})
    return {name: plain(getattr(envs, name)) for name in names if name in envs.environment_variables}


def metrics(module, mentioned):
    """Type, name, labels and buckets of the metrics that the processor's code mentions."""
    found, manager = {}, module.main_process_metrics
    for name in sorted(mentioned):
        metric = getattr(manager, name, None)
        if (
            metric is not None
            and hasattr(metric, "_labelnames")
            and not name.startswith(METRICS_WITHOUT_THIS)
        ):
            buckets = getattr(metric, "_upper_bounds", None)
            found[name] = {
                "type": type(metric).__name__,
                "name": metric._name,
                "labels": list(metric._labelnames),
                "buckets": buckets and [bound for bound in buckets if bound != float("inf")],
            }
    return found


# ---- outcomes ------------------------------------------------------------------------------------------


def behaviour(module, mentioned):
    """What differs between versions in a step, found by trying FastDeploy's own class in a sandbox."""
    from tools.accept.features import Facts
    from tools.accept.sandbox import Sandbox
    from tools.accept.steps import END, PREFILL, RUNNING, CannedMessage, Script
    from tools.accept.trial import Trial

    box = Sandbox(module)
    facts = Facts.of(module, box)
    packed = {"packed_topk": facts.packed_topk, "packed_spec_topk": facts.packed_spec_topk}
    told = dict(packed, speculative_mark=facts.speculative_mark, abort_set=facts.abort_set)

    def tried(script, prepare=None):
        trial = Trial(box, box.module.TokenProcessor, script, facts.abort_set, packed=True)
        if prepare:
            prepare(trial)
        trial.run()
        results = [result for batch in trial.scheduler.put for result in batch]
        events = [event.name for event, *_ in box.traced]
        return results, events, box.metrics.samples(), trial

    def script(role, transfers=None, request=PREFILL):
        last = CannedMessage(((11 if role == "prefill" else END,),))
        return Script("recording", "plain", (request,), (last,), role=role, transfers=transfers or {})

    (failed,), events, samples, trial = tried(script("prefill", {0: OUTCOME}))
    ordinary = {name for name, _ in shape_of(type(failed))["attributes"]}
    told["failed_transfer"] = {
        "error_code": failed.error_code,
        "says_so_in": (place := "error_msg" if failed.error_msg else sorted({*vars(failed)} - ordinary)[0]),
        "text": getattr(failed, place).replace(failed.request_id, "{task_id}").replace(OUTCOME, "{status}"),
        "answer_is_kept": bool(trial.processor.prefill_result_status),
    }
    told["prefill_events"] = events
    told["prefill_completes"] = "request_success_total" in samples
    if STORAGE in mentioned:

        def through_storage(trial):
            box.switches[STORAGE] = 1
            trial.manager.cache_manager = Storage()

        (failed,), events, *_ = tried(script("prefill"), through_storage)
        told["failed_storage"] = {
            "error_code": failed.error_code,
            "text": failed.error_msg.replace(failed.request_id, "{task_id}"),
            "events": events[-2:],
        }
    pair = {"disaggregate_info": {"role": "decode", "transfer_protocol": "ipc"}}
    told["decode_events"] = tried(script("decode", request=RUNNING | pair))[1]
    ended = dataclasses.replace(script("mixed", request=RUNNING), caching=True)
    _, told["mixed_events"], _, trial = tried(ended)
    told["caches_output_at_the_end"] = "cache_output_tokens" in [name for name, _ in trial.manager.calls]

    def no_task(trial):
        trial.manager.tasks_list[0] = None

    try:
        tried(script("mixed", request=RUNNING), no_task)
        told["slot_without_task"] = "passed over"
    except Exception as error:
        told["slot_without_task"] = type(error).__name__
    box.close()
    return told


class Storage:
    """A cache manager that cannot write."""

    def write_all_cache_to_storage(self, *arguments, **named):
        return False


def recording():
    """The recording of the FastDeploy that this process imports."""
    module = importlib.import_module(PROCESSOR)
    mentioned = set().union(
        *(
            names_in(value.__code__)
            for value in vars(module.TokenProcessor).values()
            if inspect.isfunction(value)
        )
    )
    told = {"format": FORMAT, "classes": {}, "enums": {}}
    for place, names in CLASSES.items():
        for name in names:
            told["classes"][name] = shape_of(getattr(importlib.import_module(place), name))
    kinds = [
        getattr(importlib.import_module(place), name) for place, names in ENUMS.items() for name in names
    ]
    kinds += [getattr(module, name) for name in IMPORTED_ENUMS if hasattr(module, name)]
    for kind in kinds:
        told["enums"][kind.__name__] = [[member.name, plain(member.value)] for member in kind]
    told["token_processor"] = token_processor(module)
    told["module"] = {
        "names": sorted(name for name in vars(module) if not name.startswith("_")),
        "constants": {
            name: value
            for name, value in sorted(vars(module).items())
            if type(value) is int and name.isupper()
        },
    }
    told["switches"] = switches(module, mentioned)
    told["metrics"] = metrics(module, mentioned)
    try:
        told["behaviour"] = behaviour(module, mentioned)
    except Exception as error:
        told["behaviour"] = {"not_tried": type(error).__name__}
    return told


@contextlib.contextmanager
def quiet_output():
    """Give stdout to stderr meanwhile: FastDeploy and Paddle print while they are imported."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def as_text(value, indent=0, width=110):
    """JSON with short lines: a line for each entry of an object, as many items of a list as there is room."""
    text = json.dumps(value)
    if len(text) + indent <= width or not isinstance(value, (dict, list)):
        return text
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {as_text(item, indent + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(inner + item for item in items) + "\n" + inner[1:] + "}"
    rows = [""]
    for item in map(json.dumps, value):
        if rows[-1] and len(rows[-1]) + len(item) + indent > width:
            rows.append("")
        rows[-1] += f"{item}, "
    return "[\n" + "\n".join(inner + row.rstrip() for row in rows)[:-1] + "\n" + inner[1:] + "]"


def main(arguments: typing.Sequence[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tree", type=Path, help="the folder that holds fastdeploy/")
    tree = parser.parse_args(arguments).tree.resolve()
    if not (tree / "fastdeploy" / "output" / "token_processor.py").is_file():
        parser.error(f"{tree} has no fastdeploy/output/token_processor.py; give a FastDeploy source tree")
    for name in list(os.environ):
        if name.startswith(("FD_", "ENABLE_")):
            del os.environ[name]
    sys.path[:0] = [str(tree), str(Path(__file__).resolve().parents[2])]  # tools.accept is of the checkout
    with tempfile.TemporaryDirectory() as logs, quiet_output(), warnings.catch_warnings():
        os.environ.update(FD_PLUGINS="", FD_LOG_DIR=logs)  # FastDeploy writes its logs where it is imported
        warnings.simplefilter("ignore")
        importlib.import_module("fastdeploy")
        os.environ.pop("FD_PLUGINS")
        told = recording()
    sys.stdout.write(as_text(told) + "\n")


if __name__ == "__main__":
    main()
