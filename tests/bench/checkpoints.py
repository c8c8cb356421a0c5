"""Checkpoints to measure with: of any size, deterministic, in Paddle's layout without Paddle, or in torch's.

Owns what the benchmark's tensors are and how they lie in files. The payload is one block of random bytes, repeated, so
that a gigabyte costs little more than writing it. As a program it writes one checkpoint and prints what is in it:

    python -m tests.bench.checkpoints mixed 2560 12 OUT            # 12 layers of hidden size 2,560
    python -m tests.bench.checkpoints mixed 2560 12 OUT --for torch
"""

from __future__ import annotations

import argparse
import itertools
import json
import pickle
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tests.builders import SAFETENSORS_NAMES, STORED_AS, Array, Part, PickledMetadata, flat_parts_of, grid_parts

RANKS = 4
PIECES = 4
_METADATA_MODULE = "paddle.distributed.flex_checkpoint.dcp.metadata"
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor and its pieces; ``Part`` says which rank holds each."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    parts: tuple[Part, ...]

    @property
    def stored(self) -> np.dtype[Any]:
        return np.dtype(STORED_AS.get(self.dtype, self.dtype))


@dataclass(frozen=True, slots=True)
class Size:
    """What a checkpoint amounts to; ``size_bytes`` counts elements alone, not headers."""

    size_bytes: int
    tensors: int
    pieces: int
    rank_files: int


Checkpoint = tuple[Tensor, ...]


def mixed(hidden: int, layers: int) -> Checkpoint:
    """A transformer's layers on 4 ranks: column- and row-sharded bf16, and fp32 flattened as sharded optimizers do."""
    shapes = {
        "self_attn.qkv_proj.weight": ((hidden, 3 * hidden), (1, RANKS)),
        "self_attn.o_proj.weight": ((hidden, hidden), (RANKS, 1)),
        "mlp.up_gate_proj.weight": ((hidden, 4 * hidden), (1, RANKS)),
        "mlp.down_proj.weight": ((2 * hidden, hidden), (RANKS, 1)),
    }
    tensors = []
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for name, (shape, grid) in shapes.items():
            tensors.append(Tensor(f"{prefix}.{name}", shape, "bfloat16", grid_parts(shape, grid)))
        shape = (hidden, hidden)
        tensors.append(Tensor(f"{prefix}.self_attn.o_proj.w_0", shape, "float32", _flattened_columns(shape)))
    return tuple(tensors)


def rows(hidden: int, layers: int) -> Checkpoint:
    """Matrices cut into rows alone: every piece is one run of the output."""
    return _matrices(hidden, layers, (RANKS, 1))


def columns(hidden: int, layers: int) -> Checkpoint:
    """The same matrices cut into columns alone: every row of the output is woven from all ranks."""
    return _matrices(hidden, layers, (1, RANKS))


def many(tensors: int, rank_files: int) -> Checkpoint:
    """Small tensors of four pieces each, spread evenly over the rank files (four at least)."""
    if rank_files < PIECES:
        raise ValueError(f"{rank_files} rank files would hold two pieces of one tensor each")
    shape = (8, 1024)
    whole = grid_parts(shape, (PIECES, 1))
    return tuple(
        Tensor(
            f"model.layers.{n}.weight",
            shape,
            "bfloat16",
            tuple(Part((n * PIECES + i) % rank_files, part.offset, part.shape) for i, part in enumerate(whole)),
        )
        for n in range(tensors)
    )


LAYOUTS: dict[str, Callable[[int, int], Checkpoint]] = {"mixed": mixed, "rows": rows, "columns": columns, "many": many}


def _matrices(hidden: int, layers: int, grid: tuple[int, int]) -> Checkpoint:
    shape = (hidden, 4 * hidden)
    parts = grid_parts(shape, grid)
    return tuple(Tensor(f"model.layers.{n}.mlp.up_proj.weight", shape, "bfloat16", parts) for n in range(layers))


def _flattened_columns(shape: tuple[int, int]) -> tuple[Part, ...]:
    """Two column shards, each flattened and cut over two ranks."""
    return tuple(
        Part(2 * column + part.rank, box.offset, box.shape, part.flat)
        for column, box in enumerate(grid_parts(shape, (1, 2)))
        for part in flat_parts_of(box.shape, 2)
    )


def write_for_paddle(checkpoint: Checkpoint, directory: Path) -> Size:
    """``{rank}_0.distcp`` and ``0.metadata``, spelled as Paddle 3.3 spells them."""
    directory.mkdir(parents=True, exist_ok=True)
    metadata = PickledMetadata(_METADATA_MODULE)
    metadata.fields["flat_mapping"] = {tensor.key: (tensor.key,) for tensor in checkpoint}
    by_rank: dict[int, list[tuple[Tensor, Part]]] = {}
    for tensor in checkpoint:
        metadata.tensors[tensor.key] = []
        for part in tensor.parts:
            by_rank.setdefault(part.rank, []).append((tensor, part))
            box = {"global_offset": part.offset, "local_shape": part.shape}
            range_ = {"is_flattened": part.flat is not None, "flattened_range": part.flat}
            metadata.tensors[tensor.key].append(box | range_ | {"dtype": tensor.dtype, "global_shape": tensor.shape})
            metadata.storage.append(
                (box | range_ | {"tensor_key": tensor.key, "replica_id": None}, f"{part.rank}_0.distcp")
            )
    (directory / "0.metadata").write_bytes(metadata.dump())
    payloads = _payloads()
    for rank, held in sorted(by_rank.items()):
        content: dict[str, Any] = {tensor.key: _array(tensor, part, payloads) for tensor, part in held}
        content["StructuredToParameterName@@"] = {key: key for key in content}
        with open(directory / f"{rank}_0.distcp", "wb") as file:
            pickle.dump(content, file, protocol=4)
    return _size(checkpoint, len(by_rank))


def write_for_torch(checkpoint: Checkpoint, directory: Path) -> Size:
    """The same tensors as torch's distributed checkpoint writes them for Hugging Face: a safetensors file a rank.

    That format has no flattened ranges: tensors that hold any are cut into rows instead.
    """
    directory.mkdir(parents=True, exist_ok=True)
    by_rank: dict[int, list[tuple[Tensor, Part]]] = {}
    for tensor in checkpoint:
        flattened = any(part.flat is not None for part in tensor.parts)
        for part in grid_parts(tensor.shape, (RANKS, 1)) if flattened else tensor.parts:
            by_rank.setdefault(part.rank, []).append((tensor, part))
    payloads = _payloads()
    for rank, held in sorted(by_rank.items()):
        header: dict[str, Any] = {}
        end = 0
        for tensor, part in held:
            start, end = end, end + prod(part.shape) * tensor.stored.itemsize
            dtype = SAFETENSORS_NAMES[tensor.dtype]
            header[tensor.key] = {"dtype": dtype, "shape": part.shape, "data_offsets": [start, end]}
        offsets = {tensor.key: {"saved_offsets": part.offset} for tensor, part in held}
        header["__metadata__"] = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(directory / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor, part in held:
                file.write(_array(tensor, part, payloads).data)
    return _size(checkpoint, len(by_rank))


WRITERS: dict[str, Callable[[Checkpoint, Path], Size]] = {"paddle": write_for_paddle, "torch": write_for_torch}


def _payloads() -> Iterator[Array]:
    """Endless bytes, from another place of one random block each time."""
    block = np.frombuffer(np.random.default_rng(0).bytes(_BLOCK_BYTES), np.uint8)
    return (block[start * 4096 % (_BLOCK_BYTES // 2) :] for start in itertools.count())


def _array(tensor: Tensor, part: Part, payloads: Iterator[Array]) -> Array:
    shape = part.shape if part.flat is None else (part.flat[1] - part.flat[0],)
    size = prod(shape) * tensor.stored.itemsize
    if size > _BLOCK_BYTES // 2:
        raise ValueError(f"a piece of {size:,} bytes is more than the block that payloads are cut from")
    return next(payloads)[:size].view(tensor.stored).reshape(shape)


def _size(checkpoint: Checkpoint, rank_files: int) -> Size:
    size_bytes = sum(prod(tensor.shape) * tensor.stored.itemsize for tensor in checkpoint)
    return Size(size_bytes, len(checkpoint), sum(len(tensor.parts) for tensor in checkpoint), rank_files)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint to measure with, and print its size as JSON.")
    parser.add_argument("layout", choices=LAYOUTS)
    parser.add_argument("first", type=int, help="hidden size; of many: the number of tensors")
    parser.add_argument("second", type=int, help="layers; of many: the number of rank files")
    parser.add_argument("out", type=Path)
    parser.add_argument("--for", dest="reader", choices=WRITERS, default="paddle")
    arguments = parser.parse_args()
    checkpoint = LAYOUTS[arguments.layout](arguments.first, arguments.second)
    print(json.dumps(asdict(WRITERS[arguments.reader](checkpoint, arguments.out))))


if __name__ == "__main__":
    main()
