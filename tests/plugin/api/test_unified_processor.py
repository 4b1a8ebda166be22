"""The API side where FastDeploy has one data processor for all models (#7747)."""

import importlib
import random
import sys

import pytest

from fd_postproc.fastdeploy.api import entry, loading, parsers
from fd_postproc.fastdeploy.api.chunks._chunks import forget_totals, totals
from tests.lib.known import remember
from tests.lib.quiet import imported
from tests.lib.restated_parsers import WORDS, Calls, Thinks
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
    forget_totals()
    entry.register()
    yield stock, importlib.import_module(NAME).Processor()
    sys.modules.pop(NAME, None)


def play(one, deltas, stream, name):
    one.model_status_dict[name] = "think_start"
    method = one.process_response_dict_streaming if stream else one.process_response_dict_normal
    said = []
    for number, ids in enumerate(deltas):
        result = {"request_id": name, "finished": number == len(deltas) - 1, "outputs": {"token_ids": [*ids]}}
        said.append(method(result)["outputs"])
    return said


@each("stream", [True, False])
def test_the_api_side_is_active_on_the_unified_processor(stream, processors):
    theirs, own = processors
    assert parsers.is_quick(own)
    assert own.ids2tokens.__func__.advance
    draw, ids = random.Random(7942), [*range(1, 5), *range(10, 10 + len(WORDS)), 10, 10, 10]
    for number in range(60):
        deltas = [draw.choices(ids, k=draw.choice((0, 1, 1, 2, 4))) for _ in range(draw.randint(1, 30))]
        assert play(own, deltas, stream, str(number)) == play(theirs, deltas, stream, str(number))
    assert own.decode_status == {}
    assert not [told for told in totals()[1] if "parsers" in told]
