"""A worker process of pytest-xdist that ends in the middle of a test: what is done, and what is told.

The test that was under way fails once, the rest of its file goes to another process, and whatever was not run
in the end is listed.  pytest-xdist by itself starts that test again with each new process until there have
been too many, and then ends the run without a word about the others.

Tests that need real time are one piece of work, and the first: no process waits for it at the end.
"""

import os

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.lib import marks

REALTIME = "tests that need real time"


class Scheduling(LoadFileScheduling):
    """One file a process; a test that ended its process is not started again."""

    realtime = frozenset()

    def schedule(self):
        self.realtime = frozenset(marks.notes(self.config)["realtime"])
        super().schedule()

    def _split_scope(self, nodeid):
        return REALTIME if nodeid in self.realtime else super()._split_scope(nodeid)

    def _assign_work_unit(self, node):
        if REALTIME in self.workqueue:
            self.workqueue.move_to_end(REALTIME, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node):
        ended = self._under_way(node)
        super().remove_node(node)
        for other in self.nodes:
            self._reschedule(other)
        return ended

    def _reschedule(self, node):
        """Give a process files until it has two tests: it keeps one back, and reports nothing meanwhile.

        After a crash the files that the process had done are in the queue of work, too, without a test.  A
        new process gets none before it has said what its tests are.
        """
        if node not in self.registered_collections:
            return
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)

    def _under_way(self, node):
        """The first test that is not done, which is done now; None if there is none."""
        for unit in self.assigned_work.get(node, {}).values():
            for name, done in unit.items():
                if not done:
                    unit[name] = True
                    return name
        return None


class Crashes:
    """What was collected and not run, told where a process has ended."""

    def __init__(self):
        self.left, self.crashed = {}, False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config, log):
        return Scheduling(config, log) if config.option.dist == "loadfile" else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        if not self.left and not self.crashed:
            self.left = dict.fromkeys(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem, report, sched):
        self.crashed = True

    def pytest_runtest_logreport(self, report):
        self.left.pop(report.nodeid, None)

    def pytest_terminal_summary(self, terminalreporter):
        if not self.crashed or not self.left:
            return
        terminalreporter.section(f"{len(self.left)} tests were not run", red=True)
        for name in self.left:
            terminalreporter.line(f"NOT RUN {name}")


def keep_from_forks(files):
    """Let no forked child have these open: the run would learn of the process's end at the child's only."""

    def let_go():
        nothing = os.open(os.devnull, os.O_RDWR)
        for file in files:
            os.dup2(nothing, file.fileno(), inheritable=False)
        os.close(nothing)

    os.register_at_fork(after_in_child=let_go)


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Crashes(), "fd_postproc-crashes")
        return
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":  # of a module that pytest-xdist sends as text
            pipes = plugin.channel.gateway._io
            keep_from_forks([pipes.infile, pipes.outfile])
