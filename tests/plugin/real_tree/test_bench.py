"""``fd-postproc bench`` beside FastDeploy's own token processor, on the real classes."""

import pytest

from fd_postproc.cli.side_by_side import OURS, READ, STOCK
from tests.lib.real_tree import each_tree, run

pytestmark = pytest.mark.fastdeploy

BENCH = """
import json, sys
from fd_postproc.cli import main
arguments = ["bench", "--seconds", "0.02", "--batch", "1", "32", "--channel", sys.argv[1], "--json", "here"]
status = main(arguments)
print("told: " + json.dumps(json.load(open("here"))["token_processors"]))
"""


@pytest.mark.parametrize(
    "channel",
    ["plain", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("topk", "spec")), "spec_topk"],
)
@each_tree
def test_results_are_equal_and_both_are_timed(tree, channel, tmp_path):
    told, said = run(tree, BENCH, channel, folder=tmp_path)
    if "stands aside" in told.get("why_not", ""):
        assert "Error" not in told["why_not"]
        pytest.skip(told["why_not"])
    assert "why_not" not in told, told
    assert told["from"].startswith(str(tree))
    assert "results were equal" in " ".join(said.stdout.split())
    for step in told["steps"]:
        times = step["seconds"]
        assert set(times) == ({STOCK, OURS, READ} if channel.endswith("topk") else {STOCK, OURS})
        assert times[OURS] < times[STOCK]
