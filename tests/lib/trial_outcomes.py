"""What FastDeploy's own class does in the scripts of the plug-in's trial, as JSON: for a process of its own.

Clocks run in it, so stamps are told as such and durations roughly: those of the scripts are a second and more
apart.
"""

import dataclasses
import enum
import json

from tools.accept.features import ABORT_SETS, Facts
from tools.accept.sandbox import Sandbox
from tools.accept.steps import SCRIPTS
from tools.accept.trial import Trial

RECENT = 1e9  # seconds since the epoch; less is a duration
LONG = 1.0  # durations in a trial are longer, and log-probabilities that are lower come with 0.1 a column


def outcomes(module):
    """{script: [[place, value], ...]} of FastDeploy's own class, and what its facts are in words."""
    box = Sandbox(module)
    facts = Facts.of(module, box)
    told = {"": list(facts.in_words())}
    for script in SCRIPTS:
        applied = facts.applies(script)
        cls, abort_set = box.module.TokenProcessor, facts.abort_set or ABORT_SETS[0]
        trial = Trial(box, cls, applied, abort_set, facts.packed(applied.channel))
        told[script.name] = [[place, plain(value)] for place, value in trial.run()]
    return told


def plain(value):
    """The value as JSON has it, without what depends on the clock."""
    if isinstance(value, enum.Enum):
        return [type(value).__name__, value.name]
    if isinstance(value, float):
        return "a time" if value > RECENT else round(value, 0 if value > LONG else 4)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {"class": type(value).__name__, **plain(dataclasses.asdict(value))}
    return value if value is None or isinstance(value, (str, int)) else type(value).__name__


def show(module):
    print(json.dumps(outcomes(module)))
