"""Boxes of a turned tensor: bounded, exactly once, in bands, and long on both sides."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.blocks import blocks
from ckptcore.rules.merge_plan import Copy, PlannedShard, PlannedTensor
from ckptcore.rules.stored import Segment, StoredArray
from ckptcore.rules.tensors import Box, TensorSpec, row_major_strides
from ckptcore.rules.tiles import boxes, cutting_of


def turned(shape: tuple[int, ...], order: tuple[int, ...], pieces: int = 1) -> PlannedTensor:
    """A uint8 tensor of that shape whose axis ``i`` is stored as axis ``order[i]``, cut into ``pieces`` along the
    target axis that is stored last."""
    stored_shape = tuple(shape[order.index(axis)] for axis in range(len(shape)))
    axis = order.index(len(shape) - 1)
    edges = [shape[axis] * number // pieces for number in range(pieces + 1)]
    copies = []
    for low, high in pairwise(edges):
        if low == high:
            continue
        local = (*stored_shape[:-1], high - low)
        strides = row_major_strides(local)
        offset = tuple(low if at == axis else 0 for at in range(len(shape)))
        extent = tuple(high - low if at == axis else n for at, n in enumerate(shape))
        array = StoredArray(local, "|u1", False, (Segment(0, prod(local)),))
        picked = tuple(strides[at] for at in order)
        copies.append(Copy(Box(offset, extent), 0, array, 0, picked, "uint8"))
    copies.sort(key=lambda copy: copy.target)
    return PlannedTensor(TensorSpec("t", "uint8", shape), 8, tuple(copies))


@given(st.data())
def test_blocks_write_every_byte_once_and_bands_are_whole(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    tensor = turned(shape, order, data.draw(st.integers(1, 4)))
    limit = data.draw(st.integers(1, 60))
    size = prod(shape)
    written = np.zeros(8 + size, int)
    hashed = 8
    positions = np.arange(8, 8 + size).reshape(shape)
    for block in blocks(PlannedShard("s", b"h" * 8, 8 + size, (tensor,)), max_bytes=limit):
        assert block.size_bytes <= limit
        run = block.size_bytes // block.rows
        places = [block.offset + row * block.pitch + at for row in range(block.rows) for at in range(run)]
        slabs = [
            positions[tuple(slice(o, e) for o, e in zip(fill.slab.offset, fill.slab.end, strict=True))].ravel()
            for fill in block.fills
        ]
        assert places == [int(place) for slab in slabs for place in slab]
        written[places] += 1
        if block.band is None:
            assert block.offset == hashed
            hashed += block.size_bytes
        elif block.band != (0, 0):
            start, length = block.band
            assert start == hashed
            assert (written[start : start + length] == 1).all()
            hashed += length
    assert hashed == 8 + size
    assert (written[8:] == 1).all()


MIB = 1 << 20


@pytest.mark.parametrize(
    ("shape", "pieces", "axis"),
    [
        ((7680, 2560), 4, None),  # pieces that fit are read whole
        ((10240, 2560), 2, 0),
        ((65536, 65536), 1, 0),
        ((65536, 65536), 64, 0),
        ((3, 4096, 65536), 1, 1),
    ],
)
def test_reads_and_writes_are_long(shape: tuple[int, ...], pieces: int, axis: int | None) -> None:
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    copies = turned(shape, order, pieces).copies
    cutting = cutting_of(shape, copies, 7 * MIB)
    assert cutting.axis == axis
    piece_rows = shape[-2] // pieces
    for box in (box for _, box in zip(range(50), boxes(shape, cutting), strict=False)):
        assert box.volume <= 7 * MIB
        # Each is either a whole piece wide, and so one read, or at least 2 KiB of 16-bit values.
        assert box.shape[-2] in (piece_rows, 2 * piece_rows) or box.shape[-2] >= 1024
        assert box.shape[-1] == shape[-1] or box.shape[-1] >= 1024


def test_a_tensor_that_is_not_turned_is_cut_into_runs() -> None:
    tensor = turned((64, 64), (0, 1))
    assert cutting_of((64, 64), tensor.copies, 100).axis is None
    assert tensor.copies[0].turned_axis is None
    assert turned((64, 64), (1, 0)).copies[0].turned_axis == 0
    assert turned((64, 1), (1, 0)).copies[0].turned_axis is None
