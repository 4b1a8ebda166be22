"""Features of the installed FastDeploy's token processor, from its code or by a trial."""

from __future__ import annotations

import types
from dataclasses import dataclass, replace
from typing import Any

from fd_postproc.core.layout import Channel
from fd_postproc.fastdeploy.engine.processor.transfers import STORAGE
from fd_postproc.fastdeploy.gate.seams import SEAMS

from .sandbox import Sandbox, is_library
from .steps import PREEMPTED, CannedMessage, Script
from .trial import Trial

ABORT_SETS = ("to_be_aborted_req_id_set", "abort_req_ids_set")
"""Names of the resource manager's set of requests to abort, newest first."""


@dataclass(frozen=True)
class Facts:
    """Features of this FastDeploy's class.

    Attributes
    ----------
    abort_set : str
        Empty if it knows no aborts.
    packed_topk, packed_spec_topk : bool
        Whether the number of logprob columns is read from the header.
    speculative_mark : bool
        Whether an accept count of -9 means that the worker preempted the request.
    makes_empty_results : bool
        Whether a request without an accepted token gets a result all the same: until April 2026.
    names : frozenset of str
        Attributes and globals that its functions mention.
    """

    abort_set: str
    packed_topk: bool
    packed_spec_topk: bool
    speculative_mark: bool
    makes_empty_results: bool
    names: frozenset[str]

    @classmethod
    def of(cls, module: Any, box: Sandbox) -> Facts:
        """Read the class's code, and try what the code does not show."""
        names = frozenset(names_in(module.TokenProcessor))
        facts = cls(
            abort_set=next((name for name in ABORT_SETS if name in names), ""),
            packed_topk=True,
            packed_spec_topk=True,
            speculative_mark=True,
            makes_empty_results=False,
            names=names,
        )
        return replace(
            facts,
            packed_topk=facts._reads_columns(box, "topk"),
            packed_spec_topk=facts._reads_columns(box, "spec_topk"),
            speculative_mark=facts._knows_mark(box),
            makes_empty_results=facts._answers_nothing(box),
        )

    def _reads_columns(self, box: Sandbox, channel: Channel) -> bool:
        put = self._try(box, Script("header", channel, ({},), (CannedMessage(((11,),), columns=2),)))
        return bool(put) and len(put[0].outputs.top_logprobs.logprobs[0]) == 2

    def _knows_mark(self, box: Sandbox) -> bool:
        script = Script("mark", "spec", ({}, {}), (CannedMessage(((11,), PREEMPTED), preempted=(1,)),))
        return [result.outputs.index for result in self._try(box, script)] == [0]

    def _answers_nothing(self, box: Sandbox) -> bool:
        script = Script("nothing", "spec", ({}, {}), (CannedMessage(((11,), 0)),))
        return [result.outputs.index for result in self._try(box, script)] == [0, 1]

    @property
    def traits(self) -> dict[str, bool]:
        """Attributes of our class that follow from FastDeploy's features."""
        return {
            "makes_empty_results": self.makes_empty_results,
            "aborts_itself": ABORT_SETS[1] in self.names,
            "completes_prefills": "PREFILL_INFERENCE_END" in self.names,
        }

    @property
    def mark(self) -> str:
        """The mark of this FastDeploy's statements in the gate's record."""
        facts = SEAMS["token processor"].facts
        return "".join("+" if self.traits[fact] else "-" for fact in facts)

    def _try(self, box: Sandbox, script: Script) -> list[Any]:
        """Results of FastDeploy's class; none if it raises."""
        trial = Trial(box, box.module.TokenProcessor, script, self.abort_set or ABORT_SETS[0], packed=True)
        try:
            trial.run()
        except Exception:
            return []
        return [result for batch in trial.scheduler.puts for result in batch]

    def packed(self, channel: Channel) -> bool:
        """Whether messages of a channel have the number of columns in the header."""
        return self.packed_spec_topk if channel == "spec_topk" else self.packed_topk

    def applies(self, script: Script) -> Script:
        """The script without the cases that this FastDeploy's worker never sends."""
        messages = script.messages
        if script.speculative and not self.speculative_mark:
            messages = tuple(
                replace(
                    message,
                    slots=tuple(0 if slot == PREEMPTED else slot for slot in message.slots),
                    preempted=(),
                    aborted=(),
                )
                for message in messages
            )
        if not self.abort_set:
            messages = tuple(replace(message, aborted=()) for message in messages)
        if script.storage and STORAGE not in self.names:
            script = replace(script, storage=False)
        return replace(
            script,
            messages=messages,
            masks=script.masks and "use_sampling_mask" in self.names,
            experts=script.experts and "routing_host_view" in self.names,
        )


def names_in(cls: type) -> set[str]:
    """All names in a class's methods, except for library code and overridden methods."""
    names: set[str] = set()
    known: set[str] = set()
    for one in cls.__mro__:
        if is_library(one.__module__):
            continue
        for name, value in vars(one).items():
            function = getattr(value, "fget", getattr(value, "__func__", value))
            if name not in known and isinstance(function, types.FunctionType):
                names |= names_of(function.__code__) | _texts_of(function.__code__)
                if "__class__" in function.__code__.co_freevars:  # super(): the overridden one runs, too
                    continue
            known.add(name)
    return names


def names_of(code: types.CodeType) -> set[str]:
    """The attributes and globals that a function and its inner functions use."""
    return set(code.co_names).union(*map(names_of, _inner(code)))


def _texts_of(code: types.CodeType) -> set[str]:
    """Their texts, such as that of ``getattr(config, "name", default)``."""
    texts = {one for one in code.co_consts if isinstance(one, str)}
    return texts.union(*map(_texts_of, _inner(code)))


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [one for one in code.co_consts if isinstance(one, types.CodeType)]
