"""What `harness.service soak` calls a trend."""

import pytest

from tests.lib.rows import each
from tests.lib.service_tool import not_installed, tool

BEGIN = {"KiB": {"engine": 300_000}, "files": {"engine": 80}, "entries": {"engine: a table": 40}}
OTHER = {"KiB": {"engine": 500_000}, "files": {"engine": 70}, "entries": {}}


def hour(grows, *, end=65):
    """Rows of both services: all of the plug-in's grows until it is warm, and these by so much a minute."""
    for minute in range(1, end + 1):
        warming = 9000 * min(minute, 5)
        yield {"way": "off", "minute": minute, **OTHER}
        now = {what: {of: size + warming for of, size in BEGIN[what].items()} for what in BEGIN}
        for what, rate in grows.items():
            now[what] = {of: size + rate * minute for of, size in now[what].items()}
        yield {"way": "on", "minute": minute, **now}


@each(
    "grows, end, trends",
    [
        ({}, 65, []),
        ({"KiB": 16}, 65, []),
        ({"KiB": 18}, 65, ["KiB"]),
        ({"KiB": 90}, 15, []),
        ({"KiB": 110}, 15, ["KiB"]),
        ({"files": 1}, 65, ["files"]),
        ({"entries": 20}, 65, ["entries"]),
        ({"entries": -20}, 65, []),
    ],
)
def test_a_trend_is_growth_after_the_warm_up(grows, end, trends):
    if reason := not_installed():
        pytest.skip(reason)
    rows = list(hour(grows, end=end))
    assert [what for what, *_, grown in tool().soak.trends(rows) if grown] == trends
    assert tool().soak.failed(rows) == bool(trends)


def test_growth_of_fastdeploy_s_own_is_none_of_ours():
    if reason := not_installed():
        pytest.skip(reason)
    rows = list(hour({"KiB": 100}))
    for row in rows:
        if row["way"] == "off":
            row["KiB"] = {"engine": 500_000 + 90 * row["minute"]}
    assert not tool().soak.failed(rows)
    end = {"way": "on", "quiet": True, "alarms": ["fd_postproc_fallbacks_total"]}
    assert tool().soak.failed([*rows, end])
