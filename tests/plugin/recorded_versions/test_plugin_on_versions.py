"""The plug-in on the double of every recorded version: active, or aside with a reason in words.

Each in a process of its own.  What the version did with recorded steps, its double does.
"""

import os

import pytest

from tests.lib.nursery import with_paddle
from tests.lib.rows import each

pytestmark = pytest.mark.framework

SERVED = ("26", "25", "dev", "develop")
ASIDE = {
    "24": "RequestMetrics has no record_recv_token; served are FastDeploy 2.5 and newer",
    "jan": "TokenProcessor._cache_output has new code in line",
}


def report(version):
    # Metrics in files would be another version's.
    others = ("FD_POSTPROC_FASTDEPLOY", "FD_POSTPROC_DISABLE", "PROMETHEUS_MULTIPROC_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in others}
    environment |= {"FD_POSTPROC_DOUBLE": version, "FD_PLUGINS": "fd_postproc"}
    return with_paddle("from tests.lib import version_report; version_report.show()", environment)


@each("version", SERVED)
def test_active(version):
    told = report(version)
    assert told["engine"]["active"], told["engine"]["log"]
    ((level, line),) = told["engine"]["log"]
    assert (level, told["engine"]["stderr"]) == ("INFO", "")
    assert "engine side active" in line
    assert {name for name, taken in told["engine"]["paths"].items() if not taken} == set()
    assert {name: difference for name, difference in told["scripts"].items() if difference} == {}
    assert len(told["scripts"]) > 10
    assert told["recorded"] == {}


@each("version", ASIDE)
def test_aside_with_a_reason_in_words(version):
    told = report(version)
    assert not told["engine"]["active"]
    ((level, line),) = told["engine"]["log"]
    assert level == "WARNING"
    assert "engine side falls back" in line
    assert ASIDE[version] in line
    assert "cannot tell" not in line
    assert ASIDE[version] in told["engine"]["stderr"]
    assert told["recorded"] == {}
