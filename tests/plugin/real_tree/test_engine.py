"""FastDeploy's own loader and its real engine service: which token processor they get, and who is told."""

import pytest

from tests.lib.real_tree import each_tree, run
from tests.lib.service_tool import FOLDER

pytestmark = pytest.mark.fastdeploy

ENGINE = f"""
import importlib.util, json, logging, os, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("model", {str(FOLDER / "model.py")!r})
model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model)
model.make(Path("model"))
from fastdeploy.utils import llm_logger
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.levelname + " " + record.getMessage())
llm_logger.addHandler(Keep())
from fastdeploy.engine import common_engine
from fastdeploy.engine.args_utils import EngineArgs
args = EngineArgs(model="model", max_model_len=2048, num_gpu_blocks_override=100, max_num_seqs=8)
engine = common_engine.EngineService(args.create_engine_config(), start_queue=True)
cls = type(engine.token_processor)
print("told: " + json.dumps({{
    "class": cls.__module__,
    "peer": os.environ.get("FD_POSTPROC_PEER"),
    "lines": [line for line in lines if "fd_postproc:" in line],
}}), flush=True)
os._exit(0)  # its servers and threads are not waited for
"""


@each_tree
def test_the_engine_service_has_a_token_processor_that_works_or_says_why_not(tree, tmp_path):
    """No tree is known here by its name: it is active, or it gives its reason, also on standard error."""
    told, done = run(tree, ENGINE, folder=tmp_path, FD_PLUGINS="fd_postproc")
    if told["class"].startswith("fd_postproc."):
        assert told["peer"].startswith("compact/1,service/")
        assert any("engine side active" in line for line in told["lines"])
    else:
        assert told["peer"] is None
        # Said while FastDeploy's package is imported, before anybody can listen: it is in its file.
        logs = (tmp_path / "log").rglob("fastdeploy.log*")
        (line,) = {
            line.rpartition("fd_postproc: ")[2].removesuffix("\x1b[0m")  # FastDeploy's logs have colours
            for log in logs
            for line in log.read_text().splitlines()
            if "falls back" in line
        }
        reason = line.partition("is used: ")[2]
        assert len(reason) > 20
        assert "Error" not in reason
        assert reason in done.stderr


@each_tree
def test_without_the_variable_nothing_changes(tree, tmp_path):
    told, done = run(tree, ENGINE, folder=tmp_path)
    assert told["class"] == "fastdeploy.output.token_processor"
    assert told["peer"] is None
    assert "fd_postproc:" not in done.stderr
