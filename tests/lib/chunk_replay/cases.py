"""Recorded answers of FastDeploy's API server (``tests/golden_chunks``, ``tests/golden_rollouts``)."""

import gzip
import json
from functools import cache

from tests.lib.paths import TESTS

FOLDER = TESTS / "golden_chunks"
ROLLOUTS = TESTS / "golden_rollouts"


@cache
def index():
    """Versions of what it was recorded with, the frozen time, and a line on each case."""
    return json.loads((FOLDER / "index.json").read_text())


@cache
def cases(folder=FOLDER):
    """All of a folder, by name."""
    found = {}
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                case = json.loads(line)
                found[case["name"]] = case
    return found
