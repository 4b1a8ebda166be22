"""The files of docs/deploy: a unit that systemd reads, the page's pod, a Dockerfile with the right wheel."""

import re
import shlex
import shutil
import subprocess

import pytest

from tests.lib.paths import ROOT

FOLDER = ROOT / "docs" / "deploy"
PAGE = (ROOT / "docs" / "operators.md").read_text()


def test_systemd_reads_the_unit_without_a_word(tmp_path):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("the unit is not verified: needs systemd-analyze (Debian's package systemd)")
    unit = (FOLDER / "fastdeploy.service").read_text()
    python = re.search(r"^ExecStart=(\S+)", unit, re.M)[1]
    (tmp_path / "fastdeploy.service").write_text(unit.replace(python, "/bin/true"))
    done = subprocess.run([verify, "verify", tmp_path / "fastdeploy.service"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_does_what_the_page_says():
    unit = (FOLDER / "fastdeploy.service").read_text()
    of_unit = dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"\w+=", line))
    assert of_unit["Environment"] == "FD_PLUGINS=fd_postproc"
    assert (of_unit["KillMode"], of_unit["RemoveIPC"]) == ("mixed", "no")
    streams = int(re.search(r"--timeout-graceful-shutdown (\d+)", unit)[1])
    assert f"`--timeout-graceful-shutdown {streams}`" in PAGE
    assert int(of_unit["TimeoutStopSec"]) > streams


def differing(part, whole, where=""):
    """Where the one has what the other has not; lists of the other may be longer."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return [at for key in part for at in differing(part[key], whole.get(key), f"{where}.{key}")]
    if isinstance(part, list) and isinstance(whole, list) and len(part) <= len(whole):
        return [at for n, one in enumerate(part) for at in differing(one, whole[n], f"{where}[{n}]")]
    return [] if part == whole else [where]


def test_the_pod_is_the_page_s():
    yaml = pytest.importorskip("yaml", reason="the pod is not read: needs PyYAML")
    pod = yaml.safe_load((FOLDER / "pod.yaml").read_text())
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")
    assert (
        differing(yaml.safe_load(re.search(r"```yaml\n(containers:.*?)```", PAGE, re.S)[1]), pod["spec"])
        == []
    )
    (container,) = pod["spec"]["containers"]
    mounted, volumes = container["volumeMounts"], pod["spec"]["volumes"]
    assert [one["name"] for one in mounted] == [one["name"] for one in volumes]
    ports = {one["containerPort"] for one in container["ports"]}
    assert ports == {int(word.partition("=")[2]) for word in container["command"] if "port=" in word} - {8182}
    waits = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    (streams,) = (int(word.partition("=")[2]) for word in container["command"] if "graceful" in word)
    assert pod["spec"]["terminationGracePeriodSeconds"] > waits + streams


def test_the_image_gets_the_wheel_of_its_python():
    lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    steps = dict(line.split(" ", 1) for line in lines)
    assert list(steps) == ["ARG", "FROM", "COPY", "RUN", "ENV"]
    wheel, folder = shlex.split(steps["COPY"])
    assert "-cp310-" in wheel  # FastDeploy's images have Python 3.10
    assert wheel.replace("cp310", "cp311") == re.search(r"pip install (\S+)", PAGE)[1]
    assert f"{folder}fd_postproc-*.whl" in steps["RUN"]
    assert steps["ENV"] == "FD_PLUGINS=fd_postproc"
