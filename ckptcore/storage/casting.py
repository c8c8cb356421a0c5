"""Casts between floating dtypes, as Paddle's ``astype`` rounds: to the nearest value, ties to even.

Owns the bits. As in Paddle 3.3.1 every cast but the one between float32 and float64 goes through float32 (so that
float64 is rounded twice on its way to 16 bits), and any NaN becomes the bfloat16 0x7FFF. The one difference: Paddle
turns float32 values between 1.6e-27 and 6.7e-24 into float16 values up to 1.2e-4; here they are 0, the nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_NUMPY: dict[str, np.dtype[Any]] = {"float64": np.dtype("f8"), "float32": np.dtype("f4"), "float16": np.dtype("f2")}
_BFLOAT16_NAN = np.uint16(0x7FFF)


def rounded(values: Array, dtype: str, casts: Sequence[str]) -> tuple[Array, int]:
    """``values`` of ``dtype`` cast to each of ``casts`` in turn, and how many finite ones became infinite.

    bfloat16 is raw ``uint16``, before and after. The result is a new array in native byte order.
    """
    was_finite = None
    for target in casts:
        values, dtype, before = _cast(values, dtype, target), target, (values, dtype)
        infinite = _is_infinite(values, dtype)
        if was_finite is None and infinite.any():
            was_finite = ~_is_infinite(*before) & ~_is_nan(*before)
    overflows = 0 if was_finite is None else int(np.count_nonzero(was_finite & _is_infinite(values, dtype)))
    return values, overflows


def _cast(values: Array, source: str, target: str) -> Array:
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if {source, target} == {"float32", "float64"}:
            return values.astype(_NUMPY[target])
        single = _to_float32(values, source)
        if target == "bfloat16":
            return _to_bfloat16(single)
        return _to_float16(single) if target == "float16" else single.astype(_NUMPY[target], copy=False)


def _to_float32(values: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def _to_bfloat16(values: Array) -> Array:
    bits = values.view(np.uint32)
    # A carry out of the mantissa is the exponent's next value: the largest finite values round to infinity.
    result = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    result[np.isnan(values)] = _BFLOAT16_NAN
    return result


def _to_float16(values: Array) -> Array:
    """What numpy's own cast gives, which raises a flag of the processor for each value that overflows or is subnormal
    and so takes twenty times as long where many are."""
    bits = values.view(np.uint32)
    size = bits & np.uint32(0x7FFFFFFF)
    # The exponent's bias is 112 less. A carry out of the mantissa is the exponent's next value, up to infinity.
    result = (size + (((size >> 13) & 1) + np.uint32(0xFFF)) - np.uint32(112 << 23)) >> 13
    # Where the result is subnormal, the sum with 0.5 has its 24 bits at the end, rounded by the processor.
    small = (size.view(np.float32) + np.float32(0.5)).view(np.uint32) - np.uint32(0x3F000000)
    result = np.where(size < 0x38800000, small, result)
    result = np.where(size >= 0x47800000, np.uint32(0x7C00), result)
    is_nan = size > 0x7F800000
    if is_nan.any():
        payload = np.maximum((size >> 13) & 0x3FF, 1)  # a NaN whose upper bits are all zero must not become infinite
        result = np.where(is_nan, 0x7C00 | payload, result)
    return (result | ((bits >> 16) & 0x8000)).astype(np.uint16).view(np.float16)


def _is_infinite(values: Array, dtype: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return (values & 0x7FFF) == 0x7F80 if dtype == "bfloat16" else np.isinf(values)


def _is_nan(values: Array, dtype: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return (values & 0x7FFF) > 0x7F80 if dtype == "bfloat16" else np.isnan(values)
