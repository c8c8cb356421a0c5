"""Checkpoints in Paddle's layout, written without Paddle, and the damage that tests do to them, by name.

    saved = SavedCheckpoint().tensor("w", values, grid=(2, 2)).tensor("m", values, flat_parts=3)
    saved.without_rank(2).truncated("1_0.distcp", at=100).write(tmp_path)

Files are pickled by the standard library as Paddle pickles them (2.6, 3.0, 3.2 and 3.3 metadata, protocols 2 to 5,
or safetensors rank files). Every method gives a new builder, so that one whole checkpoint serves many damages.
"""

from __future__ import annotations

import io
import itertools
import json
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Flavour = Literal["2.6", "3.0", "3.2", "3.3"]
ByteOrder = Literal["<", ">"]

FLAVOURS: tuple[Flavour, ...] = ("2.6", "3.0", "3.2", "3.3")

STORED_AS = {"bfloat16": "<u2", "float8_e4m3fn": "|i1", "float8_e5m2": "|i1"}
"""How Paddle stores the dtypes that numpy lacks; every other dtype is numpy's of the same name."""

SAFETENSORS_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
    "bool": "BOOL", "complex64": "C64",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One piece of a tensor: the box at ``offset`` with ``shape``, or its flattened range, held by ``rank``."""

    rank: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    flat: tuple[int, int] | None = None
    replica: int | None = None

    def cut_from(self, values: Array) -> Array:
        box = values[tuple(slice(o, o + s) for o, s in zip(self.offset, self.shape, strict=True))]
        if self.flat is None:
            return np.array(box, copy=True).reshape(self.shape)
        return np.ascontiguousarray(box).reshape(-1)[slice(*self.flat)].copy()


def grid_parts(shape: Sequence[int], grid: Sequence[int]) -> tuple[Part, ...]:
    """The shape cut into ``grid`` nearly even boxes, empty ones left out; box i of the grid is on rank i."""
    cuts = [_even_cuts(extent, count) for extent, count in zip(shape, grid, strict=True)]
    return tuple(
        Part(rank, tuple(low for low, _ in box), tuple(high - low for low, high in box))
        for rank, box in enumerate(itertools.product(*cuts))
        if all(high > low for low, high in box)
    )


def flat_parts_of(shape: Sequence[int], count: int) -> tuple[Part, ...]:
    """The row-major flattening cut into ``count`` nearly even ranges, empty ones left out; range i is on rank i."""
    size = int(np.prod(shape, dtype=np.int64))
    zeros = (0,) * len(shape)
    return tuple(
        Part(rank, zeros, tuple(shape), flat=(low, high))
        for rank, (low, high) in enumerate(_even_cuts(size, count))
        if high > low
    )


def _even_cuts(extent: int, count: int) -> list[tuple[int, int]]:
    edges = [extent * i // count for i in range(count + 1)]
    return list(itertools.pairwise(edges))


@dataclass(frozen=True)
class _Tensor:
    key: str
    values: Array
    dtype: str
    parts: tuple[Part, ...]
    fortran: bool
    byteorder: ByteOrder


Edit = Callable[["PickledMetadata"], None]
Damage = Callable[[Path], None]


@dataclass(frozen=True)
class SavedCheckpoint:
    """One save, yet to be written: its tensors, how Paddle would spell them, and what is then broken."""

    unique_id: int = 0
    flavour: Flavour = "3.3"
    suffix: str = "distcp"
    protocol: int = 4
    nested: bool = False
    ranks: int = 1
    tensors: tuple[_Tensor, ...] = ()
    edits: tuple[Edit, ...] = field(default=(), repr=False)
    damages: tuple[Damage, ...] = field(default=(), repr=False)

    def tensor(
        self,
        key: str,
        values: Any,
        *,
        dtype: str | None = None,
        grid: Sequence[int] | None = None,
        flat_parts: int | None = None,
        parts: Sequence[Part] | None = None,
        fortran: bool = False,
        byteorder: ByteOrder = "<",
    ) -> SavedCheckpoint:
        """Add a tensor: whole on rank 0, or cut by ``grid``, into ``flat_parts`` ranges, or as ``parts`` say.

        ``values`` is the whole tensor; for bfloat16 and float8 its raw bits (uint16, uint8), with ``dtype`` named.
        """
        whole = np.asarray(values)
        if parts is None:
            if flat_parts is not None:
                parts = flat_parts_of(whole.shape, flat_parts)
            else:
                parts = grid_parts(whole.shape, grid if grid is not None else (1,) * whole.ndim)
        name = dtype if dtype is not None else whole.dtype.name
        added = _Tensor(key, whole, name, tuple(parts), fortran, byteorder)
        ranks = max([self.ranks, *(part.rank + 1 for part in parts)])
        return replace(self, ranks=ranks, tensors=(*self.tensors, added))

    # Damage, by name.

    def without(self, name: str) -> SavedCheckpoint:
        """The file ``name`` was never written."""
        return self._damaged(lambda directory: (directory / name).unlink())

    def without_rank(self, rank: int) -> SavedCheckpoint:
        return self.without(self.rank_file(rank))

    def without_metadata(self) -> SavedCheckpoint:
        return self.without(f"{self.unique_id}.metadata")

    def truncated(self, name: str, *, at: int) -> SavedCheckpoint:
        """``name`` ends after ``at`` bytes; counted from the end where negative."""

        def cut(directory: Path) -> None:
            data = (directory / name).read_bytes()
            (directory / name).write_bytes(data[:at])

        return self._damaged(cut)

    def replaced(self, name: str, data: bytes) -> SavedCheckpoint:
        """``name`` holds ``data`` instead, or in addition where the save has no such file."""
        return self._damaged(lambda directory: _write(directory / name, data))

    def with_file(self, name: str, data: bytes = b"") -> SavedCheckpoint:
        """One more file beside the save's own."""
        return self.replaced(name, data)

    def flipped(self, name: str, *, at: int, mask: int = 0xFF) -> SavedCheckpoint:
        """The byte at ``at`` of ``name`` has the bits of ``mask`` turned over."""

        def flip(directory: Path) -> None:
            data = bytearray((directory / name).read_bytes())
            data[at] ^= mask
            (directory / name).write_bytes(bytes(data))

        return self._damaged(flip)

    def instead_of(self, name: str, make: Callable[[Path], None]) -> SavedCheckpoint:
        """``make(path)`` puts something else (a directory, FIFO or symlink) where ``name`` was."""

        def swap(directory: Path) -> None:
            (directory / name).unlink()
            make(directory / name)

        return self._damaged(swap)

    def edited(self, edit: Edit) -> SavedCheckpoint:
        """The metadata lies: ``edit`` changes it before it is pickled, the rank files stay as they are."""
        return replace(self, edits=(*self.edits, edit))

    def holding(self, rank: int, key: str, values: Array) -> SavedCheckpoint:
        """The rank file holds ``values`` (any shape or dtype, as numpy stores them) under ``key`` instead."""

        def swap(directory: Path) -> None:
            path = directory / self.rank_file(rank)
            content = pickle.loads(path.read_bytes())
            content[key] = values
            path.write_bytes(pickle.dumps(content, protocol=self.protocol))

        return self._damaged(swap)

    # Writing.

    def rank_file(self, rank: int) -> str:
        return f"{rank}_{self.unique_id}.{self.suffix}"

    def write(self, directory: Path) -> Path:
        """Write the save into ``directory`` (made where it is missing), then do the damage; gives ``directory``."""
        directory.mkdir(parents=True, exist_ok=True)
        metadata = PickledMetadata.of(self)
        for edit in self.edits:
            edit(metadata)
        (directory / f"{self.unique_id}.metadata").write_bytes(metadata.dump())
        for rank in range(self.ranks):
            (directory / self.rank_file(rank)).write_bytes(self._rank_bytes(rank))
        for damage in self.damages:
            damage(directory)
        return directory

    def expected(self) -> dict[str, Array]:
        """The whole tensors by key, in their stored dtype."""
        return {tensor.key: tensor.values.astype(_stored(tensor.dtype), copy=False) for tensor in self.tensors}

    def _damaged(self, damage: Damage) -> SavedCheckpoint:
        return replace(self, damages=(*self.damages, damage))

    def _arrays(self, rank: int) -> Iterator[tuple[_Tensor, Array]]:
        for tensor in self.tensors:
            for part in tensor.parts:
                if part.rank == rank:
                    yield tensor, part.cut_from(_as_stored(tensor))

    def _rank_bytes(self, rank: int) -> bytes:
        if self.suffix == "safetensors":
            return _safetensors((t.key, SAFETENSORS_NAMES[t.dtype], a) for t, a in self._arrays(rank))
        content: dict[str, Any] = {
            tensor.key: np.asarray(array, order="F") if tensor.fortran else array
            for tensor, array in self._arrays(rank)
        }
        content["StructuredToParameterName@@"] = {key: key for key in content}
        return pickle.dumps(content, protocol=self.protocol)


class PickledMetadata:
    """A ``Metadata`` about to be pickled, as plain dicts that a test may edit.

    ``tensors`` is ``{key: [fields of LocalTensorMetadata]}``, ``storage`` a list of
    ``(fields of LocalTensorIndex, file name)``, ``fields`` whatever else ``Metadata`` holds.
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self.tensors: dict[str, list[dict[str, Any]]] = {}
        self.storage: list[tuple[dict[str, Any], str]] = []
        self.fields: dict[str, Any] = {}

    @classmethod
    def of(cls, saved: SavedCheckpoint) -> PickledMetadata:
        flex = saved.flavour in ("3.2", "3.3")
        made = cls(f"paddle.distributed.{'flex_checkpoint.dcp' if flex else 'checkpoint'}.metadata")
        for tensor in saved.tensors:
            for part in tensor.parts:
                made._add(saved, tensor, part)
        if saved.flavour != "2.6":
            made.fields["flat_mapping"] = {
                tensor.key: tuple(tensor.key.split(".")) if saved.nested else (tensor.key,) for tensor in saved.tensors
            }
        return made

    def _add(self, saved: SavedCheckpoint, tensor: _Tensor, part: Part) -> None:
        piece: dict[str, Any] = {"global_offset": part.offset, "local_shape": part.shape}
        index: dict[str, Any] = {"tensor_key": tensor.key, "global_offset": part.offset}
        if saved.flavour != "2.6":
            piece["dtype"] = tensor.dtype
        if saved.flavour in ("3.2", "3.3"):
            flattened = {"is_flattened": part.flat is not None, "flattened_range": part.flat}
            piece.update(global_shape=tuple(tensor.values.shape), **flattened)
            index.update(flattened)
        if saved.flavour == "3.3":
            index.update(replica_id=part.replica, local_shape=part.shape)
        pieces = self.tensors.setdefault(tensor.key, [])
        if piece not in pieces:  # a replica has no entry of its own
            pieces.append(piece)
        self.storage.append((index, saved.rank_file(part.rank)))

    def dump(self) -> bytes:
        piece, index, whole = (
            _PaddleClass(self.module, name) for name in ("LocalTensorMetadata", "LocalTensorIndex", "Metadata")
        )
        tensors = {key: [_PaddleObject(piece, fields) for fields in pieces] for key, pieces in self.tensors.items()}
        storage = {_PaddleObject(index, fields): name for fields, name in self.storage}
        state = {"state_dict_metadata": tensors, "storage_metadata": storage, **self.fields}
        buffer = io.BytesIO()
        _PaddlePickler(buffer, protocol=4).dump(_PaddleObject(whole, state))
        return buffer.getvalue()


@dataclass(frozen=True)
class _PaddleClass:
    """Stands for a class of a module that need not be installed; pickled as its name."""

    module: str
    name: str


class _PaddleObject:
    def __init__(self, of: _PaddleClass, state: Mapping[str, Any]) -> None:
        self.of = of
        self.state = dict(state)


# The pure one: the C one insists on importing what it names. The stubs do not know its methods.
_PurePickler: Any = pickle._Pickler


class _PaddlePickler(_PurePickler):  # type: ignore[misc]
    def save(self, obj: Any, save_persistent_id: bool = True) -> Any:
        if not isinstance(obj, _PaddleClass | _PaddleObject):
            return super().save(obj, save_persistent_id)
        known = self.memo.get(id(obj))
        if known is not None:
            return self.write(self.get(known[0]))
        if isinstance(obj, _PaddleClass):
            self.save(obj.module)
            self.save(obj.name)
            self.write(pickle.STACK_GLOBAL)
            return self.memoize(obj)
        self.save(obj.of)
        self.write(pickle.EMPTY_TUPLE + pickle.NEWOBJ)
        self.memoize(obj)
        self.save(obj.state)
        return self.write(pickle.BUILD)


def _stored(dtype: str) -> str:
    return STORED_AS.get(dtype, dtype)


def _as_stored(tensor: _Tensor) -> Array:
    stored = np.dtype(_stored(tensor.dtype))
    values = tensor.values.view(stored) if tensor.dtype in STORED_AS else tensor.values.astype(stored)
    return values.astype(stored.newbyteorder(tensor.byteorder))


def _safetensors(arrays: Iterator[tuple[str, str, Array]]) -> bytes:
    header: dict[str, Any] = {}
    payload = bytearray()
    for key, dtype, array in arrays:
        start = len(payload)
        payload += array.tobytes()
        header[key] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, len(payload)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(payload)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def write_trainer_run(
    run: Path,
    steps: Mapping[int, SavedCheckpoint],
    *,
    component: str | None = "model_state",
    signals: bool = True,
) -> Path:
    """A trainer's output: ``checkpoint-<step>/<component>/`` and the signal of each rank; gives ``run``."""
    for step, saved in steps.items():
        directory = run / f"checkpoint-{step}"
        saved.write(directory / component if component is not None else directory)
        for rank in range(saved.ranks if signals else 0):
            (directory / f"saved_signal_{rank}").write_text("1")
    return run
