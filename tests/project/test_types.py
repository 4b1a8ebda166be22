"""What a user's type checker and `inspect` see."""

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fd_postproc as fp
from fd_postproc import layout
from tests.lib.page_examples import examples
from tests.lib.paths import ROOT
from tests.lib.rows import each

STUB = Path(ROOT, "fd_postproc", "_core.pyi")


@pytest.mark.nightly  # .ci/checks/types runs it
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_the_examples_pass_strict_checks(tmp_path):
    """The README's and the programs in ``examples/``."""
    (tmp_path / "example.py").write_text(dict(examples())["README.md-0"])
    there = {*Path(ROOT, "examples").glob("*.py")} - {Path(ROOT, "examples", "through_redis.py")}
    programs = [tmp_path / "example.py", *sorted(there)]  # redis, an optional package, has types of its own
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *programs],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},  # an editable install cannot be found otherwise
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@each("name", ["Receiver", "Sender"])
def test_constructors_have_the_stubs_signatures(name):
    classes = {node.name: node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ClassDef)}
    (init,) = (node for node in classes[name].body if getattr(node, "name", "") == "__init__")
    found = inspect.signature(getattr(fp, name)).parameters
    assert [f"self, {', '.join(found)}"] == [
        ", ".join(argument.arg for argument in (*init.args.args, *init.args.kwonlyargs))
    ]
    defaults = [ast.unparse(node) for node in (*init.args.defaults, *init.args.kw_defaults)]
    shown = [repr(one.default) for one in found.values() if one.default is not one.empty]
    assert [text.replace("...", repr(fp.GPU)) for text in defaults] == shown


@each("name", ["Receiver", "Sender"])
def test_the_signature_is_the_one_that_is_called(name):
    """Cython writes the constructor's own arguments into the docstring."""
    first = getattr(fp, name).__doc__.splitlines()[0]
    shown = inspect.signature(getattr(fp, name)).parameters
    assert set(shown) == {
        word.partition("=")[0].strip(" *") for word in first[len(name) + 1 : -1].split(", ")
    } - {""}


def test_the_literal_types_are_complete():
    assert layout.Channel.__args__ == fp._core.CHANNELS
    with pytest.raises(ValueError, match="'packed', 'legacy', 'compact'") as refused:
        fp.encode(fp.Step.from_arrays("plain", [1], [1]), "another")
    assert ", ".join(map(repr, layout.Dialect.__args__)) in str(refused.value)
