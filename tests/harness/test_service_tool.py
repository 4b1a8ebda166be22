"""Parts of ``harness/service`` that need no FastDeploy: first responses that are dropped, and ids."""

import asyncio
import sys
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api.connections import RequestMap
from tests.lib import service_tool

NAME = "chatcmpl-{}-01234567-89ab-cdef-0123-456789abcdef"


@pytest.fixture
def tool():
    for name in ("httpx", "openai"):
        pytest.importorskip(name)
    return service_tool.tool()


@pytest.fixture
def connections(monkeypatch):
    monkeypatch.syspath_prepend(str(service_tool.FOLDER / "shim"))
    from fd_service_shim import connections

    yield connections
    for name in [name for name in sys.modules if name.startswith("fd_service_shim")]:
        del sys.modules[name]


def manager(connections, requests):
    """FastDeploy's connection manager, as far as the shim knows it, which has begun to listen."""

    class DealerConnectionManager:
        def __init__(self, pid):
            self.request_map = requests

        async def initialize(self):
            self.running = True

    connections.watch(SimpleNamespace(DealerConnectionManager=DealerConnectionManager))
    made = DealerConnectionManager(1)
    asyncio.run(made.initialize())
    assert made.running
    return made


def test_a_response_that_comes_too_early_is_said(tool, connections, capsys, tmp_path):
    requests = manager(connections, {}).request_map
    early, late = NAME.format("case"), NAME.format("case-stream")
    assert requests.get(early) is None
    requests[early] = requests[late] = "queue"
    assert requests.get(early) == requests.get(late) == "queue"
    requests.pop(late)
    requests.get(late)  # of a client that left: nobody misses it
    (tmp_path / "out").write_text(capsys.readouterr().out)
    service = tool.server.Service(tmp_path, tmp_path, plug_in=False)
    assert service.dropped("case") == 1
    assert service.dropped("case-stream") == service.dropped("cas") == 0


def test_the_map_of_the_plug_in_stays(connections):
    """It keeps what comes too early: the service that is measured is the one that is used."""
    ours = RequestMap({})
    assert manager(connections, ours).request_map is ours


def test_it_may_not_matter_where_a_chunk_ends(tool):
    def chunk(text, ids, **more):
        choice = {"index": 0, "delta": {"content": text, "completion_token_ids": ids}, **more}
        return {"object": "chunk", "choices": [choice]}

    def differ(*chunks, **how):
        fine = [chunk("a", [1]), chunk("b", [2]), *end]
        how = {"crowd": False, "whole": True, **how}
        return tool.cases.differences({"x": fine}, {"x": [*chunks, *end]}, **how)

    end = [chunk("", [], finish_reason="stop"), {"choices": [], "usage": {"completion_tokens": 2}}, "ended"]
    assert differ(chunk("ab", [1, 2])) == []
    assert differ(chunk("ab", [1, 2]), whole=False)
    assert differ(chunk("ab", [1, 3]))
    assert differ(chunk("a", [1]), chunk("bb", [2]))
    assert differ(chunk("ab", [1, 2]), "hangs")
    assert differ(chunk("abc", [1, 2]))
    assert differ(chunk("abc", [1, 2]), may_go_on=True) == []
    assert differ(chunk("a", [1, 2]), may_go_on=True)
