"""The quick ways by name, and what the log and the doctor say of them.  Standard library only."""

from __future__ import annotations

from collections.abc import Iterable

WAYS = {
    "dictionaries": "results become dictionaries by a template, not by FastDeploy's to_dict",
    "stamps": "requests are advanced in one loop, which sets the four known time stamps",
    "metrics": "a step's samples of FastDeploy's metrics are summed up, not observed one by one",
    "delivery": "a step's results go into FastDeploy's scheduler at once, not one by one",
    "wake-up": "FastDeploy's sender is woken when results are put, it does not look for them now and then",
    "messages": "results become bytes for the API server at once, not by dictionaries and msgpack",
    "fetching": "a step's results come out of FastDeploy's scheduler at once, not one by one",
    "sending": "a step's results are sorted and sent in one go, not one by one",
    "decode log": "the scheduler's log is told of a step's tokens in one call, not of each request's",
}


def text_of(ways: dict[str, bool]) -> str:
    """For the log and the doctor."""
    off = [name for name, is_on in ways.items() if not is_on]
    if not off:
        return f"every quick way is taken ({', '.join(ways)})"
    reasons = "; ".join(f"{name} (elsewhere {WAYS[name]})" for name in off)
    return (
        "results are right, but slower than they could be: this FastDeploy differs where a quick way begins: "
        f"{reasons}; please report it, with FastDeploy's version"
    )


def left_text(left: Iterable[tuple[str, str]]) -> str:
    """The end of a sentence for the log and the doctor: what is FastDeploy's own still, and why."""
    parts = "; ".join(f"{what} ({why})" for what, why in left)
    return f"; left to FastDeploy: {parts}" if parts else ""
