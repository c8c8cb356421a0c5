"""What is to be held in memory: whole tensors, boxes of them, or flattened ranges of a box.

Owns how a target's elements map to boxes of an output tensor, in the target's own order, and whether given targets
fit a checkpoint. Reading them is ``loading``'s, making Paddle tensors of them ``paddle``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ckptcore.errors import TargetMismatch
from ckptcore.rules.blocks import Fill, parts_of_slabs
from ckptcore.rules.issues import Issue
from ckptcore.rules.located import LocatedTensor
from ckptcore.rules.merge_plan import copies_of
from ckptcore.rules.regions import OutputTensor, passed_through
from ckptcore.rules.tensors import DTYPES, Box, Piece, Shape, TensorSpec
from ckptcore.rules.tiles import slabs

MASTER_GROUP = "master_weights"
MASTER_SUFFIX = "_fp32_master_0"


@dataclass(frozen=True, slots=True)
class Part:
    """An array to be: its shape, and the boxes of ``output`` whose elements it holds, in row-major order."""

    output: OutputTensor
    shape: Shape
    boxes: tuple[Box, ...]

    @classmethod
    def whole(cls, output: OutputTensor) -> Part:
        return cls(output, output.shape, (Box.whole(output.shape),))

    @property
    def size_bytes(self) -> int:
        return sum(box.volume for box in self.boxes) * DTYPES[self.output.dtype].itemsize

    def fills(
        self, sources: Mapping[str, LocatedTensor], number: Mapping[str, int], *, max_bytes: int
    ) -> Iterator[Fill]:
        """The array's bytes in order, as runs of at most ``max_bytes`` (at least one element) and what fills each."""
        itemsize = DTYPES[self.output.dtype].itemsize
        runs = (
            slab.shifted(box.offset) for box in self.boxes for slab in slabs(box.shape, max(1, max_bytes // itemsize))
        )
        start = 0
        for slab, parts in parts_of_slabs(copies_of(self.output, sources, number), runs):
            yield Fill(start, slab, self.output.spec, parts)
            start += slab.volume * itemsize


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor that waits to be filled: which box of the tensor ``key`` it holds, or which range of that box's
    row-major flattening. ``shape`` is the global shape, ``held`` that of the tensor itself."""

    key: str
    dtype: str
    shape: Shape
    box: Box
    flat: tuple[int, int] | None
    held: Shape


def fit(
    specs: Sequence[TensorSpec], targets: Sequence[Target], *, master_weight_names: bool
) -> tuple[Part | None, ...]:
    """The part that each target holds, in order; None for an empty target, which Paddle does not save.

    With ``master_weight_names``, a master weight is found under the other of the two names that Paddle gives it. Raises
    :class:`TargetMismatch` with every key that the checkpoint lacks and every shape, dtype or range that does not fit.
    """
    known = {spec.key: spec for spec in specs}
    issues: list[Issue] = []
    parts: list[Part | None] = []
    for target in targets:
        spec = known.get(target.key)
        if spec is None and master_weight_names:
            spec = known.get(_other_master_name(target.key))
        found = _misfits(target, spec)
        issues += found
        parts.append(None if found or spec is None else _part(target, spec))
    if issues:
        raise TargetMismatch(
            f"{len(issues)} reason(s) why the given tensors cannot be filled from the checkpoint", issues
        )
    return tuple(parts)


def _part(target: Target, spec: TensorSpec) -> Part:
    piece = Piece(target.box, file="", flat=target.flat)
    return Part(passed_through(spec, spec.key), piece.payload_shape, tuple(piece.boxes()))


def _misfits(target: Target, spec: TensorSpec | None) -> list[Issue]:
    where = f"tensor {target.key!r}"
    if spec is None:
        return [] if 0 in target.shape else [Issue(where, "the checkpoint has no such tensor", code="missing-key")]
    issues = []
    if target.dtype != spec.dtype:
        issues.append(Issue(where, "its dtype is another in the checkpoint", target.dtype, spec.dtype, "dtype"))
    if target.shape != spec.shape:
        expected, found = str(list(target.shape)), str(list(spec.shape))
        issues.append(Issue(where, "its global shape is another in the checkpoint", expected, found, "shape"))
    elif len(target.box.shape) != len(spec.shape) or not Box.whole(spec.shape).contains(target.box):
        issues.append(Issue(where, "the part to fill lies outside it", str(list(spec.shape)), str(target.box), "box"))
    elif target.flat is None:
        if target.held != target.box.shape:
            expected, found = str(list(target.box.shape)), str(list(target.held))
            issues.append(Issue(where, "the tensor to fill has not the shape of its part", expected, found, "held"))
    else:
        start, stop = target.flat
        if not 0 <= start <= stop <= target.box.volume:
            within = f"within 0:{target.box.volume}"
            issues.append(Issue(where, "its flattened range is no range of its box", within, f"{start}:{stop}", "flat"))
        elif prod(target.held) != stop - start:
            expected, found = f"{stop - start:,} elements", f"{prod(target.held):,}"
            issues.append(Issue(where, "the tensor to fill has not the size of its range", expected, found, "held"))
    return issues


def _other_master_name(key: str) -> str:
    """``linear_0.w_0.master_weights`` of dynamic graphs is ``linear_0.w_0_fp32_master_0`` of static ones, and back.

    As ``_modify_mw_name_for_compatibility`` of Paddle 3.3.1 spells them; empty where ``key`` names no master weight.
    """
    names = key.split(".")
    if MASTER_GROUP in names:
        names.remove(MASTER_GROUP)
        return ".".join(names) + MASTER_SUFFIX
    if names[-1].endswith(MASTER_SUFFIX):
        names[-1] = names[-1].replace(MASTER_SUFFIX, "")
        return ".".join([names[0], MASTER_GROUP, *names[1:]])
    return ""
