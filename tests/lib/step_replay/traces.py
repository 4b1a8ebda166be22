"""Recorded traces, read from a folder."""

import base64
import gzip
import json
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("FD_POSTPROC_GOLDEN_STEPS") or Path(__file__).parents[2] / "golden_steps")
SUFFIX = ".json.gz"


@dataclass(frozen=True)
class Trace:
    """One recorded run: what the class was given, and after each step what it had done."""

    name: str
    mode: dict
    requests: list
    events: list
    end: dict

    @classmethod
    def load(cls, name, folder=FOLDER):
        """Read a trace by name."""
        content = json.loads(gzip.decompress((folder / f"{name}{SUFFIX}").read_bytes()))
        if content["format"] != 1:
            raise ValueError(f"{name}: trace format {content['format']}; this reads format 1")
        return cls(*(content[key] for key in ("name", "mode", "requests", "events", "end")))


def trace_names(folder=FOLDER):
    """Names of the traces in a folder."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}"))


def payload(event):
    """The bytes of a message event; unpacked once."""
    if isinstance(event["message"], str):
        event["message"] = zlib.decompress(base64.b64decode(event["message"]))
    return event["message"]


def tables(often, names):
    """Parameters: the traces by hand and the random ones of each channel that are often run; nightly all."""
    parameters = []
    for channel in ("plain", "topk", "spec", "spec_topk"):
        for kind in "hr":
            some = [name for name in often if re.match(rf"{channel}_{kind}(_|\d)", name)]
            every = [name for name in names if re.match(rf"{channel}_{kind}(_|\d)", name)]
            if some:
                parameters.append(pytest.param(some, id=f"{channel} {kind}"))
            if every:
                parameters.append(pytest.param(every, id=f"all {channel} {kind}", marks=pytest.mark.nightly))
    return pytest.mark.parametrize("names", parameters)
