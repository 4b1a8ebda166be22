"""The API side where FastDeploy has one data processor for all models (#7747)."""

import importlib
import random
import sys

import pytest

from fd_postproc.fastdeploy import loading
from fd_postproc.fastdeploy.api import entry
from fd_postproc.fastdeploy.api.text import views
from fd_postproc.fastdeploy.api.text.answers import answers_of
from fd_postproc.fastdeploy.notes import forget, noted
from tests.lib.known import remember
from tests.lib.quiet import imported
from tests.lib.restated_parsers import Calls, Thinks, play, random_answer
from tests.lib.rows import each

NAME = "fastdeploy.input.processor"


@pytest.fixture
def processors(monkeypatch):
    """A data processor of FastDeploy's module as it is, and of one imported with the plug-in registered."""
    imported("fastdeploy")
    remember(monkeypatch, "api parsers", Thinks, Calls)
    monkeypatch.setattr(loading, "_finder", loading._Finder())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    stock = importlib.import_module(NAME).Processor()
    monkeypatch.delitem(sys.modules, NAME)
    forget()
    entry.register()
    yield stock, importlib.import_module(NAME).Processor()
    sys.modules.pop(NAME, None)


@each("stream", [True, False])
def test_the_api_side_is_active_on_the_unified_processor(stream, processors):
    theirs, own = processors
    assert views.views_of(own).chunk is not own
    assert answers_of(own.ids2tokens.__func__)
    draw = random.Random(7942)
    for number in range(20):
        deltas = random_answer(draw)
        assert [*play(own, deltas, stream, str(number))] == [*play(theirs, deltas, stream, str(number))]
    assert own.decode_status == {}
    assert not [told for told in noted() if "parsers" in told]
