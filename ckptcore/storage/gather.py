"""Fill a box of an output tensor from stored elements: the inner loop of every merge and load.

One primitive, a strided box, covers rows, columns, Fortran order, transposes and flattened ranges. Owns how it is
read: straight into the target where both sides are contiguous, else through a bounded scratch buffer. How elements
get from there to the target is ``moving``'s, what a cast does to them ``casting``'s.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ckptcore.formats.payloads import read_payload
from ckptcore.formats.reader import Reader
from ckptcore.rules.blocks import Fill
from ckptcore.rules.merge_plan import Copy
from ckptcore.rules.tensors import DTYPES, Box
from ckptcore.storage.casting import rounded
from ckptcore.storage.moving import Cast, move
from ckptcore.storage.readers import ReaderPool

Array = np.ndarray[Any, np.dtype[Any]]

# A read call costs about as much as copying this many bytes, so gaps shorter than that are read and dropped.
CALL_COST_BYTES = 8192


def fill(readers: ReaderPool, wanted: Fill, data: memoryview, scratch: memoryview) -> int:
    """Write the slab of one tensor into its place in the block ``data``, from all the rank files that hold parts of it.

    Memory beyond ``data`` is ``scratch``, whose content is overwritten, and a little for each tile of a cast. Says how
    many finite values a cast made infinite.
    """
    overflows = 0
    for copy, part in wanted.parts:
        held = DTYPES[wanted.spec.dtype].stored if copy.casts else copy.array.dtype
        dtype = np.dtype(held).newbyteorder("<")
        size = wanted.slab.volume * dtype.itemsize
        slab = np.frombuffer(data[wanted.start : wanted.start + size], dtype=dtype).reshape(wanted.slab.shape)
        within = part.shifted(tuple(-start for start in wanted.slab.offset))
        place: tuple[Any, ...] = (*map(slice, within.offset, within.end), ...)
        with readers.opened(copy.file) as reader:
            overflows += gather(reader, copy, part, slab[place], scratch)
    return overflows


def gather(reader: Reader, copy: Copy, part: Box, out: Array, scratch: memoryview) -> int:
    """Write the elements of ``part`` (a box of the output tensor inside ``copy.target``) to ``out``.

    ``out`` has ``part``'s shape and, in native order, the numpy dtype that the *stored* elements have, or that of the
    last cast. ``scratch`` bounds the memory; its content is overwritten. Says how many finite values became infinite.
    Raises :class:`DamagedFile` on a short read.
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
    if not copy.casts and stored == native and target.flags.c_contiguous and _is_contiguous(target.shape, strides):
        read_payload(reader, copy.array, base * stored.itemsize, target.reshape(-1).view(np.uint8).data)
        return 0
    cast = partial(rounded, dtype=copy.dtype, casts=copy.casts) if copy.casts else None
    return _read_box(reader, copy, base, strides, target, scratch, cast)


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
    scratch: memoryview,
    cast: Cast | None,
) -> int:
    """Read the box into the scratch in the way that costs least, if it fits; else cut it along its longest stride.

    Either its whole span in one call, gaps included, or each contiguous run of it in a call of its own.
    """
    stored = np.dtype(copy.array.dtype)
    itemsize = stored.itemsize
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(target.shape, strides, strict=True))
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    depth, run = _longest_run([target.shape[axis] for axis in order], [strides[axis] for axis in order])
    calls = target.size // run
    is_span_cheaper = span * itemsize <= target.size * itemsize + calls * CALL_COST_BYTES
    if is_span_cheaper and span * itemsize <= len(scratch):
        buffer = scratch[: span * itemsize]
        read_payload(reader, copy.array, base * itemsize, buffer)
        source = np.frombuffer(buffer, dtype=stored)
        view = as_strided(source, target.shape, [stride * itemsize for stride in strides], writeable=False)
        return move(_cast_ready(view, cast), target, cast)
    if not is_span_cheaper and target.size * itemsize <= len(scratch):
        packed = np.frombuffer(scratch[: target.size * itemsize], dtype=stored)
        outer = order[:depth]
        for number, place in enumerate(np.ndindex(*(target.shape[axis] for axis in outer))):
            start = base + sum(at * strides[axis] for at, axis in zip(place, outer, strict=True))
            piece = packed[number * run : (number + 1) * run]
            read_payload(reader, copy.array, start * itemsize, piece.view(np.uint8).data)
        whole = packed.reshape([target.shape[axis] for axis in order])
        return move(_cast_ready(whole, cast), target.transpose(order), cast)
    axis = order[0]
    inner = span - (target.shape[axis] - 1) * strides[axis]
    if is_span_cheaper:
        rows = max(1, (len(scratch) // itemsize - inner) // strides[axis] + 1)
    else:
        rows = max(1, len(scratch) // (target.size // target.shape[axis] * itemsize))
    overflows = 0
    before = (slice(None),) * axis
    for low in range(0, target.shape[axis], rows):
        index: tuple[Any, ...] = (*before, slice(low, low + rows))
        chunk = target[index]
        chunk_strides = strides
        if chunk.shape[axis] == 1:
            index = (*before, 0, ...)
            chunk = chunk[index]
            chunk_strides = strides[:axis] + strides[axis + 1 :]
        overflows += _read_box(reader, copy, base + low * strides[axis], chunk_strides, chunk, scratch, cast)
    return overflows


def _longest_run(shape: list[int], strides: list[int]) -> tuple[int, int]:
    """How many axes, from the first, are not part of the contiguous runs, and the length of a run."""
    run = 1
    for axis in reversed(range(len(shape))):
        if strides[axis] != run:
            return axis + 1, run
        run *= shape[axis]
    return 0, run


def _cast_ready(values: Array, cast: Cast | None) -> Array:
    """Casts reinterpret bits, so they are given the native byte order; a plain copy swaps bytes itself."""
    return values if cast is None or values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
