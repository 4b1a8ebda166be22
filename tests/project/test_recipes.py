"""Each check has one recipe, in ``.ci/checks``; what calls it names one that is there."""

import os
import re
import subprocess

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
    assert called((ROOT / ".ci" / "run").read_text()) == NAMES - by_hand - apart
    assert called((ROOT / ".github" / "workflows" / "checks.yml").read_text()) == NAMES - by_hand
    assert called((ROOT / "docs" / "development.md").read_text()) == NAMES


def test_workflows_use_every_python_that_is_supported():
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text())
    (matrix,) = re.findall(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "checks.yml").read_text())
    assert [version.strip('"') for version in matrix.split(", ")] == classifiers
    wheels = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    assert re.findall(r"^ +(3\.\d+)$", wheels, flags=re.M) == classifiers
    assert re.findall(r" python(3\.\d+)", wheels) == classifiers


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
