"""Blocks are the shard's bytes exactly once, in order, bounded, and every element has one source."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.blocks import blocks
from ckptcore.rules.merge_plan import Copy, PlannedShard, PlannedTensor
from ckptcore.rules.stored import Segment, StoredArray
from ckptcore.rules.tensors import Box, TensorSpec, row_major_strides
from ckptcore.rules.tiles import slabs

SHAPES = st.lists(st.integers(0, 7), max_size=4).map(tuple)


def tensor_of(key: str, shape: tuple[int, ...], offset: int, grid: int) -> PlannedTensor:
    """A uint8 tensor cut along each axis into boxes of ``grid``; the payload is the tensor."""
    array = StoredArray(shape, "|u1", False, (Segment(0, int(np.prod(shape))),))
    strides = row_major_strides(shape)
    copies = []
    for low in np.ndindex(*(-(-extent // grid) for extent in shape)):
        start = tuple(i * grid for i in low)
        size = tuple(min(grid, extent - at) for at, extent in zip(start, shape, strict=True))
        base = sum(at * stride for at, stride in zip(start, strides, strict=True))
        copies.append(Copy(Box(start, size), 0, array, base, strides, "uint8"))
    copies.sort(key=lambda copy: copy.target)
    return PlannedTensor(TensorSpec(key, "uint8", shape), offset, tuple(copies) if 0 not in shape else ())


@given(SHAPES, st.integers(1, 40))
def test_slabs_are_runs_in_order(shape: tuple[int, ...], limit: int) -> None:
    order = np.arange(int(np.prod(shape))).reshape(shape)
    runs = [
        order[tuple(slice(o, e) for o, e in zip(s.offset, s.end, strict=True))].ravel() for s in slabs(shape, limit)
    ]
    assert all(len(run) <= limit for run in runs)
    assert [int(i) for run in runs for i in run] == list(range(order.size))


@given(st.lists(SHAPES, max_size=4), st.integers(1, 40), st.integers(1, 5))
def test_blocks_fill_the_shard_exactly_once(shapes: list[tuple[int, ...]], limit: int, grid: int) -> None:
    offset, tensors = 16, []
    for number, shape in enumerate(shapes):
        tensors.append(tensor_of(f"t{number}", shape, offset, grid))
        offset += tensors[-1].spec.size_bytes
    shard = PlannedShard("model.safetensors", b"h" * 16, offset, tuple(tensors))
    position = 16
    for block in blocks(shard, max_bytes=limit):
        assert block.offset == position
        assert 0 < block.size_bytes <= limit
        filled = 0
        for fill in block.fills:
            assert fill.start == filled
            covered = np.zeros(fill.slab.shape, int)
            for copy, part in fill.parts:
                assert copy.target.contains(part)
                covered[
                    tuple(
                        slice(p - o, p - o + n)
                        for p, o, n in zip(part.offset, fill.slab.offset, part.shape, strict=True)
                    )
                ] += 1
            assert (covered == 1).all()
            filled += fill.slab.volume
        assert filled == block.size_bytes
        position += block.size_bytes
    assert position == shard.size_bytes
