"""Steps that come as objects, as FastDeploy 2.6 has processed them: golden_streams/README.md."""

import pytest

from tests.lib.plugged import plugin_class
from tests.lib.quiet import imported

pytestmark = pytest.mark.framework


@pytest.fixture(scope="module")
def replay():
    return imported("tests.lib.stream_replay")


def names(replay, every):
    """Traces without drafts, or every so-manieth of them."""
    return [name for name in replay.traces() if name != replay.SPECULATIVE][::every]


def some(every):
    """Every so-manieth trace in the suite, all of them nightly."""
    return pytest.mark.parametrize("every", [every, pytest.param(1, marks=pytest.mark.nightly)])


@some(8)
def test_our_class_does_what_is_right(replay, every):
    """What FastDeploy's did, or what is written down where it loses something: of those traces every one."""
    ours, chosen = plugin_class(), dict.fromkeys((*names(replay, every), *replay.outcomes()))
    found = {name: replay.wrong_on(ours, name, replay.one_message) for name in chosen}
    assert {name: lines for name, (lines, _) in found.items() if lines} == {}
    assert sum(compared for _, compared in found.values()) > 440 // every * 0.8


@pytest.mark.parametrize(
    ("name", "refused"),
    [("v1_h_receive_fails_first", 0), ("v1_h_receive_fails_later", 0), ("v1_h_odd_payloads", 2)],
)
def test_what_cannot_be_received_ends_nothing_and_is_counted(replay, name, refused):
    with replay.StreamReplay(replay.traces()[name], plugin_class(), replay.one_message) as replayed:
        for _ in replayed.steps():
            pass
        assert replayed.processor.counters.malformed == refused
