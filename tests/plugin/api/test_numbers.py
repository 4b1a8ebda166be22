"""Floats as serialisers print them."""

import json
import math
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fd_postproc.fastdeploy.api.chunks._chunks import PROBES, PYTHON, FloatStyle
from fd_postproc.fastdeploy.api.chunks.float_style import float_style
from tests.lib.rows import each

ADAPTER = TypeAdapter(float)
STYLE = float_style()

floats = st.floats(allow_nan=False, allow_infinity=False)
floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
bits = st.integers(0, 2**64 - 1).map(lambda word: struct.unpack("d", struct.pack("Q", word))[0])


@given(st.one_of(floats, floats32, bits.filter(math.isfinite), st.integers(-(2**53), 2**53).map(float)))
@example(5e-324)
@example(1.7976931348623157e308)
@example(2.2250738585072014e-308)
@example(9007199254740993.0)
@example(-1.1920928955078125e-07)
@example(1e23)
def test_as_python_and_as_pydantic_print_them(value):
    assert PYTHON.text(value) == repr(value)
    assert STYLE.text(value) == ADAPTER.dump_json(value).decode()


def test_powers_of_two_whose_neighbours_differ_and_of_ten():
    for exponent in range(-1074, 1024):
        value = 2.0**exponent
        for near in (value, math.nextafter(value, 0), math.nextafter(value, math.inf)):
            assert PYTHON.text(near) == repr(near)
    for exponent in range(-323, 309):
        value = float(f"1e{exponent}")
        assert PYTHON.text(value) == repr(value)
        assert STYLE.text(-value) == ADAPTER.dump_json(-value).decode()


@each("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(value):
    assert STYLE.text(value) == ADAPTER.dump_json(value).decode() == "null"


def test_the_style_is_told_by_what_is_printed():
    older = FloatStyle(-5, 16, False, False)  # pydantic_core 2.33: 1e16
    for printed in (repr, json.dumps, older.text):
        style = FloatStyle.of(printed)
        assert [style.text(value) for value in PROBES] == [printed(value) for value in PROBES]
    assert older.text(1e16) == "1e16"
    for other in (lambda value: f"{value:.17g}", lambda value: "1e15" if value == 1e15 else repr(value)):
        assert FloatStyle.of(other) is None
    assert len(PROBES) > 20


@each("least, most", [(-7, 16), (1, 16), (-4, 22), (-4, 0)])
def test_a_style_out_of_bounds_is_refused(least, most):
    with pytest.raises(ValueError, match=f"least={least} .* most={most}"):
        FloatStyle(least, most, True, True)
