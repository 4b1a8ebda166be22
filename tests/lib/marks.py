"""What the marks do: `nightly` and `quarantine` leave a test out, `realtime` ones share a process.

With pytest-xdist the tests are collected in worker processes.  Those write into a file what the first process
has to know: which tests need real time, and which are in quarantine.
"""

import contextlib
import datetime
import faulthandler
import importlib.util
import json
import os
import re
import tempfile
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key  # the stderr that a test's capture does not take

from tests.lib import sanitized_forks

forks_beside_threads = pytest.mark.skipif(
    sanitized_forks.wanted(), reason="the sanitizer's own locks may be taken by another thread at the fork"
)
"""Of a test that forks a process whose other threads are at work: a child that hangs is not ended."""
LONG_LIMIT_S = 600
IN_QUARANTINE_AT_MOST = 10
_current = []
_NOTES = pytest.StashKey[Path]()
_FOLDER = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.stash[_NOTES] = Path(config.workerinput["fd_postproc_notes"])
    else:
        config.stash[_FOLDER] = folder = tempfile.TemporaryDirectory(prefix="fd_postproc-tests-notes-")
        config.stash[_NOTES] = Path(folder.name, "notes.json")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["fd_postproc_notes"] = str(node.config.stash[_NOTES])


def notes(config):
    """What the collection found: `realtime`, names of tests; `quarantine`, name, date and reason of each."""
    try:
        return json.loads(config.stash[_NOTES].read_text())
    except FileNotFoundError:  # no collection has ended
        return {"realtime": [], "quarantine": []}


def _note(config, **found):
    path = config.stash[_NOTES]
    own = path.with_suffix(f".{os.getpid()}")
    own.write_text(json.dumps(found))
    own.replace(path)


def _leave_out(config, items, out):
    out = set(out)
    config.hook.pytest_deselected(items=[item for item in items if item in out])
    items[:] = [item for item in items if item not in out]


def _leave_out_frameworks(config, items):
    """Of the tests of a framework that is not installed, one is left, which is skipped and says so."""
    for name in ("torch", "paddle"):
        if importlib.util.find_spec(name) is None:
            its = [item for item in items if name in re.split(r"[\[\]-]", item.name)[1:]]
            if its:
                its[0].add_marker(pytest.mark.skip(f"{name} is not installed: {len(its)} tests are not run"))
                _leave_out(config, items, its[1:])


def _quarantined(items):
    """Name, date and reason of each test that its mark leaves out: no mark without both, and ten at most."""
    found = {}
    for item in items:
        if mark := item.get_closest_marker("quarantine"):
            with contextlib.suppress(TypeError, ValueError):
                date, reason = mark.args
                datetime.date.fromisoformat(date)
                found[item.nodeid.partition("[")[0]] = date, reason
    oldest = sorted(found, key=lambda name: found[name][0])
    return [(name, *found[name]) for name in oldest[:IN_QUARANTINE_AT_MOST]]


def pytest_collection_modifyitems(config, items):
    """Leave out what is nightly or in quarantine and was not asked for, by -m or by name; order the rest."""
    _leave_out_frameworks(config, items)
    asked, quarantined = config.option.markexpr, _quarantined(items)
    if "quarantine" not in asked and not any("::" in argument for argument in config.args):
        names = {name for name, _, _ in quarantined}
        _leave_out(config, items, [item for item in items if item.nodeid.partition("[")[0] in names])
        if "nightly" not in asked:
            _leave_out(config, items, [item for item in items if item.get_closest_marker("nightly")])
    for item in items:
        if item.get_closest_marker("realtime"):
            item.add_marker(pytest.mark.filterwarnings("default"), append=False)
    items.sort(key=lambda item: bool(item.get_closest_marker("realtime")))
    last = [item.nodeid for item in items if item.get_closest_marker("realtime")]
    _note(config, realtime=last, quarantine=quarantined)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A nightly test has no time limit, one that needs real time a longer one."""
    _current[:] = [item]
    _limit(item)


def begin_again():
    """Give the test that runs its whole time anew: each row of a table has as much as a test."""
    for item in _current:
        _limit(item)


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node):
    """After a failure, of a row or of the test, pytest takes the limit away: a debugger may come."""
    if isinstance(node, pytest.Item) and not node.config.option.usepdb:
        _limit(node)


def _limit(item):
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # each process gets a part of a core
    limit = float(item.config.getini("faulthandler_timeout") or 0) * busy
    if item.get_closest_marker("realtime") or item.get_closest_marker("fastdeploy"):  # its imports take long
        limit = limit and max(limit, LONG_LIMIT_S)
    if not limit or item.get_closest_marker("nightly"):
        faulthandler.cancel_dump_traceback_later()
    else:
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(limit, file=stderr, exit=True)


def pytest_terminal_summary(terminalreporter, config):
    """How many tests are in quarantine, and how old."""
    quarantined = notes(config)["quarantine"]
    if quarantined:
        terminalreporter.section(f"{len(quarantined)} in quarantine, of {IN_QUARANTINE_AT_MOST} at most")
    for name, date, reason in quarantined:
        age = datetime.date.today() - datetime.date.fromisoformat(date)
        terminalreporter.line(f"{age.days} days: {name}: {reason}")
