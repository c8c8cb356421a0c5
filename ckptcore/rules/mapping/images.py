"""Values of the layout language: tensors as boxes of source tensors, never as numbers.

Owns the algebra (permute, cut, join, cast) on which every statement rests. Which statement calls for which is
``compiler``'s and ``fused``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ckptcore.rules.mapping.lexer import StatementError
from ckptcore.rules.regions import Region
from ckptcore.rules.tensors import Box, Shape


@dataclass(frozen=True, slots=True)
class Image:
    """A tensor of ``shape``, tiled by regions. ``dtype`` is that of the source tensors, before any cast,
    and empty where only optimizer states of the parameter are there."""

    shape: Shape
    dtype: str
    regions: tuple[Region, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The source tensors in it, each once, sorted."""
        return tuple(sorted({region.source for region in self.regions}))

    def dtypes(self) -> frozenset[str]:
        """The dtypes of its values after their casts; more than one where the joined parts were cast apart."""
        return frozenset(region.casts[-1] if region.casts else self.dtype for region in self.regions)

    def extent(self, axis: int, what: str = "the tensor") -> int:
        if axis >= len(self.shape):
            raise StatementError(f"{what} of shape {list(self.shape)} has no axis {axis}")
        return self.shape[axis]


def whole_of(source: str, shape: Shape, dtype: str) -> Image:
    box = Box.whole(shape)
    return Image(shape, dtype, (Region(box, source, box, tuple(range(len(shape)))),))


def permuted(image: Image, order: tuple[int, ...]) -> Image:
    """New axis ``i`` is old axis ``order[i]``. ``order`` must hold each axis once."""
    regions = tuple(
        replace(
            region,
            target=Box(_picked(region.target.offset, order), _picked(region.target.shape, order)),
            axes=_picked(region.axes, order),
        )
        for region in image.regions
    )
    return Image(_picked(image.shape, order), image.dtype, regions)


def transposed(image: Image) -> Image:
    """All axes reversed; a vector or a scalar stays as it is."""
    return permuted(image, tuple(reversed(range(len(image.shape)))))


def cast(image: Image, dtype: str) -> Image:
    """The values rounded to ``dtype``; a cast to the dtype that they have already is no cast."""

    def one(region: Region) -> Region:
        current = region.casts[-1] if region.casts else image.dtype
        return region if current == dtype else replace(region, casts=(*region.casts, dtype))

    return replace(image, regions=tuple(one(region) for region in image.regions))


def cut(image: Image, axis: int, start: int, length: int) -> Image:
    """The part ``start:start + length`` along ``axis``."""
    shape = (*image.shape[:axis], length, *image.shape[axis + 1 :])
    slab = Box(_moved((0,) * len(shape), axis, start), shape)
    regions = []
    for region in image.regions:
        common = region.target.intersect(slab)
        if common is None:
            continue
        source_axis = region.axes[axis]
        skipped = common.offset[axis] - region.target.offset[axis]
        source = region.source_box
        regions.append(
            replace(
                region,
                target=Box(_moved(common.offset, axis, -start), common.shape),
                source_box=Box(
                    _moved(source.offset, source_axis, skipped),
                    (*source.shape[:source_axis], common.shape[axis], *source.shape[source_axis + 1 :]),
                ),
            )
        )
    return Image(shape, image.dtype, tuple(regions))


def split(image: Image, axis: int, count: int) -> tuple[Image, ...]:
    """``count`` equal parts along ``axis``. Raises StatementError where it does not divide."""
    extent = image.extent(axis)
    if extent % count:
        raise StatementError(f"axis {axis} of shape {list(image.shape)} does not divide into {count} equal parts")
    size = extent // count
    return tuple(cut(image, axis, index * size, size) for index in range(count))


def joined(images: Sequence[Image], axis: int) -> Image:
    """The images one after another along ``axis``.

    Raises StatementError where their dtypes or their other extents differ; Paddle 3.3.1 does not look at the
    latter and gives wrong values.
    """
    first = images[0]
    extent = 0
    regions: list[Region] = []
    for image in images:
        image.extent(axis, "a joined tensor")
        if len(image.shape) != len(first.shape) or any(
            a != b for i, (a, b) in enumerate(zip(image.shape, first.shape, strict=True)) if i != axis
        ):
            raise StatementError(
                f"tensors of shapes {list(first.shape)} and {list(image.shape)} cannot be joined along axis {axis}"
            )
        if image.dtype != first.dtype:
            raise StatementError(
                f"tensors of dtypes {first.dtype or 'unknown'} and {image.dtype or 'unknown'} cannot be joined"
            )
        regions += (
            replace(region, target=Box(_moved(region.target.offset, axis, extent), region.target.shape))
            for region in image.regions
        )
        extent += image.shape[axis]
    shape = (*first.shape[:axis], extent, *first.shape[axis + 1 :])
    return Image(shape, first.dtype, tuple(_merged(regions, axis)))


def _merged(regions: Iterable[Region], axis: int) -> Iterator[Region]:
    """The regions with neighbours along ``axis`` made one where they are neighbours in the source too."""
    last: Region | None = None
    for region in regions:
        grown = None if last is None else _grown(last, region, axis)
        if grown is None and last is not None:
            yield last
        last = region if grown is None else grown
    if last is not None:
        yield last


def _grown(a: Region, b: Region, axis: int) -> Region | None:
    if (a.source, a.axes, a.casts) != (b.source, b.axes, b.casts):
        return None
    target = _follows(a.target, b.target, axis)
    source = _follows(a.source_box, b.source_box, a.axes[axis])
    return None if target is None or source is None else replace(a, target=target, source_box=source)


def _follows(a: Box, b: Box, axis: int) -> Box | None:
    """Both boxes as one, where ``b`` begins along ``axis`` where ``a`` ends and is as wide."""
    if _moved(a.offset, axis, a.shape[axis]) != b.offset:
        return None
    shape = _moved(a.shape, axis, b.shape[axis])
    return Box(a.offset, shape) if shape == _moved(b.shape, axis, a.shape[axis]) else None


def _picked(values: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(values[index] for index in order)


def _moved(offset: Shape, axis: int, by: int) -> Shape:
    """``offset`` (or a shape) with ``by`` added along ``axis``."""
    return (*offset[:axis], offset[axis] + by, *offset[axis + 1 :])
