"""What is loaded or bound at import: plug-ins, a source tree over the double, the worker's save ops."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.lib.children import python
from tests.lib.logged import logged
from tests.lib.nursery import with_paddle
from tests.lib.paths import TESTS
from tests.lib.quiet import Double, imported
from tests.lib.rows import each

pytestmark = pytest.mark.framework


@pytest.fixture
def double():
    """The double's modules by name."""
    return Double()


@pytest.fixture
def log():
    """Records of FastDeploy's loggers."""
    with logged() as records:
        yield records


# ---- Plug-ins ------------------------------------------------------------------------------------------


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    """A function that installs a distribution with one entry point; FD_PLUGINS names all of them."""
    names = []

    def install(name, body, group="fastdeploy.token_processor_plugins"):
        (tmp_path / f"plugin_{name}.py").write_text(body)
        info = tmp_path / f"plugin_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = plugin_{name}:load\n")
        names.append(name)
        monkeypatch.setenv("FD_PLUGINS", ",".join(names))

    monkeypatch.setenv("FD_PLUGINS", "nobody")
    imported("fastdeploy.engine.common_engine")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield install
    for name in names:
        sys.modules.pop(f"plugin_{name}", None)


GOOD = "class Replacement: pass\ndef load(): return Replacement\n"


def chosen(double):
    return double.engine__common_engine._token_processor_class().__name__


def test_a_plug_in_is_used_and_logged(double, plug_in, log):
    plug_in("good", GOOD)
    assert chosen(double) == "Replacement"
    assert any("TokenProcessor plugin" in record.getMessage() for record in log if record.levelname == "INFO")


BROKEN = (
    *("import no_such_module\n", "def load(): raise SystemExit\n", "def load(): raise KeyboardInterrupt\n"),
    "def load(argument): return argument\n",
)


@each("number, body", enumerate(BROKEN))
def test_a_broken_plug_in_means_the_stock_class(number, body, double, plug_in, monkeypatch):
    plug_in(f"broken{number}", body)
    monkeypatch.setenv("FD_PLUGINS", f"broken{number}")
    assert chosen(double) == "TokenProcessor"


def test_no_plug_in_two_plug_ins_and_one_that_is_not_allowed(double, plug_in, monkeypatch):
    assert chosen(double) == "TokenProcessor"
    plug_in("one", GOOD)
    plug_in("two", GOOD)
    assert chosen(double) == "TokenProcessor"
    monkeypatch.setenv("FD_PLUGINS", "two")
    assert chosen(double) == "Replacement"


def test_the_model_runners_plug_in(double, plug_in):
    worker = double.worker__gpu_worker
    assert worker._model_runner_class().__name__ == "GPUModelRunner"
    plug_in("runner", GOOD, group="fastdeploy.model_runner_plugins")
    assert worker._model_runner_class().__name__ == "Replacement"


# ---- The worker's calls --------------------------------------------------------------------------------


@each(
    "logprobs, prefill, op, arguments",
    [
        (False, None, "save_output", 5),
        (True, None, "save_output_topk", 7),
        (False, False, "speculate_save_output", 9),
        (True, False, "speculate_save_output_topk", 13),
        (False, True, "mtp_save_first_token", 8),
        (True, True, "mtp_save_first_token_with_topk", 13),
    ],
)
def test_save_ops_are_called_where_they_are_bound(double, monkeypatch, logprobs, prefill, op, arguments):
    worker, calls = double.model_executor__pre_and_post_process, []
    for name in double.model_executor__ops__gpu.SAVE_OPS:
        monkeypatch.setattr(worker, name, lambda *given, name=name: calls.append((name, len(given))))
    inputs, anything = defaultdict(object, last_preempted_idx=np.ones(2)), mock.MagicMock(mp_rank=0)
    anything.logprobs_tensors, anything.sampling_mask = anything if logprobs else None, None
    if prefill is None:
        worker.save_output_normal(anything, anything, inputs)
    else:
        worker.save_output_specualate(anything, anything, inputs, inputs, 0, 0, is_mtp_prefill=prefill)
    assert calls == [(op, arguments)]
    assert not inputs["last_preempted_idx"].any()


# ---- Layers --------------------------------------------------------------------------------------------

TOLD = """
import json
from fastdeploy.output import token_processor
from fastdeploy.engine import common_engine, request
from fastdeploy.worker import output
from tests import restated
print(json.dumps({
    "files": [module.__file__ for module in (token_processor, request, output, common_engine)],
    "restated": issubclass(restated.bind(token_processor), restated.CommonStep),
}))
"""


def environment(tree):
    return {**os.environ, "FD_POSTPROC_FASTDEPLOY": str(tree), "FD_PLUGINS": "nobody"}


def run_with(tree, code):
    return subprocess.run(python(code), env=environment(tree), cwd="/", capture_output=True, text=True)


def test_a_source_tree_is_layered_over_the_double(tmp_path):
    imported("paddle")
    package = tmp_path / "fastdeploy"
    double = TESTS / "fastdeploy_double" / "fastdeploy"
    for name in "output/token_processor.py", "engine/request.py", "worker/output.py":
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text((double / name).read_text())
    for tree in tmp_path, package:
        told = with_paddle(TOLD, environment(tree))
        assert [Path(file).is_relative_to(package) for file in told["files"]] == [True, True, True, False]
        assert told["restated"]
    told = run_with(package, "import sys, fastdeploy; sys.exit('paddle' in sys.modules)")
    assert told.returncode == 0, "importing the package loads no framework"


def test_a_tree_that_lacks_a_file_is_refused_by_name(tmp_path):
    told = run_with(tmp_path, "from fastdeploy.output import token_processor")
    assert told.returncode != 0
    assert f"FD_POSTPROC_FASTDEPLOY={tmp_path}" in told.stderr
    assert "token_processor.py" in told.stderr
