"""The plug-in on the double of every recorded version: active, or aside with a reason in words."""

import pytest

from tests.lib.rows import each

pytestmark = pytest.mark.framework

SERVED = ("26", "25", "dev", "develop")
ASIDE = {
    "24": "RequestMetrics has no record_recv_token; served are FastDeploy 2.5 and newer",
    "jan": "TokenProcessor._cache_output has new code in line",
}
LEGACY = ("25", "dev", "develop")
PREFILL = (
    "plain tokens, prefill role",
    "speculation, prefill role",
    "speculation with logprobs, prefill role",
)
STORAGE = "plain tokens, prefill role, cache through a storage"


@each("version", SERVED)
def test_active(report, version):
    told = report(version)
    assert told["engine"]["active"], told["engine"]["log"]
    ((level, line),) = told["engine"]["log"]
    assert (level, told["engine"]["stderr"]) == ("INFO", "")
    assert "engine side active" in line
    for name, script in told["scripts"].items():
        assert (script["difference"], script["complaints"]) == (None, []), name


@each("version", ASIDE)
def test_aside_with_a_reason_in_words(report, version):
    told = report(version)
    assert not told["engine"]["active"]
    ((level, line),) = told["engine"]["log"]
    assert level == "WARNING"
    assert "engine side falls back" in line
    assert ASIDE[version] in line
    assert "cannot tell" not in line
    assert ASIDE[version] in told["engine"]["stderr"]


# ---- What versions differ in ---------------------------------------------------------------------------


@each("version", ["26", "25"])
def test_a_key_that_is_there_for_some_results_only(report, recorded, version):
    """Results without it have FastDeploy's keys, made quickly; one that has it shows it."""
    shown = recorded(version)["classes"]["RequestOutput"]["to_dict"]
    keys = [key for key, _, _, *condition in shown if not condition]
    assert report(version)["dictionary"] == {"quick": True, "keys": keys, "with_routing": [1]}


@each("version", SERVED)
@each("script", ["logprobs", "speculation with logprobs"])
def test_headers_without_a_column_count_mean_all_columns(report, version, script):
    assert report(version)["scripts"][script]["columns"] == ([21] if version in LEGACY else [1, 3, 21])


@each("version", SERVED)
def test_clients_are_told_of_an_abort_where_fastdeploy_does(report, recorded, version):
    aborted = report(version)["scripts"]["plain tokens"]["aborted"]
    assert aborted == ("_put_abort_results" in recorded(version)["token_processor"]["methods"])


def ends_of(script):
    """How its two transfers ended; each sends a first token."""
    assert script["sent"] == 2
    return script["errors"][:2]


def failure(recorded):
    return [recorded["error_code"], recorded["text"].format(task_id="trial-1_0", status="failed")]


@each("version", SERVED)
@each("script", PREFILL)
def test_a_cache_transfer_ends_as_in_the_version(report, recorded, version, script):
    """Requests are not failed for want of an event's name, and a failed transfer has the version's code."""
    told, behaviour = report(version)["scripts"][script], recorded(version)["behaviour"]
    assert ends_of(told) == [[200, None], failure(behaviour["failed_transfer"])]
    traced = [name for name in behaviour["prefill_events"] if name.startswith("CHECK_CACHE_TRANSFER")]
    assert [name for name in told["events"] if name.startswith("CHECK_CACHE_TRANSFER")] == 2 * traced


def test_a_cache_that_goes_through_a_storage(report, recorded):
    """Nobody tells of a transfer then: FastDeploy's own way, and the first token goes out."""
    told = report("26")["scripts"][STORAGE]
    assert told["storage"]
    assert ends_of(told) == [[200, None], failure(recorded("26")["behaviour"]["failed_storage"])]


def test_a_version_without_the_schedulers_log(report):
    """It differs in when output is cached, and in nothing else."""
    scripts = report("jan")["scripts"]
    assert "calls of the resource manager" in scripts.pop("plain tokens")["difference"]
    assert {name: told["difference"] for name, told in scripts.items() if told["difference"]} == {}


@each("version", SERVED)
def test_gauges_of_speculative_decoding(report, version):
    """Not all versions have names for the methods in the token processor's module."""
    for told in report(version)["gauges"]:
        assert told["complaints"] == []
        assert told["ours"] == told["stock"], told["method"]
        assert any(value != [0.0] for value in told["ours"].values())
