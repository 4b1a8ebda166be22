"""What the plug-in does on the double of one version: for a process that has FD_POSTPROC_DOUBLE."""

import contextlib
import io
import json
import logging
import os

from fastdeploy import config
from fastdeploy.output import token_processor as module

from fd_postproc.fastdeploy.engine.fast_paths import paths_of
from fd_postproc.fastdeploy.engine.processor.journal import Journal
from tests.lib import fakes
from tests.lib.paths import TESTS
from tests.lib.step_replay.compare import differences
from tests.lib.step_replay.replay import Replay
from tests.lib.step_replay.traces import Trace, trace_names
from tools.accept.classes import first_difference_in, prepared
from tools.accept.random_steps import script as random_script


def engine():
    """FastDeploy's engine is made; which class it has, what was told of that, the fast paths."""
    records, told, keep = [], io.StringIO(), logging.Handler()
    keep.emit = lambda record: records.append([record.levelname, record.getMessage()])
    logging.getLogger("fastdeploy").addHandler(keep)
    with contextlib.redirect_stderr(told):
        from fastdeploy.engine import common_engine

        service = common_engine.EngineService(config.FDConfig(), fakes.ResourceManager(4))
    processor = service.token_processor
    processor._finalizer()
    active = type(processor) is not module.TokenProcessor
    return {
        "active": active,
        "log": [record for record in records if "fd_postproc" in record[1] and "engine side" in record[1]],
        "stderr": told.getvalue(),
        "paths": paths_of(processor) if active else {},
    }


def scripts():
    """Of random scripts: how ours differs from FastDeploy's class; what failed in ours."""
    failed, note_failure = [], Journal.note_failure

    def noted(journal, what, error):
        failed.append(f"{what}: {error!r}")
        note_failure(journal, what, error)

    Journal.note_failure = noted
    pair, facts = prepared(module)
    with pair[0].box:
        tried = [random_script(number, facts) for number in range(32)]
        return {script.name: first_difference_in(script, *pair, facts) for script in tried}, failed


def recorded(folder):
    """What the double's class does otherwise than the version's own did when its steps were recorded."""
    found, names = {}, trace_names(folder)
    for name in names:
        with Replay(Trace.load(name, folder), module.TokenProcessor) as replay:
            lines = [line for step in replay.steps() for line in differences(step.expected, step.actual)]
            lines += differences(*replay.end())
        if lines:
            found[name] = lines[:3]
    return len(names), found


def show():
    told = {"recorded": recorded(TESTS / "golden_steps" / os.environ["FD_POSTPROC_DOUBLE"])}
    print(json.dumps(told | {"engine": engine(), "scripts": scripts()}))
