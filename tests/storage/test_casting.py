"""Casts give Paddle's bits, and say what overflowed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ckptcore.rules.casts import CAST_DTYPES
from ckptcore.storage.casting import rounded

BITS = {"float64": np.uint64, "float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}
VALUES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


def cast_bits(source: str, target: str, bits: npt.ArrayLike) -> tuple[npt.NDArray[Any], int]:
    values, overflows = rounded(np.array(bits, BITS[source]).view(VALUES[source]), source, [target])
    return values.view(BITS[target]), overflows


# What Paddle 3.3.1's astype gives on a CPU.
@pytest.mark.parametrize(
    ("source", "target", "before", "after"),
    [
        ("float32", "bfloat16", 0x3F808000, 0x3F80),  # a tie goes to the even neighbour
        ("float32", "bfloat16", 0x3F818000, 0x3F82),
        ("float32", "bfloat16", 0x3F808001, 0x3F81),
        ("float32", "bfloat16", 0x00008000, 0x0000),
        ("float32", "bfloat16", 0x00018000, 0x0002),  # subnormals round too
        ("float32", "bfloat16", 0xFF800000, 0xFF80),
        ("float32", "bfloat16", 0xFF815466, 0x7FFF),  # any NaN is one NaN
        ("float32", "float16", 0x477FEFFF, 0x7BFF),
        ("float32", "float16", 0x33000000, 0x0000),
        ("float32", "float16", 0x33000001, 0x0001),
        ("float32", "float16", 0x80000001, 0x8000),
        ("float16", "bfloat16", 0x7C01, 0x7FFF),
        ("float16", "float64", 0x7C01, 0x7FF8040000000000),
        ("bfloat16", "float32", 0x7F81, 0x7F810000),
        ("float64", "float16", 0x7FF08117B63F709B, 0x7E20),
        # 1 + 2**-11 + 2**-40 is nearer to the next float16; by way of float32 it is a tie, which goes to 1.
        ("float64", "float16", 0x3FF0020000001000, 0x3C00),
    ],
)
def test_bits(source: str, target: str, before: int, after: int) -> None:
    assert [hex(int(bits)) for bits in cast_bits(source, target, [before])[0]] == [hex(after)]


def test_tiny_values_round_to_zero_where_paddle_makes_them_up() -> None:
    assert list(cast_bits("float32", "float16", [0x1342F01D, 0x16DB7F0E])[0]) == [0, 0]


def test_finite_values_that_become_infinite_are_counted() -> None:
    inf, nan, largest = 0x7F800000, 0x7FC00000, 0x7F7FFFFF
    bits, overflows = cast_bits("float32", "bfloat16", [largest, inf, nan, 0x7F7F0000, largest | 0x80000000])
    assert [hex(int(value)) for value in bits] == ["0x7f80", "0x7f80", "0x7fff", "0x7f7f", "0xff80"]
    assert overflows == 2
    assert cast_bits("float32", "float16", [0x477FF000, 0x477FEFFF, inf])[1] == 1
    assert rounded(np.array([1e300, np.inf, 1.0]), "float64", ["float32", "bfloat16", "float64"])[1] == 1


def test_casts_are_applied_in_order() -> None:
    values, _ = rounded(np.array([1 + 2**-9], np.float32), "float32", ["bfloat16", "float32"])
    assert values.tolist() == [1.0]


@pytest.mark.paddle
@pytest.mark.skipif(find_spec("paddle") is None, reason="Paddle is not installed")
@pytest.mark.parametrize("source", CAST_DTYPES)
@pytest.mark.parametrize("target", CAST_DTYPES)
def test_equal_to_paddle(source: str, target: str) -> None:
    import paddle

    if source == target:
        return
    rng = np.random.default_rng(3)
    if BITS[source] is np.uint16:
        bits: npt.NDArray[Any] = np.arange(1 << 16, dtype=np.uint16)
    else:
        bits = rng.integers(0, 1 << (8 * np.dtype(BITS[source]).itemsize), 200_000, BITS[source])
    values = bits.view(VALUES[source])
    if target == "float16":  # see storage/casting.py for the values that Paddle makes up
        wide = values.astype(np.uint32) << 16 if source == "bfloat16" else values
        with np.errstate(invalid="ignore"):  # signalling NaN become quiet ones
            size = np.abs((wide.view(np.float32) if source == "bfloat16" else wide).astype(np.float64))
        keep = ~((size > 1e-27) & (size < 1e-23))
        bits, values = bits[keep], values[keep]
    tensor = paddle.to_tensor(values, dtype=source)
    expected = np.asarray(tensor.astype(target).numpy()).view(BITS[target])
    assert (cast_bits(source, target, bits)[0] == expected).all()


def test_float16_is_what_numpy_rounds_to() -> None:
    """Every float16 and every midpoint between two, with its neighbours, and random bits."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    ties = np.append(halves[:-1] + (np.diff(halves) >> 1), np.uint32(0x477FF000))
    small = np.arange(1, 2048, dtype=np.float32) * np.float32(2.0**-25)
    bits = np.concatenate([halves, ties, small.view(np.uint32)])
    random = np.random.default_rng(5).integers(0, 1 << 32, 500_000, np.uint32)
    bits = np.concatenate([bits - 1, bits, bits + 1, random])
    for sign in (0, 1 << 31):
        values = (bits ^ np.uint32(sign)).view(np.float32)
        with np.errstate(all="ignore"):
            expected = values.astype(np.float16).view(np.uint16)
        assert (rounded(values, "float32", ["float16"])[0].view(np.uint16) == expected).all()
