"""The patches for FastDeploy: no lines of theirs but those that change, a text for each; they apply."""

import re
import shutil
import subprocess

import pytest

from tests.lib.paths import ROOT
from tests.lib.rows import each
from tests.lib.service_tool import TREES

FOLDER = ROOT / "docs/upstream"
PATCHES = sorted(FOLDER.glob("*.patch"))
MOST_TAKEN_OUT = 5  # lines of FastDeploy's that a patch may name


@each("patch", PATCHES)
def test_it_names_no_more_of_fastdeploy_than_it_changes(patch):
    lines = [line for line in patch.read_text().splitlines() if not line.startswith(("---", "+++"))]
    assert all(line.startswith(("@@", "+", "-")) for line in lines), "a line of context"
    assert all(re.fullmatch("@@ [-+,0-9 ]+ @@", line) for line in lines if line.startswith("@@"))
    assert sum(line.startswith("-") for line in lines) <= MOST_TAKEN_OUT


@pytest.mark.fastdeploy
@each("tree", [tree for tree in TREES if "26" in tree.name])
def test_they_apply_to_26(tree, tmp_path):
    for patch in PATCHES:
        for name in re.findall(r"^--- a/(\S+)$", patch.read_text(), flags=re.M):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree / name, tmp_path / name)
    for patch in PATCHES:
        subprocess.run(["patch", "-p1", "-s", "-i", str(patch)], cwd=tmp_path, check=True)
    for file in tmp_path.rglob("*.py"):
        compile(file.read_text(), str(file), "exec")
