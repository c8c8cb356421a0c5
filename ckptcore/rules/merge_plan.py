"""The plan of a merge: which bytes of which rank file go where in which shard. Frozen, printable, pure data.

A plan is complete: the executor needs nothing but it and the source directory, so that a shard can be written by
another process, or again, and comes out the same. ``digest`` identifies it, source included.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ckptcore.errors import CheckpointError, SelectionError, UnsupportedDtype
from ckptcore.rules.fingerprint import Fingerprint
from ckptcore.rules.issues import Issue
from ckptcore.rules.located import LocatedCheckpoint, LocatedPiece, LocatedTensor
from ckptcore.rules.regions import OutputTensor, Region
from ckptcore.rules.shard_layout import INDEX_NAME, MAX_HEADER_BYTES, ShardLayout, index_document, lay_out
from ckptcore.rules.stored import StoredArray
from ckptcore.rules.tensors import DTYPES, Box, Shape, TensorSpec, row_major_strides
from ckptcore.rules.versions import version_label

PLAN_SCHEMA = 1
DEFAULT_MAX_SHARD_BYTES = 5_000_000_000
BASE_MEMORY_BYTES = 112 << 20
TURNING_MEMORY_BYTES = 64 << 20
"""What larger buffers take where a tensor is transposed."""
MEMORY_PER_COPY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Copy:
    """One box of an output tensor and the stored elements that fill it.

    Target element ``target.offset + i`` is the element ``base + sum(i * strides)`` of the payload of ``array`` in
    the rank file ``inputs[file]``: rows, columns, Fortran order, transposes and flattened ranges are all of this form.
    ``dtype`` is what the stored elements mean; ``casts`` are applied in order, none copies the bits.
    """

    target: Box
    file: int
    array: StoredArray
    base: int
    strides: Shape
    dtype: str
    casts: tuple[str, ...] = ()

    @property
    def turned_axis(self) -> int | None:
        """The target axis along which stored elements are neighbours, where that is not the target's last axis.

        Axes of extent 1 do not count. None where runs of the target are runs of the file.
        """
        long = [axis for axis, extent in enumerate(self.target.shape) if extent > 1]
        nearest = min(long, key=lambda axis: self.strides[axis], default=None)
        return None if nearest is None or nearest == long[-1] else nearest


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """An output tensor, the absolute offset of its data in its shard, and the copies that tile it, sorted by target."""

    spec: TensorSpec
    offset: int
    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One output file: its safetensors header, and its tensors in file order without gaps."""

    name: str
    header: bytes
    size_bytes: int
    tensors: tuple[PlannedTensor, ...]

    @property
    def data_bytes(self) -> int:
        """What is copied into it: all but the header."""
        return self.size_bytes - len(self.header)


@dataclass(frozen=True, slots=True)
class MergePlan:
    """All that a merge will do. ``inputs`` are rank file names in ``directory``, sorted; ``notes`` are the map's."""

    directory: str
    step: int | None
    unique_id: int
    component: str | None
    paddle_format: str
    fingerprint: Fingerprint
    inputs: tuple[str, ...]
    shards: tuple[PlannedShard, ...]
    index: bytes | None
    digest: str
    notes: tuple[Issue, ...] = ()

    @property
    def bytes_in(self) -> int:
        """Payload bytes that are read from rank files."""
        return sum(
            copy.target.volume * DTYPES[copy.dtype].itemsize for tensor in self.tensors() for copy in tensor.copies
        )

    @property
    def bytes_out(self) -> int:
        """Bytes of all output files: the free disk that the merge needs."""
        return sum(shard.size_bytes for shard in self.shards) + len(self.index or b"")

    @property
    def peak_memory_bytes(self) -> int:
        """An upper estimate of the process's resident memory during the merge."""
        turning = TURNING_MEMORY_BYTES if self.is_turned else 0
        copies = sum(len(tensor.copies) for tensor in self.tensors())
        return BASE_MEMORY_BYTES + turning + MEMORY_PER_COPY_BYTES * copies

    @property
    def is_turned(self) -> bool:
        """Whether any tensor lies in other order in the files than in the output, as a transposed one does."""
        return any(copy.turned_axis is not None for tensor in self.tensors() for copy in tensor.copies)

    def tensors(self) -> Iterator[PlannedTensor]:
        for shard in self.shards:
            yield from shard.tensors

    def specs(self) -> tuple[TensorSpec, ...]:
        """What the output holds, sorted by key."""
        return tuple(sorted((tensor.spec for tensor in self.tensors()), key=lambda spec: spec.key))

    def lines(self) -> Iterator[str]:
        """The plan for people: totals, each shard, each tensor, each copy."""
        copies = sum(len(tensor.copies) for tensor in self.tensors())
        yield f"source       {self.directory} ({version_label(self.step, self.unique_id)})"
        yield f"plan         {self.digest}"
        yield f"rank files   {len(self.inputs)}, {self.bytes_in:,} bytes to read"
        yield f"output       {len(self.shards)} shard(s), {self.bytes_out:,} bytes to write and free disk needed"
        yield f"copies       {copies:,} into {sum(1 for _ in self.tensors()):,} tensors"
        yield f"peak memory  {self.peak_memory_bytes / 1e6:,.0f} MB or less"
        for shard in self.shards:
            yield f"{shard.name}  {shard.size_bytes:,} bytes, {len(shard.tensors):,} tensors"
            for tensor in shard.tensors:
                spec = tensor.spec
                yield f"  {spec.key}  {spec.dtype} {list(spec.shape)} at byte {tensor.offset:,}"
                for copy in tensor.copies:
                    casts = "".join(f" -> {dtype}" for dtype in copy.casts)
                    yield (
                        f"    {copy.target} <- {self.inputs[copy.file]} byte {payload_offset(copy.array):,}, "
                        f"element {copy.base:,}, strides {list(copy.strides)}, {copy.dtype}{casts}"
                    )
        if self.index is not None:
            yield f"{INDEX_NAME}  {len(self.index):,} bytes"
        for note in self.notes:
            yield f"note: {note}"

    def to_json(self) -> dict[str, object]:
        """The plan as a JSON document."""
        return {
            "schema": PLAN_SCHEMA,
            "digest": self.digest,
            "directory": self.directory,
            "step": self.step,
            "unique_id": self.unique_id,
            "component": self.component,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "free_disk_bytes": self.bytes_out,
            "peak_memory_bytes": self.peak_memory_bytes,
            "inputs": list(self.inputs),
            "shards": [_shard_document(shard, self.inputs) for shard in self.shards],
            "notes": [note.to_json() for note in self.notes],
        }


def payload_offset(array: StoredArray) -> int:
    """Where the payload starts in its file; 0 for an array without elements."""
    return array.segments[0].offset if array.segments else 0


def plan_merge(
    checkpoint: LocatedCheckpoint,
    outputs: Sequence[OutputTensor],
    *,
    max_shard_bytes: int,
    notes: tuple[Issue, ...] = (),
) -> MergePlan:
    """The plan that writes ``outputs`` from a verified checkpoint.

    Raises :class:`UnsupportedDtype`, with every tensor that safetensors cannot hold.
    """
    unsupported = [
        Issue(
            f"tensor {output.key!r}",
            f"safetensors has no dtype for {output.dtype}; exclude it",
            code="unsupported-dtype",
        )
        for output in outputs
        if not DTYPES[output.dtype].safetensors
    ]
    if unsupported:
        raise UnsupportedDtype(f"{len(unsupported)} tensor(s) cannot be written", unsupported)
    sources = {tensor.spec.key: tensor for tensor in checkpoint.tensors}
    used = {region.source for output in outputs for region in output.regions}
    inputs = tuple(sorted({located.piece.file for key in used for located in sources[key].pieces}))
    number = {name: position for position, name in enumerate(inputs)}
    by_key = {output.key: output for output in outputs}
    layouts = lay_out([output.spec for output in outputs], max_shard_bytes=max_shard_bytes)
    _require_readable_headers(layouts)
    shards = tuple(_plan_shard(layout, by_key, sources, number) for layout in layouts)
    return MergePlan(
        directory=checkpoint.directory,
        step=checkpoint.step,
        unique_id=checkpoint.unique_id,
        component=checkpoint.component,
        paddle_format=checkpoint.paddle_format,
        fingerprint=checkpoint.fingerprint,
        inputs=inputs,
        shards=shards,
        index=index_document(layouts),
        digest=_digest(checkpoint, inputs, shards),
        notes=notes,
    )


def _require_readable_headers(layouts: Sequence[ShardLayout]) -> None:
    too_long = [
        Issue(
            layout.name,
            f"the header of {len(layout.tensors):,} tensors is longer than safetensors allows; use smaller shards",
            f"at most {MAX_HEADER_BYTES:,} bytes",
            f"{len(layout.header):,}",
            "header-too-long",
        )
        for layout in layouts
        if len(layout.header) - 8 > MAX_HEADER_BYTES
    ]
    if too_long:
        raise SelectionError(f"{len(too_long)} shard(s) cannot be written", too_long)


def _plan_shard(
    layout: ShardLayout,
    outputs: Mapping[str, OutputTensor],
    sources: Mapping[str, LocatedTensor],
    number: Mapping[str, int],
) -> PlannedShard:
    tensors = tuple(
        PlannedTensor(spec, offset, copies_of(outputs[spec.key], sources, number))
        for spec, offset in zip(layout.tensors, layout.offsets, strict=True)
    )
    return PlannedShard(layout.name, layout.header, layout.size_bytes, tensors)


def copies_of(
    output: OutputTensor, sources: Mapping[str, LocatedTensor], number: Mapping[str, int]
) -> tuple[Copy, ...]:
    """The copies that tile ``output``, sorted by target box. ``number`` is each rank file's place in the inputs."""
    copies = [
        copy
        for region in output.regions
        for located in sources[region.source].pieces
        for copy in _region_copies(region, located, sources[region.source].spec.dtype, number[located.piece.file])
    ]
    copies.sort(key=lambda copy: copy.target)
    covered = sum(copy.target.volume for copy in copies)
    if covered != Box.whole(output.shape).volume:
        # Coverage was proven tensor by tensor before; a map that breaks it must never reach the disk.
        raise CheckpointError(
            f"tensor {output.key!r}: the copies fill {covered:,} of {Box.whole(output.shape).volume:,} elements"
        )
    return tuple(copies)


def _region_copies(region: Region, located: LocatedPiece, dtype: str, file: int) -> Iterator[Copy]:
    piece, array = located.piece, located.array
    if piece.flat is None:
        local_strides, origin = array.strides, 0
    else:
        local_strides, origin = row_major_strides(piece.box.shape), -piece.flat[0]
    for box in piece.boxes():
        common = box.intersect(region.source_box)
        if common is None:
            continue
        base = origin + sum(
            (at - start) * stride
            for at, start, stride in zip(common.offset, piece.box.offset, local_strides, strict=True)
        )
        target = Box(
            tuple(
                low + common.offset[axis] - region.source_box.offset[axis]
                for low, axis in zip(region.target.offset, region.axes, strict=True)
            ),
            tuple(common.shape[axis] for axis in region.axes),
        )
        strides = tuple(local_strides[axis] for axis in region.axes)
        yield Copy(target, file, array, base, strides, dtype, region.casts)


def _copy_document(copy: Copy, inputs: Sequence[str]) -> dict[str, object]:
    return {
        "target_offset": list(copy.target.offset),
        "shape": list(copy.target.shape),
        "file": inputs[copy.file],
        "payload_offset": payload_offset(copy.array),
        "stored_dtype": copy.array.dtype,
        "base": copy.base,
        "strides": list(copy.strides),
        "dtype": copy.dtype,
        "casts": list(copy.casts),
    }


def _shard_document(shard: PlannedShard, inputs: Sequence[str]) -> dict[str, object]:
    return {
        "name": shard.name,
        "size_bytes": shard.size_bytes,
        "tensors": [
            {
                "key": tensor.spec.key,
                "dtype": tensor.spec.dtype,
                "shape": list(tensor.spec.shape),
                "offset": tensor.offset,
                "copies": [_copy_document(copy, inputs) for copy in tensor.copies],
            }
            for tensor in shard.tensors
        ],
    }


def _digest(checkpoint: LocatedCheckpoint, inputs: Sequence[str], shards: Sequence[PlannedShard]) -> str:
    """SHA-256 over the source's identity and every copy; fed a shard at a time, so that it costs no memory."""
    sha = hashlib.sha256()
    head = [PLAN_SCHEMA, checkpoint.step, checkpoint.unique_id, checkpoint.component, checkpoint.fingerprint.digest]
    sha.update(json.dumps(head).encode())
    for shard in shards:
        for tensor in shard.tensors:
            spec = tensor.spec
            parts: list[object] = [shard.name, spec.key, spec.dtype, spec.shape, tensor.offset]
            parts += [
                (
                    (c.target.offset, c.target.shape, c.strides),
                    (inputs[c.file], payload_offset(c.array), c.array.dtype, c.base),
                    (c.dtype, c.casts),
                )
                for c in tensor.copies
            ]
            sha.update(json.dumps(parts).encode())
    return sha.hexdigest()
