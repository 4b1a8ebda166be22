"""What a user's type checker and `inspect` see."""

import ast
import inspect
from pathlib import Path

import pytest

import fd_postproc as fp
from fd_postproc import layout
from tests.lib.paths import ROOT
from tests.lib.rows import each

STUB = Path(ROOT, "fd_postproc", "_core.pyi")


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
