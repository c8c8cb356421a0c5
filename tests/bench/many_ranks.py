"""One save of very many ranks and tensors, byte for byte as Paddle 3.3 would spell it, small enough to be written here.

Owns what its tensors are and how they lie in files. The metadata is what Paddle's coordinator pickles after
``all_gather_object``: each rank's share comes out of a pickle of its own, so that keys, dtypes and tuples are spelled
anew for each rank, which is most of such a file. The payloads are either ``values_of`` each tensor, or, for a run of
terabytes, holes in sparse files. As a program it writes one run and prints what is in it:

    python -m tests.bench.many_ranks OUT --ranks 1024 --tensors 150000 --rows 2500 --columns 2000 --sparse
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tests.bench.checkpoints import Size
from tests.builders import Array, Part, flat_parts_of, grid_parts
from tests.formats.bytes_under_test import paddle_classes

LEAST_HOLE_BYTES = 1 << 16
"""From here on pickle hands a payload to the file by itself, outside its frames: it can be left a hole."""

_CUTS = (4, 8, 16)
"""Into how many pieces a tensor is cut: rows, columns, ranges of the flattening; one third of the tensors each."""


@dataclass(frozen=True, slots=True)
class ManyRanks:
    """``tensors`` bfloat16 matrices of ``rows`` x ``columns``, their pieces dealt to the ``ranks`` in turn."""

    ranks: int
    tensors: int
    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.ranks < max(_CUTS):
            raise ValueError(f"{self.ranks} rank files would hold two pieces of one tensor each")

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def key(self, number: int) -> str:
        layer, expert = divmod(number // 3, 400)
        matrix = ("gate_proj", "up_proj", "down_proj")[number % 3]
        return f"model.layers.{layer}.mlp.experts.{expert}.{matrix}.weight"

    def parts(self, number: int) -> Iterator[Part]:
        """The pieces of a tensor; ``rank`` says which rank holds each."""
        kind = number % 3
        first = number // 3 * sum(_CUTS) + sum(_CUTS[:kind])
        for part in _cut(self.shape, kind):
            yield Part((first + part.rank) % self.ranks, part.offset, part.shape, part.flat)

    def values_of(self, number: int) -> Array:
        """The bits of the tensor: no two tensors alike, and no two of 65,536 neighbours in one."""
        flat = np.arange(self.rows * self.columns, dtype=np.uint64) + np.uint64(number * 40_503)
        return (flat & np.uint64(0xFFFF)).astype(np.uint16).reshape(self.shape)


@cache
def _cut(shape: tuple[int, int], kind: int) -> tuple[Part, ...]:
    if kind == 2:
        return flat_parts_of(shape, _CUTS[2])
    return grid_parts(shape, (_CUTS[0], 1) if kind == 0 else (1, _CUTS[1]))


def write(run: ManyRanks, directory: Path, *, sparse: bool) -> Size:
    """``{rank}_0.distcp`` and ``0.metadata``. ``sparse`` leaves payloads out, which are zeros to every reader."""
    directory.mkdir(parents=True, exist_ok=True)
    held: list[list[tuple[int, Part]]] = [[] for _ in range(run.ranks)]
    for number in range(run.tensors):
        for part in run.parts(number):
            held[part.rank].append((number, part))
    write_metadata(run, held, directory)
    for rank, parts in enumerate(held):
        with open(directory / f"{rank}_0.distcp", "wb") as file:
            _write_rank_file(run, parts, file, sparse=sparse)
    pieces = sum(map(len, held))
    return Size(run.tensors * run.rows * run.columns * 2, run.tensors, pieces, run.ranks)


def write_metadata(run: ManyRanks, held: list[list[tuple[int, Part]]], directory: Path) -> None:
    with paddle_classes() as paddle:
        tensors: dict[str, list[Any]] = {}
        storage: dict[Any, str] = {}
        nested: dict[str, tuple[str, ...]] = {}
        for rank, parts in enumerate(held):
            of_rank = _metadata_of(run, rank, parts, paddle)
            mine, files, mapping = (pickle.loads(pickle.dumps(table)) for table in of_rank)  # all_gather_object
            for key, piece in mine.items():
                tensors.setdefault(key, []).append(piece)
            storage |= files
            for key, path in mapping.items():
                nested.setdefault(key, path)
        whole = paddle.Metadata(state_dict_metadata=tensors, storage_metadata=storage, flat_mapping=nested)
        with open(directory / "0.metadata", "wb") as file:
            pickle.dump(whole, file, protocol=4)


def _metadata_of(run: ManyRanks, rank: int, parts: list[tuple[int, Part]], paddle: Any) -> tuple[dict[Any, Any], ...]:
    """What one rank knows before the gathering: its pieces, their file, and how its keys were nested."""
    tensors: dict[str, Any] = {}
    storage: dict[Any, str] = {}
    name = f"{rank}_0.distcp"
    for number, part in parts:
        key = run.key(number)
        box: dict[str, Any] = {"global_offset": (*part.offset,), "local_shape": (*part.shape,)}
        flat = {"is_flattened": part.flat is not None, "flattened_range": part.flat and (*part.flat,)}
        dtype = "bfloat16,".removesuffix(",")  # a text of its own for each tensor, as str(dtype) gives
        whole = {"dtype": dtype, "global_shape": (run.rows, run.columns)}
        tensors[key] = paddle.LocalTensorMetadata(**box, **whole, **flat)
        index = {"global_offset": box["global_offset"], **flat, "replica_id": None, "local_shape": box["local_shape"]}
        storage[paddle.LocalTensorIndex(tensor_key=key, **index)] = name
    return tensors, storage, {key: (key,) for key in tensors}


class _Hole:
    """Pickled as a numpy array of zeros is, without the zeros ever being made."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def __reduce__(self) -> tuple[Any, ...]:
        reduced: Any = np.zeros(0, np.uint16).__reduce__()
        make, arguments, (version, _, dtype, is_fortran, _) = reduced
        return make, arguments, (version, (*self._shape,), dtype, is_fortran, bytes(2 * prod(self._shape)))


class _SparseFile:
    """Takes a payload by moving on. What else is long is a frame, which begins with an opcode; none is a zero."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        if len(data) >= LEAST_HOLE_BYTES and not data[0]:
            self._file.seek(len(data), os.SEEK_CUR)
        else:
            self._file.write(data)


def _write_rank_file(run: ManyRanks, parts: list[tuple[int, Part]], file: BinaryIO, *, sparse: bool) -> None:
    content: dict[str, Any] = {}
    names: dict[str, str] = {}
    for number, part in parts:
        key = run.key(number)
        names[key] = f"linear_{number}.w_0"
        if sparse:
            content[key] = _Hole(part.shape if part.flat is None else (part.flat[1] - part.flat[0],))
        else:
            content[key] = part.cut_from(run.values_of(number))
    content["StructuredToParameterName@@"] = names
    pickle.Pickler(_SparseFile(file) if sparse else file, protocol=4).dump(content)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.many_ranks", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="a directory that does not exist, or is empty")
    for name in ("ranks", "tensors", "rows", "columns"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--sparse", action="store_true", help="leave holes for payloads")
    a = parser.parse_args()
    run = ManyRanks(a.ranks, a.tensors, a.rows, a.columns)
    print(json.dumps(asdict(write(run, a.out, sparse=a.sparse))))


if __name__ == "__main__":
    main()
