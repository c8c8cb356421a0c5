"""Elements of safetensors data as numbers, what a run of them adds up to, and what two runs differ by.

Owns what the bits of each dtype mean: numpy lacks bfloat16 and float8, which are widened here. Values are computed
with in double precision, which holds every value of the narrower dtypes exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ckptcore.rules.diff import Sums, has_values
from ckptcore.rules.health import Vitals
from ckptcore.rules.tensors import DTYPES

Array = np.ndarray[Any, np.dtype[Any]]


@np.errstate(invalid="ignore")  # a signalling NaN becomes a quiet one, which is no news
def values_of(data: memoryview, dtype: str) -> Array:
    """The elements of little-endian ``data`` as float64; each complex one as its real and its imaginary part."""
    match dtype:
        case "bfloat16":
            bits = np.frombuffer(data, "<u2").astype(np.uint32)
            bits <<= 16
            return bits.view(np.float32).astype(np.float64)
        case "float8_e5m2":  # the upper half of a float16
            return (np.frombuffer(data, np.uint8).astype(np.uint16) << 8).view(np.float16).astype(np.float64)
        case "float8_e4m3fn":
            return _E4M3FN[np.frombuffer(data, np.uint8)]
        case "complex64":
            return np.frombuffer(data, "<f4").astype(np.float64)
        case _:
            return np.frombuffer(data, f"<{DTYPES[dtype].stored}").astype(np.float64)


def is_same(a: memoryview, b: memoryview) -> bool:
    """Whether both hold the same bytes. Comparing memoryviews themselves takes Python's time for each byte."""
    return np.array_equal(np.frombuffer(a, np.uint8), np.frombuffer(b, np.uint8))


def difference(a: memoryview, a_dtype: str, b: memoryview, b_dtype: str) -> Sums:
    """What the elements of ``a`` and ``b``, as many of each, differ by. Two dtypes must both be real."""
    if a_dtype == b_dtype:
        unequal = _bits(a, a_dtype) != _bits(b, b_dtype)
        if not has_values(a_dtype):
            return Sums(len(unequal), int(np.count_nonzero(unequal)))
    old, new = values_of(a, a_dtype), values_of(b, b_dtype)
    if a_dtype != b_dtype:
        unequal = (old != new) & ~(np.isnan(old) & np.isnan(new))
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.subtract(new, old, out=new)
        return _sums(unequal, old, distance)


# Squares of magnitudes between these are neither infinite nor lose digits, 2**16 of them added up included.
_SMALLEST_SQUARED, _LARGEST_SQUARED = 1e-140, 1e140


def vitals_of(data: memoryview, dtype: str) -> Vitals:
    """What the elements of ``data``, which are real or complex floating-point numbers, add up to."""
    values = values_of(data, dtype)
    nan = inf = 0
    if not np.isfinite(_largest(values)):
        elements = values.reshape(len(data) // DTYPES[dtype].itemsize, -1)
        is_nan, is_inf = np.isnan(elements).any(axis=1), np.isinf(elements).any(axis=1)
        nan, inf = int(np.count_nonzero(is_nan)), int(np.count_nonzero(is_inf & ~is_nan))
        elements[is_nan | is_inf] = 0
    largest = _largest(values)
    norm = 0.0
    if _SMALLEST_SQUARED < largest < _LARGEST_SQUARED:
        norm = float(np.sqrt(_sum_of_squares(values)))
    elif largest:
        with np.errstate(over="ignore", under="ignore"):
            norm = float(largest * np.sqrt(_sum_of_squares(values / largest)))
    if dtype.startswith("complex") and largest:
        largest = float(np.hypot(values[::2], values[1::2]).max())
    return Vitals(len(data) // DTYPES[dtype].itemsize, nan, inf, largest, norm)


def _sums(unequal: Array, old: Array, distance: Array) -> Sums:
    not_finite = 0
    largest = _largest(distance)
    if not np.isfinite(largest):
        lost = ~np.isfinite(distance).reshape(len(unequal), -1)
        # The same NaN or infinity on both sides is no difference.
        not_finite = int(np.count_nonzero(lost.any(axis=1) & unequal))
        distance[lost.reshape(-1)] = 0
        largest = _largest(distance)
    squares = _sum_of_squares(old)
    if not np.isfinite(squares):
        old[~np.isfinite(old)] = 0
        squares = _sum_of_squares(old)
    differing = int(np.count_nonzero(unequal))
    return Sums(len(unequal), differing, not_finite, squares, _sum_of_squares(distance), largest)


def _largest(values: Array) -> float:
    """The largest magnitude, NaN where there is one."""
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))


def _sum_of_squares(values: Array) -> float:
    # Neither a temporary array nor the threads of a BLAS: every core has its own block already.
    return float(np.einsum("i,i->", values, values))


def _bits(data: memoryview, dtype: str) -> Array:
    return np.frombuffer(data, f"<u{DTYPES[dtype].itemsize}")


def _e4m3fn() -> Array:
    """All 256 values (OCP's E4M3, as in ``ml_dtypes``): no infinity, one NaN of each sign, exponent bias 7."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 0xF, codes & 0x7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude[(codes & 0x7F) == 0x7F] = np.nan
    return np.where(codes < 128, magnitude, -magnitude)


_E4M3FN = _e4m3fn()
