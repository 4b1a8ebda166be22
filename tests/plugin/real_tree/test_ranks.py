"""Two data parallel ranks of FastDeploy on a CPU, two API processes each, plug-in off and on."""

import pytest

from tests.lib.real_tree import need_service
from tests.lib.service_tool import TREES, tool

pytestmark = [pytest.mark.fastdeploy, pytest.mark.nightly]


@pytest.fixture(autouse=True)
def possible():
    need_service("entrypoints/openai/multi_api_server.py")


def test_answers_of_both_ranks_are_equal(tmp_path):
    """Both ranks are asked at once; each has a queue of its own."""
    rows = tool().ranks.compare(TREES[0], tmp_path, "spec_topk")
    assert not tool().ranks.failed(rows), tool().ranks.table(rows)
    assert [row["rank"] for row in rows] == [0, 1, 0, 1]
    assert {row["cases"] for row in rows} == {16}
