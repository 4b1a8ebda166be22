"""Recorded answers that are not streamed, written without FastDeploy: with restated parts, and with ours."""

import json

from tests.lib.chunk_replay.alone import Ours, Stock, Tokenizer, answer
from tests.lib.chunk_replay.cases import cases

WHOLE = [
    case
    for case in cases().values()
    if not case["dimensions"]["stream"]
    and case["derived"]
    and case["output"]["status"] == 200
    and not case["output"].get("raised")
    and case["output"]["chunks"] != ["null"]
]


def rendered(made):
    """As FastDeploy's application does it."""
    return json.dumps(made.model_dump(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def differing(parts_of):
    found = []
    for case in WHOLE:
        written = rendered(answer(case, parts_of(Tokenizer(case["server"]))))
        if [written] != case["output"]["chunks"]:
            found.append((case["name"], written, case["output"]["chunks"]))
    return found


def test_the_restated_parts_write_every_answer():
    assert len(WHOLE) > 60
    assert differing(lambda tokenizer: Stock(tokenizer.steps())) == []


def test_ours_write_every_answer():
    assert differing(Ours) == []
