"""Rows of one table in one test: each is tried, and each that fails is reported by its values."""

import functools
import inspect
import itertools

import pytest


def each(names, table):
    """Run a test once with each row of a table, as ``pytest.mark.parametrize`` does, but as one case.

    Several of them cross.  Fixtures are made once, for all rows; what a row has patched is undone after it.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [tuple(row) if len(names) > 1 else (row,) for row in table]

    def decorate(test):
        test, axes = getattr(test, "table", (test, []))
        axes = [*axes, (names, table)]
        parameters = inspect.signature(test).parameters.values()
        taken = {name for of_axis, _ in axes for name in of_axis}
        fixtures = [one for one in parameters if one.name not in taken]
        subtests = inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY)

        @functools.wraps(test)
        def run(*, subtests, **given):
            for combination in itertools.product(*(lines for _, lines in axes)):
                row = {}
                for (of_axis, _), values in zip(axes, combination, strict=True):
                    row.update(zip(of_axis, values, strict=True))
                with pytest.MonkeyPatch.context() as patch:
                    if "monkeypatch" in given:
                        given["monkeypatch"] = patch
                    try:
                        test(**row, **given)
                    except (Exception, pytest.fail.Exception, pytest.skip.Exception):
                        with subtests.test(
                            ", ".join(f"{name}={_shown(value)}" for name, value in row.items())
                        ):
                            raise

        run.table = test, axes
        run.__signature__ = inspect.Signature([*fixtures, subtests])
        return run

    return decorate


def _shown(value):
    text = getattr(value, "__name__", None) or getattr(value, "name", None) or repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
