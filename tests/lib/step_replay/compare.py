"""Strict comparison of what was recorded with what happened.

Values are compared as JSON text: 1, 1.0 and True differ, and so do 0.0 and -0.0.  In results the order of
keys counts too.
"""

import json
import marshal

ORDERED = {"put", "split_connector", "task_metrics"}
MISSING = "nothing"


def differences(expected, actual, *, ignore=(), sum_tolerance=0.0):
    """What differs between two records of a step, as lines of text; empty if nothing does.

    Parameters
    ----------
    expected, actual : dict
    ignore : collection of str, optional
        Keys that are not compared.
    sum_tolerance : float, optional
        Relative difference allowed in the ``_sum`` samples of histograms.
    """
    lines = []
    for key in [*expected, *(key for key in actual if key not in expected)]:
        if key in ignore:
            continue
        before, after = expected.get(key, MISSING), actual.get(key, MISSING)
        if _obviously_equal(before, after):
            continue
        if key == "metrics":
            before, after = _samples(before), _samples(after)
            _forgive_sums(before, after, sum_tolerance)
        if _text(before, key) != _text(after, key):
            lines += [f"{key}{line}" for line in _where(before, after, key in ORDERED)]
    return lines


def _obviously_equal(before, after):
    """Equal bytes are equal values, types, signs and order of keys included; and made in no time."""
    try:
        return marshal.dumps(before, 2) == marshal.dumps(after, 2)
    except ValueError:
        return False


def _text(value, key):
    return json.dumps(value, sort_keys=key not in ORDERED)


def _samples(samples):
    if samples == MISSING:
        return samples
    return {f"{name}{sorted(labels.items())}": value for name, labels, value in samples}


def _forgive_sums(before, after, tolerance):
    for name in before:
        if name.endswith("_sum[]") and name in after:
            room = tolerance * max(abs(before[name]), abs(after[name]))
            if abs(before[name] - after[name]) <= room:
                after[name] = before[name]


def _where(before, after, ordered):
    """The deepest places at which two values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from (
                f".{key}{line}" for line in _where(before.get(key, MISSING), after.get(key, MISSING), ordered)
            )
        if ordered and list(before) != list(after):
            yield f": keys in order {list(before)}, not {list(after)}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, pair in enumerate(zip(before, after, strict=True)):
            yield from (f"[{i}]{line}" for line in _where(*pair, ordered))
    elif json.dumps(before) != json.dumps(after):
        yield f": {_short(before)} was recorded, not {_short(after)}"


def _short(value, limit=200):
    text = json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
