"""What a user has who has no checkout: an sdist and a wheel, made and installed as the documents say.

It takes minutes, and pip has to reach a package index: nightly.
"""

import re
import shutil
import subprocess
import sys
import tarfile

import pytest

from tests.lib.page_commands import ROOT, as_a_user, run_command, unique_commands
from tests.lib.page_examples import examples, run_example

pytestmark = pytest.mark.nightly


def shell(commands, folder, venv):
    """Run lines of a page in a folder, a virtual environment being active."""
    environment = {**as_a_user(), "VIRTUAL_ENV": str(venv)}
    environment["PATH"] = f"{venv / 'bin'}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", commands], cwd=folder, env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def new_venv(folder):
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


def block_with(word, page):
    """The indented block of a page in which a word is, without its remarks."""
    for block in re.findall(r"(?:^    .+\n)+", (ROOT / page).read_text(), flags=re.M):
        if word in block:
            return block
    raise AssertionError(f"{page} has no block with {word!r}")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the checkout, in which a build leaves its traces."""
    ignored = shutil.ignore_patterns(".*_cache", ".git", ".hypothesis", "*.so", "build", "dist", "*.egg-info")
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("tree") / "fd_postproc", ignore=ignored)


@pytest.fixture(scope="module")
def sdist(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    venv = new_venv(folder / "venv")
    shell("pip install -q build && python -m build -q --sdist --outdir made TREE".replace("TREE", str(tree)),
          folder, venv)  # fmt: skip
    (made,) = (folder / "made").glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheels_venv(tree, tmp_path_factory):
    """A virtual environment with a wheel, made and installed by the user guide's commands."""
    venv = new_venv(tmp_path_factory.mktemp("user") / "venv")
    shell(block_with("pip wheel", "docs/user-guide.md"), tree, venv)
    return venv


def test_the_sdist_holds_the_sources_and_documents_alone(sdist, tmp_path):
    assert sdist.stat().st_size < 2_000_000
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    of_tests = {name for name in names if name.startswith("tests/")}
    others = {name for name in of_tests if not name.startswith("tests/restated")}
    assert others <= {"tests/__init__.py", "tests/"}
    wanted = [
        ROOT.glob(pattern)
        for pattern in (
            *(".ci/**/*", "*.md", "docs/*.md", "examples/*", "cuda/*.h", "tools/*.py"),
            *("benchmarks/**/*.md", "harness/**/*.md", "tests/restated/**/*.md"),
        )
    ]
    missing = {str(path.relative_to(ROOT)) for paths in wanted for path in paths} - names
    assert not missing
    pictures = set(re.findall(r"!\[.*?\]\((.*?)\)", (ROOT / "README.md").read_text()))
    assert pictures <= names


def test_the_sdist_can_be_installed(sdist, own_namespace, tmp_path):
    venv = new_venv(tmp_path / "venv")
    out = shell(f"pip install -q {sdist} && fd-postproc demo", tmp_path, venv)
    assert "arrived equal" in " ".join(out.split())


def test_examples_run_with_a_wheel(wheels_venv, own_namespace, tmp_path):
    """Outside the checkout, where all of them run in the environment of the tests."""
    if not own_namespace:
        pytest.skip("the examples use queue ids that others may use, too")
    run_example(dict(examples())["README.md-0"], tmp_path, wheels_venv / "bin" / "python")
    for command in list(unique_commands())[:3]:
        run_command(command, wheels_venv / "bin", tmp_path)
