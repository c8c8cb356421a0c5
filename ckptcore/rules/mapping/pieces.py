"""Where the stored pieces of a tensor begin, and how many of them lie along one axis of an image.

Owns the piece count on which the fused layouts depend. Paddle 3.3.1 counts distinct offsets over all axes and
follows names, not axes; it loses the count behind ``^T``. Here the count is taken along the axis of the source that
the fused axis is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptcore.rules.mapping.images import Image
from ckptcore.rules.mapping.lexer import StatementError
from ckptcore.rules.tensors import Box, IndexedTensor, Shape

PieceStarts = tuple[tuple[int, ...], ...]
"""For each axis of a tensor, the offsets at which its stored pieces begin, sorted; ``((0,), (0, 32))`` is two pieces
side by side along axis 1."""


def piece_starts(tensor: IndexedTensor) -> PieceStarts:
    """Where the pieces of ``tensor`` begin along each axis, by the metadata."""
    offsets = [piece.box.offset for piece in tensor.pieces]
    return tuple(tuple(sorted({offset[axis] for offset in offsets})) for axis in range(len(tensor.shape)))


def pieces_along(
    image: Image, axis: int, shapes: Mapping[str, Shape], starts: Mapping[str, Sequence[PieceStarts]]
) -> int:
    """Into how many equal pieces the checkpoint cuts ``image`` along ``axis``.

    ``shapes`` and ``starts`` are those of the source tensors (``starts`` of the parameter and of each of its states).
    Raises StatementError where the image is not one source tensor as a whole but parts or several of them, so that
    its pieces say nothing about it, or where the pieces are not equal.
    """
    image.extent(axis)
    region = image.regions[0] if len(image.regions) == 1 else None
    if region is None or region.source_box != Box.whole(shapes[region.source]):
        if len(image.sources) == 1 and all(len(cuts) <= 1 for each in starts[image.sources[0]] for cuts in each):
            return 1
        raise StatementError(
            "the tensor is made of parts of stored tensors; how tensor parallelism interleaves it is not recorded"
        )
    counts = set()
    for each in starts[region.source]:
        cuts = each[region.axes[axis]]
        extent, count = image.shape[axis], max(len(cuts), 1)
        if cuts and (extent % count or cuts != tuple(range(0, extent, extent // count))):
            raise StatementError(f"the pieces of {region.source} are unequal: they begin at {list(cuts)} of {extent}")
        counts.add(count)
    if len(counts) > 1:
        raise StatementError(f"{region.source} and its optimizer states lie in different numbers of pieces")
    return counts.pop() if counts else 1
