"""A prefill and a decode node of FastDeploy behind its own router on a CPU, with the plug-in off and on."""

import pytest

from tests.lib.real_tree import need_service
from tests.lib.service_tool import TREES, tool

pytestmark = [pytest.mark.fastdeploy, pytest.mark.nightly]


@pytest.fixture(autouse=True)
def possible():
    need_service("router/router.py", "retry")


def test_answers_are_equal(tmp_path):
    """On both nodes, on the prefill node only, on the decode node only; alone and side by side."""
    rows = tool().pairs.compare(TREES[0], tmp_path, "spec_topk")
    assert not tool().pairs.failed(rows), tool().pairs.table(rows)
    assert [row["way"] for row in rows] == list(tool().pairs.WAYS)
    assert {row["cases"] for row in rows} == {24}


@pytest.mark.parametrize("way", ["on/on"])
def test_slow_and_failing_transfers(tmp_path, way):
    """Slow ones change no answer, failing ones end in an error for each client; afterwards all is as ever."""
    faults = tool().pair_faults
    rows = list(faults.run(TREES[0], tmp_path, "spec_topk", way=way, only=["slow", "failing"]))
    assert not faults.failed(rows), faults.table(rows)
    by_fault = {row["fault"]: set(row["clients"].values()) for row in rows}
    assert "nothing" not in by_fault["failing transfers"] | by_fault["transfers of 8 s"]
