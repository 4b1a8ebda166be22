"""The token processors to compare, and where FastDeploy's classes come from."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fd_postproc._core import step_from_tensors
from fd_postproc.fastdeploy.engine.processor_class import make_class
from tests.restated import CommonStep, bind
from tests.restated.workload import Case as LoadCase
from tests.restated.workload import Load, flat_view

from .cases import Case, Unavailable, check

REAL = "FastDeploy"
RESTATED = "FastDeploy restated"
OURS = "fd_postproc"
DOUBLE = Path(__file__).resolve().parents[1] / "tests" / "fastdeploy_double"
# The gate knows the double by a record of its own.
os.environ.setdefault("FD_POSTPROC_KNOWN", str(DOUBLE.with_name("known_double.json")))

CLASSES: dict[str, Callable[[Any], type]] = {
    RESTATED: bind,
    OURS: make_class,
}


def names() -> list[str]:
    """The token processors to compare; FastDeploy's own only where it is installed or named."""
    return [REAL, *CLASSES] if _has_real() else list(CLASSES)


def _has_real() -> bool:
    if os.environ.get("FD_POSTPROC_FASTDEPLOY"):
        return True
    spec = importlib.util.find_spec("fastdeploy")
    return spec is not None and DOUBLE.name not in (spec.origin or "")


def _folder() -> Path | None:
    """Where `fastdeploy` can be imported from, if it is not installed: the double, or a source tree."""
    if (DOUBLE / "fastdeploy").is_dir():
        return DOUBLE
    tree = Path(os.environ.get("FD_POSTPROC_FASTDEPLOY") or os.devnull)
    folder = tree.parent if tree.name == "fastdeploy" else tree
    return folder if (folder / "fastdeploy").is_dir() else None


def token_processor_module() -> Any:
    """``fastdeploy.output.token_processor``, of FastDeploy or of its double.

    Raises
    ------
    Unavailable
        If neither can be imported; the text says what is missing.
    """
    if importlib.util.find_spec("fastdeploy") is None:
        folder = _folder()
        if folder is None:
            raise Unavailable(
                "needs FastDeploy's classes: install FastDeploy, or set FD_POSTPROC_FASTDEPLOY to its source "
                f"tree; the double of it in {DOUBLE} is gone"
            )
        sys.path.insert(0, str(folder))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Paddle's, of ccache and the like
            importlib.import_module("paddle")
            importlib.import_module("msgpack")
            module = importlib.import_module("fastdeploy.output.token_processor")
    except ImportError as error:
        raise Unavailable(
            f"needs FastDeploy's classes, or their double and Paddle, prometheus_client and msgpack: {error}"
        ) from None
    return module


def processor_class(name: str, module: Any) -> type:
    """A class of `names`."""
    if name in CLASSES:
        return CLASSES[name](module)
    cls: type = module.TokenProcessor
    if issubclass(cls, CommonStep):
        raise Unavailable("FastDeploy's own token processor: the double's is the restated one")
    return cls


def load_case(case: Case) -> LoadCase:
    """The same case for `restated.workload`, which has target and draft messages."""
    channel = "spec_topk_target" if case.channel == "spec_topk" else case.channel
    return LoadCase(channel, case.columns, case.accepted, case.batch)


def loaded(name: str, module: Any, case: LoadCase) -> Load:
    """A token processor with a full batch, whose results have been compared with the message."""
    cls = processor_class(name, module)
    load = Load(module, cls, case)
    check(isinstance(load.processor, cls), "the plug-in fell back: FastDeploy's own class would be timed")
    load.processor.enable_draft_logprob = False  # a draft's results are given out, not added to a target's
    load.step()
    check(holds_message(load), "the results hold something else than the message")
    return load


def step_call(load: Load) -> Callable[[], Any]:
    """What the receive loop calls for each message: ours has it as a Step, FastDeploy's in its tensors."""
    processor = load.processor
    if not hasattr(processor, "parts"):
        return load.step
    tensors = [processor.output_tokens]
    if load.case.logprobs:
        tensors += [processor.output_scores, processor.output_ranks]
    return partial(
        processor.parts.steps.process, step_from_tensors(processor.channel, *tensors, layout=processor.layout)
    )


def comparable(results: list[Any]) -> list[dict[str, Any]]:
    """Results as a client gets them, without the times in their metrics."""
    dicts = [result.to_dict() for result in results]
    for one in dicts:
        one["metrics"] = one["metrics"] and list(one["metrics"])
    return dicts


def holds_message(load: Load) -> bool:
    """Whether the results of the last step hold the tokens and log-probabilities in the tensors.

    That is a message of ``plain`` or ``spec_topk``.
    """
    case, results = load.case, load.sink.last
    tokens = flat_view(load.processor.output_tokens)
    if len(results) != case.batch:
        return False
    if case.channel == "plain":
        return all(r.outputs.token_ids == [t] for r, t in zip(results, tokens[2:].tolist(), strict=False))
    live = slice(case.batch), slice(case.accepted), slice(case.columns)
    ids = tokens[515:].reshape(512, 6, 21)[live]
    scores = flat_view(load.processor.output_scores).reshape(512, 6, 21)[live]
    ranks = flat_view(load.processor.output_ranks).reshape(512, 6)[live[:2]]
    return all(
        tuple(result.outputs.top_logprobs) == tuple(map(np.ndarray.tolist, parts))
        for result, *parts in zip(results, ids, scores, ranks, strict=True)
    )
