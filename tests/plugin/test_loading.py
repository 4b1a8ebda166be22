"""How FastDeploy's engine loads the plug-in: which class, what the workers are told, what is logged."""

import os
import subprocess
import sys
import types

import pytest

from fd_postproc.fastdeploy.engine import activation, entry
from fd_postproc.support.environment import SERVICE, service_number
from tests.lib.children import python
from tests.lib.nursery import with_paddle
from tests.lib.quiet import Double, imported
from tests.lib.rows import each

pytestmark = pytest.mark.framework

ENGINE = """
import io, json, logging, os, sys, warnings
warnings.simplefilter("ignore")
sys.stderr = said = io.StringIO()
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append(f"{record.levelname} {record.getMessage()}")
logging.getLogger("fastdeploy").addHandler(Keep())
import fastdeploy.output.token_processor as stock
import prometheus_client
CHANGES
from fastdeploy.engine import common_engine
from fastdeploy.config import FDConfig
loaded = common_engine.TokenProcessor is not stock.TokenProcessor
processor = common_engine.EngineService(FDConfig(), object()).token_processor
print(json.dumps({
    "loaded": loaded,
    "stock": type(processor) is stock.TokenProcessor,
    "peer": os.environ.get("FD_POSTPROC_PEER"),
    "lines": [line for line in lines if "fd_postproc" in line],
    "stderr": [line for line in said.getvalue().splitlines() if line.startswith("fd_postproc: ")],
    "gauge": prometheus_client.REGISTRY.get_sample_value("fd_postproc_active", {"side": "engine"}),
}))
"""
DIFFERENT = """
def planted(self, *arguments, original=stock.TokenProcessor._new_result):
    result = original(self, *arguments)
    result.outputs.reasoning_token_num = 7
    return result
stock.TokenProcessor._new_result = planted
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """What the plug-in reads, unset; a change that it makes is undone."""
    for name in ("DISABLE", "KEEP_STALE", "KEEP_POLLING", "GC", "PEER", "FASTDEPLOY"):
        monkeypatch.setenv(f"FD_POSTPROC_{name}", "")
        monkeypatch.delenv(f"FD_POSTPROC_{name}")
    monkeypatch.setenv("FD_PLUGINS", "fd_postproc")
    monkeypatch.delenv("FD_USE_GET_SAVE_OUTPUT_V1", raising=False)
    monkeypatch.delenv("INFERENCE_MSG_QUEUE_ID", raising=False)


def engine(changes="", to_the_end=False, **variables):
    """What became of an engine that was started in a process of its own."""
    return with_paddle(ENGINE.replace("CHANGES", changes), {**os.environ, **variables}, to_the_end)


def test_the_engine_loads_our_class_and_the_workers_are_told():
    told = engine(to_the_end=True, FD_POSTPROC_DISABEL="1")
    assert told["loaded"]
    assert not told["stock"]
    assert words(told["peer"]) == ["compact/1"]
    (line,) = [line for line in told["lines"] if "active" in line]
    assert line.startswith("INFO fd_postproc: engine side active")
    assert "this FastDeploy's code is known" in line
    assert (told["gauge"], told["stderr"]) == (1.0, [])
    assert any(line.startswith("ERROR") and "FD_POSTPROC_DISABEL" in line for line in told["lines"])


def test_disabled_it_is_fastdeploys_class_from_the_start():
    told = engine(FD_POSTPROC_DISABLE="1", FD_POSTPROC_PEER="compact/1")
    assert not told["loaded"]
    assert told["stock"]
    assert told["peer"] is None
    assert any("engine side off: FD_POSTPROC_DISABLE is set" in line for line in told["lines"])


def test_new_code_stands_aside_and_is_named_with_file_and_line():
    told = engine(DIFFERENT, FD_POSTPROC_PEER="compact/1")
    assert told["stock"]
    assert told["peer"] is None
    (line,) = [line for line in told["lines"] if "falls back" in line]
    assert line.startswith("WARNING")
    assert "TokenProcessor._new_result" in line
    (said,) = told["stderr"]  # once, where it is not one of thousands
    assert "TokenProcessor._new_result" in said
    assert told["gauge"] == 0.0
    (line,) = [line for line in told["lines"] if "active beside" in line]
    assert line.endswith("sending, wake-up")


def test_steps_over_zeromq_are_served():
    told = engine(FD_USE_GET_SAVE_OUTPUT_V1="1", FD_POSTPROC_PEER="compact/1")
    assert not told["stock"]
    assert words(told["peer"]) == ["compact/1", "streams/3"]


def test_a_class_that_cannot_be_made_is_replaced_by_fastdeploys_own():
    told = engine("stock.LogprobsLists = list", FD_POSTPROC_PEER="compact/1")
    assert not told["loaded"]
    assert told["peer"] is None
    (line,) = [line for line in told["lines"] if line.startswith("WARNING")]
    assert "ours cannot be made here: " in line
    assert told["stderr"] == [line.removeprefix("WARNING ")]
    assert told["gauge"] == 0.0


def test_what_the_entry_point_and_the_doctor_load():
    """The standard library and this package only; and no extension of the engine."""
    code = """
import sys
import fd_postproc
before = set(sys.modules)
from fd_postproc.fastdeploy.engine import entry
print({name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))
import fd_postproc.doctor
print([name for name in sys.modules if name.startswith("fd_postproc.fastdeploy.") and "._" in name])
"""
    told = subprocess.run(python(code), cwd="/", capture_output=True, text=True, check=True)
    entry_loads, extensions = told.stdout.splitlines()
    assert entry_loads in ("{'fd_postproc'}", "set()")
    assert extensions == "[]"


# ---- Other plug-ins --------------------------------------------------------------------------------------


@pytest.fixture
def rival(tmp_path, monkeypatch):
    """A function that installs another project's plug-in for the token processor."""

    def install(body):
        (tmp_path / "plugin_rival.py").write_text(body)
        info = tmp_path / "plugin_rival-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-rival\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{entry.GROUP}]\nrival = plugin_rival:load\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    yield install
    sys.modules.pop("plugin_rival", None)


@pytest.fixture
def stock():
    return Double().output__token_processor


def test_another_plug_in_that_is_allowed_gets_its_turn(stock, rival, monkeypatch):
    rival("class Replacement: pass\ndef load(): return Replacement\n")
    assert entry.token_processor().__module__.startswith("fd_postproc")
    monkeypatch.setenv("FD_PLUGINS", "fd_postproc,rival")
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    assert entry.token_processor().__name__ == "Replacement"
    assert "FD_POSTPROC_PEER" not in os.environ
    monkeypatch.delenv("FD_PLUGINS")
    assert entry.token_processor().__name__ == "Replacement"


def test_one_that_does_not_load_is_passed_over(stock, rival, monkeypatch):
    rival("import no_such_module\n")
    monkeypatch.setenv("FD_PLUGINS", "fd_postproc,rival")
    assert issubclass(entry.token_processor(), stock.TokenProcessor)


# ---- The decision ----------------------------------------------------------------------------------------


@each("platform", ["xpu", "iluvatar", "gcu", "intel_hpu"])
def test_other_platforms_are_served_if_their_keys_are_ours(stock, monkeypatch, platform):
    """They are built from the same sources; without the op that tells of its keys, nobody knows."""
    current = imported("fastdeploy.platforms").current_platform
    ops = types.ModuleType(f"fastdeploy.model_executor.ops.{platform}")
    monkeypatch.setattr(current, f"is_{platform}", lambda: True, raising=False)
    monkeypatch.setitem(sys.modules, ops.__name__, ops)
    assert activation.decide(stock).compatible  # no op at all: nobody but us makes keys
    ops.get_output = lambda *arguments: None
    verdict = activation.decide(stock)
    assert not verdict.compatible
    assert "get_output_ep" in verdict.reason
    ops.get_output_ep = imported("fastdeploy.model_executor.ops.gpu").get_output_ep
    assert activation.decide(stock).compatible


def test_a_decision_that_cannot_be_made_is_no(stock, monkeypatch):
    monkeypatch.delattr(stock, "envs")
    verdict = activation.decide(stock)
    assert verdict == activation.Decision(False, verdict.reason)
    assert verdict.reason.startswith("cannot tell: AttributeError")


def words(peer):
    """All but the service's number, which is a random one."""
    *others, last = peer.split(",")
    assert last == f"{SERVICE}{service_number(peer):08x}"
    return others


def test_the_peer_is_announced_and_withdrawn(monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_PEER", "something/9")
    monkeypatch.setenv("FD_POSTPROC_WORKER", "0")  # FastDeploy's workers send no accepted tokens there
    activation.announce_peer(True, True, True)
    assert words(os.environ["FD_POSTPROC_PEER"]) == ["compact/1", "streams/3"]
    activation.announce_peer(False)
    monkeypatch.delenv("FD_POSTPROC_WORKER")
    numbers = set()
    for more, announced in [
        ((), ["compact/1"]),
        ((True,), ["compact/1", "streams/3"]),
        ((True, True), ["compact/1", "streams/3", "streams/3+drafts"]),
    ]:
        activation.announce_peer(True, *more)
        peer = os.environ["FD_POSTPROC_PEER"]
        assert words(peer) == announced
        numbers.add(service_number(peer))
    assert [*map(bool, numbers)] == [True]  # a process that inherits a number keeps it
    activation.announce_peer(False)
    assert "FD_POSTPROC_PEER" not in os.environ
    activation.announce_peer(True)
    assert service_number(os.environ["FD_POSTPROC_PEER"]) not in numbers  # another service
    activation.announce_peer(True, rank=1)  # a child of the first rank's engine
    assert service_number(os.environ["FD_POSTPROC_PEER"]) != 0
    activation.announce_peer(False)
    activation.announce_peer(True, rank=1)  # its workers have the number of another process
    assert os.environ["FD_POSTPROC_PEER"] == "compact/1"
    activation.announce_peer(False)
    assert "FD_POSTPROC_PEER" not in os.environ
    activation.announce_peer(False)


def test_a_build_with_other_keys_is_left_alone(stock, monkeypatch):
    """Its workers would send into a queue that our receiver never opens."""
    ops = imported("fastdeploy.model_executor.ops.gpu")
    assert activation.decide(stock).compatible
    monkeypatch.setattr(ops, "get_output_ep", lambda tensor, rank, wait: None)
    verdict = activation.decide(stock)
    assert not verdict.compatible
    assert verdict.reason == activation.OTHER_KEYS
