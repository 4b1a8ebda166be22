"""Compares what clients got of two services, without what no two answers have in common."""

from __future__ import annotations

import json
import re
from typing import Any

# Ids, clocks, and what the clock decides.
_OWN = {
    "id", "created", "model", "arrival_time", "request_id", "metrics", "inference_start_time",
    "prompt_logprobs_time", "x_request_id",
}  # fmt: skip

_NEIGHBOURS = {"rejected_tokens", "accept_ratio", "average_accept_length", "draft_logprobs"}


def tidy(value: Any) -> Any:
    """An answer without ids and clocks."""
    if isinstance(value, dict):
        return {
            key: sorted(part) if key == "metrics" and isinstance(part, dict) else tidy(part)
            for key, part in value.items()
            if key not in _OWN or (key == "metrics" and isinstance(part, dict))
        }
    if isinstance(value, list):
        return [tidy(part) for part in value]
    if isinstance(value, str):
        return _without_ids(value)
    return value


def _without_ids(text: str) -> str:
    text = re.sub(r"(chatcmpl|cmpl)-([a-z0-9-]+-)?[0-9a-f-]{36}(_\d+)?", r"\1-ID", text)
    return re.sub(r"/[^ \"]*/model\b", "MODEL", text)


def differences(
    one: dict[str, list[Any]],
    other: dict[str, list[Any]],
    *,
    crowd: bool,
    whole: bool = False,
    may_go_on: bool = False,
) -> list[str]:
    """In words, one line a case.

    The chunks of each choice are compared in order; which choice is served first is a matter of the clock.
    So is, for requests that run beside others, how many empty steps FastDeploy counts for a request, and
    whose draft logprobs it gives to whom.

    Parameters
    ----------
    one, other : dict
        Of `ask`.
    crowd : bool
        Whether cases ran side by side.
    whole : bool
        Whether it does not matter where a chunk ends; see `joined`.
    may_go_on : bool
        Whether a text of `other` may go on behind that of `one`.  Where an answer ends within a character,
        FastDeploy drops the text of the last step; of tokens that come one by one, only the character.
    """
    found = []
    for name in sorted(one.keys() | other.keys()):
        a, b = ((joined if whole else by_choice)(answers.get(name)) for answers in (one, other))
        if crowd or "choices" in name or "batch" in name:
            a, b = _without_neighbours(a), _without_neighbours(b)
        if may_go_on:
            b = _cut(a, b, "")
        if a != b:
            where, x, y = _first(a, b, "")
            found.append(f"{name}: {where}: {json.dumps(x)[:200]} and {json.dumps(y)[:200]}")
    return found


def by_choice(got: list[Any] | None) -> Any:
    """A stream's chunks as a list for each choice; other answers as they are."""
    if got is None or len(got) < 2:
        return got
    lists: dict[str, list[Any]] = {}
    for part in got:
        choices = part.get("choices", []) if isinstance(part, dict) else []
        index = str(choices[0]["index"]) if len(choices) == 1 else "end"
        lists.setdefault(index, []).append(part)
    if len(lists) > 2:  # more than one choice: what ends one of them names none
        lists.get("end", []).sort(key=json.dumps)
    return lists


_TEXTS = {"content", "reasoning_content", "text", "completion_tokens"}
"""What a stream says bit by bit; any other text is the same in every chunk."""


def joined(got: list[Any] | None) -> Any:
    """A stream's chunks as one for each choice, and what is in none; other answers as they are.

    Of a client that leaves after some chunks nothing else is left: how much it got depends on their size.
    """
    if got is None or len(got) < 2 or got[-1] == "left":
        return got if got is None or got[-1] != "left" else "left"
    whole: dict[str, Any] = {"rest": {}, "ends": [part for part in got if not isinstance(part, dict)]}
    for part in (part for part in got if isinstance(part, dict)):
        rest = {key: value for key, value in part.items() if key != "choices"}
        whole["rest"] = _both_parts(whole["rest"], rest, "")
        for choice in part.get("choices") or ():
            index = str(choice["index"])
            whole[index] = _both_parts(whole.get(index), choice, "")
    return whole


def _both_parts(one: Any, other: Any, key: str) -> Any:
    """Two values of a key, put together if they are lists or texts; of others the last counts."""
    if one is None or other is None:
        return one if other is None else other
    if isinstance(one, dict) and isinstance(other, dict):
        return {k: _both_parts(one.get(k), other.get(k), k) for k in one.keys() | other.keys()}
    if key in _TEXTS or (isinstance(one, list) and key != "metrics"):
        return one + other
    return other


def _cut(one: Any, other: Any, key: str) -> Any:
    """The other value, whose texts end where those of the one do if they begin with them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {k: _cut(one.get(k), value, k) for k, value in other.items()}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_cut(*pair, key) for pair in zip(one, other, strict=True)]
    if key in _TEXTS and isinstance(one, str) and isinstance(other, str) and other.startswith(one):
        return one
    return other


def _without_neighbours(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_neighbours(v) for k, v in value.items() if k not in _NEIGHBOURS}
    return [_without_neighbours(part) for part in value] if isinstance(value, list) else value


def _first(a: Any, b: Any, where: str) -> tuple[str, Any, Any]:
    """Where two values differ first, and both values there."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        key = next(key for key in a if a[key] != b[key])
        return _first(a[key], b[key], f"{where}.{key}")
    if isinstance(a, list) and isinstance(b, list):
        for at, (x, y) in enumerate(zip(a, b, strict=False)):
            if x != y:
                return _first(x, y, f"{where}[{at}]")
        return f"{where} (lengths)", len(a), len(b)
    return where, a, b
