"""Where each tensor lies in the output: which safetensors shard, at which byte, under which file names.

Owns the safetensors header (format: 8-byte little-endian length, JSON padded with spaces to 8 bytes, data) and the
Hugging Face names and index of a sharded model. Which bytes are copied where is ``merge_plan``'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ckptcore.rules.tensors import DTYPES, TensorSpec

INDEX_NAME = "model.safetensors.index.json"

# transformers refuses a file whose header does not say which framework's layout it has; it knows "pt", "tf", "flax"
# and "mlx", and "pt" is the plain row-major one.
HEADER_METADATA = {"format": "pt"}

MAX_HEADER_BYTES = 100_000_000
"""The reference reader refuses a longer header."""


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """One output file: its header and, for each tensor in file order, the absolute offset of its data."""

    name: str
    header: bytes
    tensors: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    size_bytes: int


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts ``layers.2`` before ``layers.10``. Numbers stay digits: a hostile key may have any number of them."""
    return tuple(
        (0, len(digits := part.lstrip("0")), digits) if part.isdecimal() else (1, 0, part)
        for part in re.split(r"([0-9]+)", text)
    )


def header_of(tensors: Sequence[TensorSpec]) -> bytes:
    """The safetensors header for tensors whose data follow each other in this order without gaps."""
    entries: dict[str, object] = {"__metadata__": HEADER_METADATA}
    position = 0
    for tensor in tensors:
        end = position + tensor.size_bytes
        entries[tensor.key] = {
            "dtype": DTYPES[tensor.dtype].safetensors,
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def lay_out(tensors: Sequence[TensorSpec], *, max_shard_bytes: int) -> tuple[ShardLayout, ...]:
    """Shards of at most ``max_shard_bytes`` of tensor data, filled in natural key order.

    A tensor larger than that has a shard of its own. No tensors give one shard without data.
    """
    groups: list[list[TensorSpec]] = [[]]
    filled = 0
    for tensor in sorted(tensors, key=lambda tensor: (natural_key(tensor.key), tensor.key)):
        if groups[-1] and filled + tensor.size_bytes > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += tensor.size_bytes
    names = shard_names(len(groups))
    return tuple(shard_layout(name, group) for name, group in zip(names, groups, strict=True))


def shard_layout(name: str, tensors: Sequence[TensorSpec]) -> ShardLayout:
    """One shard of these tensors; those of a layout, in its order, give the same layout again."""
    # Wider elements first: then every tensor starts at a multiple of its element size, as readers that map need it.
    ordered = sorted(tensors, key=lambda tensor: -DTYPES[tensor.dtype].itemsize)
    header = header_of(ordered)
    offsets, position = [], len(header)
    for tensor in ordered:
        offsets.append(position)
        position += tensor.size_bytes
    return ShardLayout(name, header, tuple(ordered), tuple(offsets), position)


def shard_names(count: int) -> tuple[str, ...]:
    """Hugging Face's names: ``model.safetensors`` alone, or ``model-00001-of-00003.safetensors`` and so on."""
    if count == 1:
        return ("model.safetensors",)
    return tuple(f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1))


def index_document(shards: Sequence[ShardLayout]) -> bytes | None:
    """The content of ``model.safetensors.index.json``; None for a single shard, which needs none."""
    if len(shards) == 1:
        return None
    total = sum(tensor.size_bytes for shard in shards for tensor in shard.tensors)
    weight_map = {tensor.key: shard.name for shard in shards for tensor in shard.tensors}
    document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()
