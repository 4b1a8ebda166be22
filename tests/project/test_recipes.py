"""Each check has one recipe, in ``.ci/checks``; what calls it names one that is there."""

import os
import re
import subprocess
import sys

import pytest

from tests.lib.paths import ROOT

CHECKS = ROOT / ".ci" / "checks"
NAMES = {path.name for path in CHECKS.iterdir() if os.access(path, os.X_OK)}
CALLERS = [
    *(ROOT / ".github" / "workflows").glob("*.yml"),
    *(
        ROOT / name
        for name in (".ci/run", ".pre-commit-config.yaml", "CONTRIBUTING.md", "docs/development.md")
    ),
]


def called(text):
    """Checks that a text names; of a matrix, its values."""
    names = set(re.findall(r"\.ci/checks/([\w-]+)", text))
    if "${{ matrix.check }}" in text:
        (values,) = re.findall(r"check: \[(.*)\]", text)
        names |= set(values.split(", "))
    return names


@pytest.mark.parametrize("caller", CALLERS, ids=lambda path: path.name)
def test_what_is_called_is_there(caller):
    assert called(caller.read_text()) <= NAMES


def test_every_change_runs_every_check():
    by_hand = {"c-format"}  # changes files
    apart = {"coverage"}  # takes long, finds no error
    with_a_tree = {"fastdeploy"}  # a workflow of its own
    documents = {"site"}  # no change of the package breaks it; the tests look at links, too
    assert called((ROOT / ".ci" / "run").read_text()) == NAMES - by_hand - apart - with_a_tree - documents
    workflows = ROOT / ".github" / "workflows"
    assert called((workflows / "checks.yml").read_text()) == NAMES - by_hand - with_a_tree
    assert called((workflows / "fastdeploy.yml").read_text()) == with_a_tree
    assert called((ROOT / "docs" / "development.md").read_text()) == NAMES


def test_workflows_use_every_python_that_is_supported():
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text())
    (matrix,) = re.findall(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "checks.yml").read_text())
    assert [version.strip('"') for version in matrix.split(", ")] == classifiers
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert re.findall(r"^ +(3\.\d+)$", release, flags=re.M) == classifiers
    assert re.findall(r" python(3\.\d+)", release) == classifiers


def test_the_changelogs_section_is_what_a_release_says(tmp_path):
    """The program that a tag starts refuses a wrong tag and a section without a date."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / "fd_postproc").mkdir()
    program = tmp_path / ".ci" / "release_notes"
    program.write_text((ROOT / ".ci" / "release_notes").read_text())
    (tmp_path / "fd_postproc" / "_version.py").write_text('__version__ = "1.2.3"\n')
    changelog = tmp_path / "CHANGELOG.md"

    def notes(tag, text):
        changelog.write_text(text)
        return subprocess.run(
            [sys.executable, program, tag], capture_output=True, text=True, cwd=tmp_path, check=False
        )

    dated = "# Changelog\n\n## 1.2.3 - 2026-12-01\n\nNew.\n\n## 1.2.2 - 2026-11-01\n\nOld.\n"
    good = notes("v1.2.3", dated)
    assert (good.returncode, good.stdout) == (0, "New.\n")
    wrong = notes("v1.2.4", dated)
    assert wrong.returncode == 1
    assert "the tag is v1.2.4, but fd_postproc/_version.py says 1.2.3" in wrong.stderr
    undated = notes("v1.2.3", dated.replace("2026-12-01", "unreleased"))
    assert undated.returncode == 1
    assert "'unreleased'" in undated.stderr


@pytest.mark.parametrize("page", ["README.md", "README_CN.md"])
def test_pages_name_the_pythons_that_are_supported(page):
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text())
    first, last = re.search(r"Python (3\.\d+) (?:to|至) (3\.\d+)", (ROOT / page).read_text()).groups()
    assert (first, last) == (classifiers[0], classifiers[-1])


@pytest.mark.parametrize("name", sorted(NAMES | {"common.sh"}))
def test_recipes_are_bash(name):
    subprocess.run(["bash", "-n", CHECKS / name], check=True)


def test_configuration_files_can_be_read():
    yaml = pytest.importorskip("yaml")
    for path in [
        *(ROOT / ".github").rglob("*.yml"),
        ROOT / ".pre-commit-config.yaml",
        ROOT / ".clang-format",
    ]:
        assert yaml.safe_load(path.read_text())
