"""An output tensor as boxes of source tensors: the common language of selection, layout maps and the plan."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcore.rules.tensors import Box, Shape, TensorSpec


@dataclass(frozen=True, slots=True)
class Region:
    """A box of an output tensor and the box of one source tensor that fills it.

    ``axes[i]`` is the source axis that runs along target axis ``i``, so that
    ``target.shape[i] == source_box.shape[axes[i]]``. ``casts`` are the dtypes that the values pass
    through, in order (rounding twice differs from rounding once); empty where the bits are copied.
    """

    target: Box
    source: str
    source_box: Box
    axes: tuple[int, ...]
    casts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """An unsharded tensor of the release and the regions that tile it."""

    key: str
    dtype: str
    shape: Shape
    regions: tuple[Region, ...]

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.key, self.dtype, self.shape)


def passed_through(spec: TensorSpec, key: str) -> OutputTensor:
    """The source tensor ``spec`` as it is, under the name ``key``."""
    whole = Box.whole(spec.shape)
    axes = tuple(range(len(spec.shape)))
    return OutputTensor(key, spec.dtype, spec.shape, (Region(whole, spec.key, whole, axes),))
