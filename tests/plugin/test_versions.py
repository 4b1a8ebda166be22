"""The plug-in on the double of every version that it serves, each in a process of its own.

What the version did with recorded steps, its double does.
"""

import os

import pytest

from tests.lib.nursery import with_paddle
from tests.lib.rows import each

pytestmark = pytest.mark.framework


def report(version):
    # Metrics in files would be another version's.
    others = ("FD_POSTPROC_FASTDEPLOY", "FD_POSTPROC_DISABLE", "PROMETHEUS_MULTIPROC_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in others}
    environment |= {"FD_POSTPROC_DOUBLE": version, "FD_PLUGINS": "fd_postproc"}
    return with_paddle("from tests.lib import version_report; version_report.show()", environment)


@each("version", ["26", "25", "dev", "develop"])
def test_active(version):
    told = report(version)
    assert told["engine"]["active"], told["engine"]["log"]
    ((level, line),) = told["engine"]["log"]
    assert (level, told["engine"]["stderr"]) == ("INFO", "")
    assert "engine side active" in line
    assert {name for name, taken in told["engine"]["paths"].items() if not taken} == set()
    scripts, failed = told["scripts"]
    assert {name: difference for name, difference in scripts.items() if difference} == {}
    assert failed == []
    assert len(scripts) > 10
    traces, wrong = told["recorded"]
    assert wrong == {}
    assert (traces > 30) is (version == "25")
