"""A checkout is no trap: programs in it use the package that is installed, or are told to install it."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.lib.page_commands import as_a_user
from tests.lib.paths import ROOT


@pytest.fixture
def checkout(tmp_path):
    """A folder with the package's sources and nothing that was built."""
    shutil.copytree(
        ROOT / "fd_postproc", tmp_path / "fd_postproc", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    return tmp_path


def test_all_modules_are_those_of_the_installed_package(checkout):
    code = (
        "import sys, fd_postproc, fd_postproc.ops, fd_postproc.cli\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('fd_postproc.')), sep='\\n')"
    )
    (checkout / "where.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "where.py"],
        cwd=checkout,
        env=as_a_user(),
        check=True,
        capture_output=True,
        text=True,
    )
    files = done.stdout.split()
    assert len(files) > 20
    assert [file for file in files if file.startswith(str(checkout))] == [
        str(checkout / "fd_postproc" / "_checkout.py")  # which finds the others
    ]


def test_without_an_installed_package_the_import_says_what_to_do(checkout):
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import fd_postproc"],
        cwd=checkout,
        env=as_a_user(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert re.search(rf"pip install {checkout} ", last)
