"""What the bits of each dtype mean, and what two runs of elements differ by, against plain arithmetic."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ckptcore.formats.element_values import difference, values_of
from ckptcore.rules.diff import has_values, is_real
from ckptcore.rules.tensors import DTYPES

NAMES = sorted(name for name, dtype in DTYPES.items() if dtype.safetensors)
REAL = [name for name in NAMES if is_real(name)]


def view(array: np.ndarray[Any, np.dtype[Any]]) -> memoryview:
    return memoryview(array.tobytes())


def number(code: int, exponent_bits: int, mantissa_bits: int, *, has_infinity: bool) -> float:
    """IEEE 754's reading of a code; without infinity, only the code of all ones is no number (OCP's E4M3)."""
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    top = exponent == (1 << exponent_bits) - 1
    if top and has_infinity:
        return math.nan if mantissa else sign * math.inf
    if top and mantissa == (1 << mantissa_bits) - 1:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits)


@pytest.mark.parametrize(
    ("dtype", "exponent_bits", "has_infinity"), [("float8_e4m3fn", 4, False), ("float8_e5m2", 5, True)]
)
def test_every_float8(dtype: str, exponent_bits: int, has_infinity: bool) -> None:
    found = values_of(view(np.arange(256, dtype=np.uint8)), dtype)
    wanted = [number(code, exponent_bits, 7 - exponent_bits, has_infinity=has_infinity) for code in range(256)]
    np.testing.assert_array_equal(found, wanted)
    assert all(math.copysign(1, a) == math.copysign(1, b) for a, b in zip(found, wanted, strict=True) if a == 0)


def test_every_bfloat16() -> None:
    codes = np.arange(1 << 16, dtype="<u2")
    wanted = [struct.unpack(">f", struct.pack(">HH", code, 0))[0] for code in range(1 << 16)]
    np.testing.assert_array_equal(values_of(view(codes), "bfloat16"), wanted)


@pytest.mark.parametrize("dtype", NAMES)
@given(data=st.data())
def test_the_same_bits_never_differ(dtype: str, data: st.DataObject) -> None:
    bits = data.draw(hnp.arrays(f"<u{DTYPES[dtype].itemsize}", st.integers(0, 20)))
    sums = difference(view(bits), dtype, view(bits), dtype)
    assert (sums.elements, sums.differing, sums.not_finite, sums.difference_squares) == (len(bits), 0, 0, 0)
    assert math.isfinite(sums.squares) or dtype == "float64"


@pytest.mark.parametrize("dtype", NAMES)
@given(data=st.data())
def test_differences_are_those_of_plain_arithmetic(dtype: str, data: st.DataObject) -> None:
    """Any bits, NaN and infinities included; each element's difference is taken by itself, in Python."""
    length = data.draw(st.integers(1, 12))
    a, b = (data.draw(hnp.arrays(f"<u{DTYPES[dtype].itemsize}", length)) for _ in range(2))
    sums = difference(view(a), dtype, view(b), dtype)
    unequal = a != b
    assert sums.differing == int(unequal.sum())
    if not has_values(dtype):
        assert sums == type(sums)(length, sums.differing)
        return
    old, new = (values_of(view(bits), dtype).reshape(length, -1).tolist() for bits in (a, b))
    not_finite, squares, difference_squares, largest = 0, 0.0, 0.0, 0.0
    for is_unequal, before, after in zip(unequal, old, new, strict=True):
        squares += sum(x * x for x in before if math.isfinite(x))
        distances = [y - x for x, y in zip(before, after, strict=True)] if is_unequal else []
        not_finite += any(not math.isfinite(distance) for distance in distances)
        finite = [distance for distance in distances if math.isfinite(distance)]
        difference_squares += sum(distance * distance for distance in finite)
        largest = max([largest, *map(abs, finite)])
    assert (sums.not_finite, sums.largest) == (not_finite, largest)
    assert sums.squares == pytest.approx(squares, rel=1e-12)
    assert sums.difference_squares == pytest.approx(difference_squares, rel=1e-12)


@pytest.mark.parametrize("new", REAL)
@pytest.mark.parametrize("old", REAL)
@given(data=st.data())
def test_across_dtypes_equal_values_are_equal(old: str, new: str, data: st.DataObject) -> None:
    if old == new:
        return
    length = data.draw(st.integers(1, 8))
    a, b = (data.draw(hnp.arrays(f"<u{DTYPES[name].itemsize}", length)) for name in (old, new))
    sums = difference(view(a), old, view(b), new)
    before, after = values_of(view(a), old), values_of(view(b), new)
    pairs = list(zip(before.tolist(), after.tolist(), strict=True))
    assert sums.differing == sum(x != y and not (math.isnan(x) and math.isnan(y)) for x, y in pairs)
    assert not np.isnan([sums.squares, sums.difference_squares, sums.largest]).any()
