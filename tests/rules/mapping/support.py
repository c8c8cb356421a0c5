"""Values for mapping tests: real checkpoints read without this package's readers, and boxes carried out by numpy."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ckptcore.rules.mapping import PieceStarts, piece_starts
from ckptcore.rules.regions import OutputTensor
from ckptcore.rules.tensors import Box, IndexedTensor, Piece, TensorSpec

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tensors:
    """Whole tensors; bfloat16 as uint16."""

    specs: tuple[TensorSpec, ...]
    values: Mapping[str, Array]
    starts: Mapping[str, PieceStarts] = field(default_factory=dict)


def tensors(**values: Array) -> Tensors:
    """Unsharded tensors by key; uint16 stands for bfloat16."""
    specs = tuple(
        TensorSpec(key, "bfloat16" if value.dtype == np.uint16 else value.dtype.name, value.shape)
        for key, value in values.items()
    )
    return Tensors(specs, values)


def read_checkpoint(directory: Path) -> Tensors:
    """The tensors of Paddle's ``{unique_id}.metadata`` and rank files in ``directory``, assembled."""
    (metadata_file,) = directory.glob("*.metadata")
    metadata = _load(metadata_file)
    ranks = {path.name: _load(path) for path in directory.glob("*.distcp")}
    files = {(key.tensor_key, tuple(key.global_offset)): name for key, name in metadata.storage_metadata.items()}
    specs, values, starts = [], {}, {}
    for key, records in sorted(metadata.state_dict_metadata.items()):
        shape, dtype = tuple(records[0].global_shape), records[0].dtype
        pieces = tuple(
            Piece(Box(tuple(record.global_offset), tuple(record.local_shape)), files[key, tuple(record.global_offset)])
            for record in records
        )
        whole: Array | None = None
        for piece in pieces:
            array = ranks[piece.file][key]
            whole = np.zeros(shape, array.dtype) if whole is None else whole
            whole[_slices(piece.box)] = array
        assert whole is not None
        specs.append(TensorSpec(key, dtype, shape))
        values[key] = whole
        starts[key] = piece_starts(IndexedTensor(key, dtype, shape, pieces))
    return Tensors(tuple(specs), values, starts)


def carried_out(outputs: Iterable[OutputTensor], source: Tensors) -> dict[str, Array]:
    """The outputs' values; fails where the regions of one do not tile it exactly once."""
    dtypes = {spec.key: spec.dtype for spec in source.specs}
    made = {}
    for output in outputs:
        whole = np.zeros(output.shape, _numpy_dtype(output.dtype))
        seen = np.zeros(output.shape, int)
        for region in output.regions:
            part = source.values[region.source][_slices(region.source_box)].transpose(region.axes)
            dtype = dtypes[region.source]
            for target in region.casts:
                part, dtype = rounded(part, dtype, target), target
            assert dtype == output.dtype
            assert part.shape == region.target.shape
            whole[_slices(region.target)] = part
            seen[_slices(region.target)] += 1
        assert (seen == 1).all(), f"{output.key} is not tiled once"
        made[output.key] = whole
    return made


def rounded(array: Array, source: str, target: str) -> Array:
    """``array`` cast with round-to-nearest-even; bfloat16 is uint16 on both sides."""
    if source == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    if target != "bfloat16":
        return array.astype(target)
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _numpy_dtype(dtype: str) -> Any:
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, end) for start, end in zip(box.offset, box.end, strict=True))


class _Record:
    """Any of Paddle's metadata classes. Hashable while its fields are not set yet, as unpickling a dict needs."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _Record if module.startswith("paddle.") else super().find_class(module, name)


def _load(path: Path) -> Any:
    file: BinaryIO
    with path.open("rb") as file:
        return _Unpickler(file).load()
