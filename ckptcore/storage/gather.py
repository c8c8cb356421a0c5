"""Fill a box of an output tensor from stored elements: the inner loop of every merge and load.

One primitive, a strided box, covers rows, columns, Fortran order, transposes and flattened ranges. Owns how it is
read: straight into the target where both sides are contiguous, else through a bounded scratch buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ckptcore.formats.payloads import read_payload
from ckptcore.formats.reader import Reader
from ckptcore.rules.blocks import Fill
from ckptcore.rules.merge_plan import Copy
from ckptcore.rules.tensors import Box
from ckptcore.storage.readers import ReaderPool

Array = np.ndarray[Any, np.dtype[Any]]

# A read call costs about as much as copying this many bytes, so gaps shorter than that are read and dropped.
CALL_COST_BYTES = 8192


def fill(readers: ReaderPool, wanted: Fill, data: memoryview, scratch: memoryview) -> None:
    """Write the slab of one tensor into its place in the block ``data``, from all the rank files that hold parts of it.

    Memory beyond ``data`` is ``scratch``, whose content is overwritten.
    """
    for copy, part in wanted.parts:
        stored = np.dtype(copy.array.dtype).newbyteorder("<")
        size = wanted.slab.volume * stored.itemsize
        slab = np.frombuffer(data[wanted.start : wanted.start + size], dtype=stored).reshape(wanted.slab.shape)
        within = part.shifted(tuple(-start for start in wanted.slab.offset))
        place: tuple[Any, ...] = (*map(slice, within.offset, within.end), ...)
        with readers.opened(copy.file) as reader:
            gather(reader, copy, part, slab[place], scratch)


def gather(reader: Reader, copy: Copy, part: Box, out: Array, scratch: memoryview) -> None:
    """Write the elements of ``part`` (a box of the output tensor inside ``copy.target``) to ``out``.

    ``out`` has ``part``'s shape and the numpy dtype that the *stored* elements have in native order.
    ``scratch`` bounds the memory; its content is overwritten. Raises :class:`DamagedFile` on a short read.
    """
    base = copy.base + sum(
        (at - start) * stride for at, start, stride in zip(part.offset, copy.target.offset, copy.strides, strict=True)
    )
    stored = np.dtype(copy.array.dtype)
    native = stored.newbyteorder("<")
    # Axes of extent 1 carry no stride; without them a plain row of a column shard is seen to be contiguous.
    kept = [axis for axis, extent in enumerate(part.shape) if extent > 1]
    target = out.reshape([part.shape[axis] for axis in kept]) if out.flags.c_contiguous else _squeezed(out, kept)
    strides = [copy.strides[axis] for axis in kept]
    if stored == native and target.flags.c_contiguous and _is_contiguous(target.shape, strides):
        read_payload(reader, copy.array, base * stored.itemsize, target.reshape(-1).view(np.uint8).data)
        return
    _read_box(reader, copy, base, strides, target, stored, scratch)


def _squeezed(out: Array, kept: list[int]) -> Array:
    # The trailing ellipsis keeps a single element an array, not a scalar copy.
    return out[(*(slice(None) if axis in kept else 0 for axis in range(out.ndim)), ...)]


def _is_contiguous(shape: tuple[int, ...], strides: list[int]) -> bool:
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step:
            return False
        step *= extent
    return True


def _read_box(
    reader: Reader,
    copy: Copy,
    base: int,
    strides: list[int],
    target: Array,
    stored: np.dtype[Any],
    scratch: memoryview,
) -> None:
    """Read the span of the box in one call where that is cheap and fits, else cut it along its longest stride."""
    itemsize = stored.itemsize
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(target.shape, strides, strict=True))
    if not strides:
        axis, inner = -1, 1
    else:
        axis = max(range(len(strides)), key=strides.__getitem__)
        inner = span - (target.shape[axis] - 1) * strides[axis]
    cheaper_cut = axis >= 0 and target.shape[axis] * (inner * itemsize + CALL_COST_BYTES) < span * itemsize
    if span * itemsize <= len(scratch) and not cheaper_cut:
        buffer = scratch[: span * itemsize]
        read_payload(reader, copy.array, base * itemsize, buffer)
        source = np.frombuffer(buffer, dtype=stored)
        target[...] = as_strided(source, target.shape, [stride * itemsize for stride in strides], writeable=False)
        return
    rows = 1 if cheaper_cut else max(1, (len(scratch) // itemsize - inner) // strides[axis] + 1)
    before = (slice(None),) * axis
    for low in range(0, target.shape[axis], rows):
        index: tuple[Any, ...] = (*before, slice(low, low + rows))
        chunk = target[index]
        chunk_strides = strides
        if chunk.shape[axis] == 1:
            index = (*before, 0, ...)
            chunk = chunk[index]
            chunk_strides = strides[:axis] + strides[axis + 1 :]
        _read_box(reader, copy, base + low * strides[axis], chunk_strides, chunk, stored, scratch)
