"""docs/seams.md and the code agree with the table of what is replaced in FastDeploy."""

import ast
import re
import runpy
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy import replacements, seams
from fd_postproc.fastdeploy.api.chunks import building_blocks
from fd_postproc.ops.table import SAVE_OPS
from tests.lib.paths import ROOT
from tests.lib.rows import each

PLUG_IN = ROOT / "fd_postproc" / "fastdeploy"


def test_the_page_is_made_from_the_table():
    made = runpy.run_path(str(ROOT / "docs" / "generate_seams.py"))["page"]()
    assert (ROOT / "docs" / "seams.md").read_text() == made, "python docs/generate_seams.py"


@each("name, seam", seams.SEAMS.items())
def test_what_takes_its_place_is_there(name, seam):
    module, _, attribute = seam.ours.partition(":")
    file = PLUG_IN / f"{module.replace('.', '/')}.py"
    if not file.exists():
        file = file.with_suffix(".pyi")
    tree = ast.parse(file.read_text())
    assert attribute in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert seam.side in (seams.ENGINE, seams.API, seams.WORKER)


def test_what_a_serving_module_may_get_is_listed():
    methods = {name for _, name in building_blocks._METHODS}
    names = {*building_blocks.MODELS, *methods}
    assert seams.SEAMS["api chunks"].attributes == names
    assert seams.SEAMS["save ops"].attributes == {*SAVE_OPS}


def names_installed():
    """Names of seams that the code installs."""
    for path in PLUG_IN.rglob("*.py"):
        yield from re.findall(r'\b(?:Replacement|install)\(\s*"([^"]+)"', path.read_text())


def test_what_sets_attributes_is_installed_and_nothing_else():
    assert {*names_installed()} == {name for name, seam in seams.SEAMS.items() if seam.places}


def test_an_attribute_that_is_not_listed_is_refused():
    with pytest.raises(ValueError, match="does not list get_results as replaced by 'wake-up'"):
        replacements.Replacement("wake-up", (SimpleNamespace(), "get_results", 1))


def holder():
    class Base:
        def initialize(self):
            return "inherited"

    class Own(Base):
        def __init__(self):
            self.made = True

    return Own


def test_what_was_there_is_restored_also_what_was_inherited():
    own = holder()
    stock = vars(own)["__init__"]
    ours = lambda *_: None  # noqa: E731
    replaced = replacements.Replacement("api connections", (own, "__init__", ours), (own, "initialize", ours))
    replaced.install()
    assert vars(own)["__init__"] is vars(own)["initialize"] is ours
    replaced.restore()
    assert vars(own)["__init__"] is stock
    assert "initialize" not in vars(own)


def test_what_another_has_put_there_since_stays():
    own, other = holder(), object()
    restore = replacements.install("api connections", (own, "__init__", lambda *_: None))
    own.__init__ = other
    restore()
    assert vars(own)["__init__"] is other


def test_a_second_one_of_the_same_seam_restores_fastdeploys_own():
    """So a second token processor may come before the first has gone."""
    own, first, second = holder(), lambda *_: 1, lambda *_: 2
    stock = vars(own)["__init__"]
    older = replacements.Replacement("api connections", (own, "__init__", first)).install()
    newer = replacements.Replacement("api connections", (own, "__init__", second)).install()
    older.restore()
    assert vars(own)["__init__"] is second
    newer.restore()
    assert vars(own)["__init__"] is stock


def test_a_class_is_found_by_the_method_that_it_defines():
    class Processor:
        def ids2tokens(self):
            pass

    class Inherits(Processor):
        pass

    Processor.__module__ = Inherits.__module__ = "a"
    module = SimpleNamespace(Processor=Processor, Inherits=Inherits, Other=holder(), __name__="a")
    assert replacements.classes_that_define(module, "ids2tokens") == [Processor]
    module.__name__ = "b"  # imported from elsewhere
    assert replacements.classes_that_define(module, "ids2tokens") == []
