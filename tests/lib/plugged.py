"""The plug-in's token processor on the double, made as FastDeploy's engine gets it."""

import os

import pytest

from tests.lib.quiet import imported

_told = []


def plugin_class():
    """A new subclass of the module's TokenProcessor.  It tells its gauges at every step, for comparison.

    Where the trial finds a difference, the plug-in stands aside, and what is asked of its class is missing.
    Then the first test of a process that wants the class fails with the reason, and the others are skipped.
    FD_POSTPROC_FORCE=1 takes the class untried, as in the engine.
    """
    module = imported("fastdeploy.output.token_processor")
    make_class = imported("fd_postproc.fastdeploy.engine.processor_class").make_class
    forced = os.environ.get("FD_POSTPROC_FORCE") == "1"
    check = imported("fd_postproc.fastdeploy.trial.compatibility").check
    verdict = None if forced else check(module, make_class, True)
    if verdict is not None and not verdict.compatible:
        text = f"the plug-in stands aside on the double: {verdict.reason}"
        if _told:
            pytest.skip(f"{text}; an earlier test of this process fails for it")
        _told.append(verdict)
        pytest.fail(text, pytrace=False)
    cls = make_class(module)
    cls.gauge_period = 0
    return cls


def stock_class():
    """FastDeploy's own, restated unless the environment names an installed one."""
    return imported("fastdeploy.output.token_processor").TokenProcessor
