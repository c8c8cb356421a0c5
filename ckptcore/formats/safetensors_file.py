"""A safetensors file: eight bytes of header length, a JSON header, the tensors tightly packed.

Owns reading a header as strictly as the reference implementation (``safetensors/src/tensor.rs``, 0.4 to 0.6), and
reading a ``{rank}_{unique_id}.safetensors`` rank file in the terms of the others. ``rules.shard_layout`` writes one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NoReturn

from ckptcore.errors import DamagedFile
from ckptcore.formats.damage import damaged
from ckptcore.formats.pickle_values import as_extents, describe
from ckptcore.formats.reader import Reader
from ckptcore.rules.issues import Issue
from ckptcore.rules.stored import RankFile, Segment, StoredArray
from ckptcore.rules.tensors import Shape

MAX_HEADER_BYTES: Final = 100_000_000
METADATA_KEY: Final = "__metadata__"

STORED_AS: Final[Mapping[str, str]] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "|i1", "F8_E5M2": "|i1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
    "BOOL": "|b1", "C64": "<c8",
}  # fmt: skip
"""The format's dtypes as Paddle's rank files store them: numpy lacks bfloat16 and the float8 ones."""

MEANINGS: Final = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""The dtypes that say more than how the elements are stored."""


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """One tensor: the format's dtype, and the file's bytes from ``begin`` to ``end``, C-ordered and little-endian."""

    name: str
    dtype: str
    shape: Shape
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What a header says: its tensors in the file's order of their bytes, and its free metadata."""

    tensors: tuple[SafetensorsTensor, ...]
    metadata: Mapping[str, str]


def parse_safetensors(reader: Reader, name: str) -> SafetensorsHeader:
    """The header of the file ``name``, of which every byte belongs to the header or to exactly one tensor.

    Raises DamagedFile with every issue found.
    """
    entries, data_start = _header(reader, name)
    issues: list[Issue] = []

    def report(what: str, expected: str, found: str) -> None:
        issues.append(Issue(name, what, expected, found, code="safetensors"))

    metadata = entries.pop(METADATA_KEY, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        report(METADATA_KEY, "a JSON object of strings", type(metadata).__name__)
    tensors: list[SafetensorsTensor] = []
    for key, entry in entries.items():
        tensor = _tensor(key, entry, data_start)
        if tensor is None:
            report(f"tensor {key!r}", "dtype, shape, and data_offsets as far apart as they say", _described(entry))
        else:
            tensors.append(tensor)
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end, tensor.name))
    if not issues:
        at = data_start
        for tensor in tensors:
            if tensor.begin != at:
                expected = f"its bytes to start at {at:,}, with no gap or overlap"
                report(f"tensor {tensor.name!r}", expected, f"{tensor.begin:,}")
            at = tensor.end
        if at != reader.size_bytes:
            report("the file's length", f"{at:,} bytes", f"{reader.size_bytes:,}")
    if issues:
        raise DamagedFile(f"{name} is no safetensors file that can be used", issues)
    return SafetensorsHeader(tuple(tensors), metadata)


def _header(reader: Reader, name: str) -> tuple[dict[str, Any], int]:
    """The header's JSON object, and where in the file the tensors start."""
    size = reader.size_bytes
    prefix = reader.read_at(0, 8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        expected = f"from 2 to {MAX_HEADER_BYTES:,} bytes, all in the file"
        found = f"{length:,} in a file of {size:,}"
        raise damaged(name, "the header's length", expected=expected, found=found, code="safetensors")
    text = reader.read_at(8, length)
    try:
        if not text.startswith(b"{") or len(text) < length:
            raise ValueError("it is cut, or does not start with {")
        entries: dict[str, Any] = json.loads(
            str(text, "utf-8"), object_pairs_hook=_without_repeats, parse_constant=_refuse
        )
        "".join(entries).encode("utf-8")  # an escaped half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        expected = "a JSON object without repeats"
        raise damaged(name, "the header", expected=expected, found=str(error)[:200], code="safetensors") from None
    return entries, 8 + length


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _tensor(name: str, entry: Any, data_start: int) -> SafetensorsTensor | None:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        return None
    dtype, shape, offsets = entry["dtype"], _extents(entry["shape"]), _extents(entry["data_offsets"])
    if not isinstance(dtype, str) or dtype not in STORED_AS or shape is None or offsets is None or len(offsets) != 2:
        return None
    begin, end = offsets
    if end - begin != prod(shape) * int(STORED_AS[dtype][2:]):
        return None
    return SafetensorsTensor(name, dtype, shape, data_start + begin, data_start + end)


def _extents(value: Any) -> Shape | None:
    return as_extents(value) if isinstance(value, list) else None


def _described(entry: Any) -> str:
    if not isinstance(entry, dict):
        return describe(entry)
    known = (f"{key} {describe(entry[key])}" for key in ("dtype", "shape", "data_offsets") if key in entry)
    return ", ".join(known) or "none of them"


def safetensors_rank_file(reader: Reader, name: str) -> RankFile:
    """The rank file ``name`` that ``save_state_dict(…, safetensors=True)`` of Paddle 3.3 wrote; it records no names."""
    arrays = {
        tensor.name: StoredArray(
            tensor.shape,
            STORED_AS[tensor.dtype],
            False,
            (Segment(tensor.begin, tensor.end - tensor.begin),),
            means=MEANINGS.get(tensor.dtype, ""),
        )
        for tensor in parse_safetensors(reader, name).tensors
    }
    return RankFile(arrays, {})
