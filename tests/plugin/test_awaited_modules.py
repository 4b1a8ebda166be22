"""Something is done when a module has been imported."""

import importlib
import importlib.util
import sys

import pytest

from fd_postproc.fastdeploy.gate import loading


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Name of a module that is not imported yet."""
    name = f"imported_later_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("VALUE = 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.setattr(loading, "_finder", loading._Finder())  # other tests may leave modules awaited
    yield name
    sys.modules.pop(name, None)
    assert loading._finder not in sys.meta_path


def test_after_the_import_once_in_order_and_at_once_if_it_is_there(module):
    seen = []
    for number in range(3):
        loading.when_loaded(module, lambda loaded, number=number: seen.append((number, loaded.VALUE)))
    for _ in range(2):
        assert importlib.util.find_spec(module) is not None
    assert seen == []  # looking for a module is not loading it
    loaded = importlib.import_module(module)
    assert seen == [(0, 5), (1, 5), (2, 5)]
    assert type(loaded.__loader__).__name__ == type(loaded.__spec__.loader).__name__ == "SourceFileLoader"
    importlib.reload(loaded)
    loading.when_loaded(module, lambda loaded: seen.append(loaded.VALUE))
    assert seen[3:] == [5]


def test_while_it_is_imported_it_is_not_yet_there(module, tmp_path):
    text = "from fd_postproc.fastdeploy.gate import loading\n"
    text += "loading.when_loaded(__name__, lambda loaded: loaded.SEEN.append(5))\nSEEN = []\n"
    (tmp_path / f"{module}.py").write_text(text)
    loading.when_loaded(module, lambda loaded: loaded.SEEN.append(4))
    assert importlib.import_module(module).SEEN == [4, 5]


def test_a_module_that_fails_is_not_told_of(module, tmp_path):
    (tmp_path / f"{module}.py").write_text("raise KeyError('x')\n")
    seen = []
    loading.when_loaded(module, seen.append)
    with pytest.raises(KeyError):
        importlib.import_module(module)
    assert seen == []
    (tmp_path / f"{module}.py").write_text("VALUE = 5000\n")
    assert seen == [importlib.import_module(module)]


def test_a_module_that_there_is_not(module):
    loading.when_loaded(module + "_not", print)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(module + "_not")
    loading._finder.actions.clear()
    sys.meta_path.remove(loading._finder)
