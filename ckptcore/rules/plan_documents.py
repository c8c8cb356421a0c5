"""A plan as JSON that another process makes the same plan of: a head, and a document for each shard.

A worker reads the head and the documents of its own shards, so that a plan of a million copies costs it what its share
of them costs. The head names each document's SHA-256, and its own travels beside its path: what is read is what was
written. Making the plan anew instead would read the headers of all rank files again, for every worker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ckptcore.rules.fingerprint import FileStamp, Fingerprint
from ckptcore.rules.json_documents import parse_json
from ckptcore.rules.merge_plan import Copy, MergePlan, PlannedShard, PlannedTensor
from ckptcore.rules.shard_layout import shard_layout
from ckptcore.rules.stored import Segment, StoredArray
from ckptcore.rules.tensors import Box, TensorSpec

HEAD_NAME = "plan.json"


@dataclass(frozen=True, slots=True)
class PlanHead:
    """What is said of a plan as a whole, and the SHA-256 of each shard's document, by the shard's name.

    ``plan`` has no shards. ``digests`` and ``fsync`` are how the shards are written, ``version`` is this package's.
    """

    plan: MergePlan
    shards: Mapping[str, str]
    digests: str
    fsync: bool
    version: str


def document_name(shard: str) -> str:
    """The file that holds the document of a shard, beside the head."""
    return f"{shard}.plan"


def sha256_of(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest()


def head_document(head: PlanHead) -> bytes:
    plan = head.plan
    document = {
        "directory": plan.directory,
        "step": plan.step,
        "unique_id": plan.unique_id,
        "component": plan.component,
        "paddle_format": plan.paddle_format,
        "digest": plan.digest,
        "fingerprint": [[file.name, file.size_bytes, file.mtime_ns, file.inode] for file in plan.fingerprint.files],
        "inputs": plan.inputs,
        "shards": dict(head.shards),
        "digests": head.digests,
        "fsync": head.fsync,
        "version": head.version,
    }
    return _json(document)


def parse_head(document: bytes) -> PlanHead:
    """The head that :func:`head_document` wrote."""
    root = parse_json(document)
    plan = MergePlan(
        directory=root["directory"],
        step=root["step"],
        unique_id=root["unique_id"],
        component=root["component"],
        paddle_format=root["paddle_format"],
        fingerprint=Fingerprint(tuple(FileStamp(*stamp) for stamp in root["fingerprint"])),
        inputs=tuple(root["inputs"]),
        shards=(),
        index=None,
        digest=root["digest"],
    )
    return PlanHead(plan, root["shards"], root["digests"], root["fsync"], root["version"])


def shard_document(shard: PlannedShard) -> bytes:
    """The shard's tensors and copies. Its header and offsets follow from the tensors, and are left out."""
    numbers: dict[StoredArray, int] = {}
    tensors = [
        [
            tensor.spec.key,
            tensor.spec.dtype,
            tensor.spec.shape,
            [
                [
                    c.target.offset,
                    c.target.shape,
                    c.file,
                    _number(numbers, c.array),
                    c.base,
                    c.strides,
                    c.dtype,
                    c.casts,
                ]
                for c in tensor.copies
            ],
        ]
        for tensor in shard.tensors
    ]
    return _json({"name": shard.name, "arrays": [_array_values(array) for array in numbers], "tensors": tensors})


def parse_shard(document: bytes) -> PlannedShard:
    """The shard that :func:`shard_document` wrote."""
    root = parse_json(document)
    arrays = [_array(values) for values in root["arrays"]]
    specs = [TensorSpec(key, dtype, tuple(shape)) for key, dtype, shape, _ in root["tensors"]]
    layout = shard_layout(root["name"], specs)
    tensors = tuple(
        PlannedTensor(spec, offset, tuple(_copies(copies, arrays)))
        for spec, offset, (*_, copies) in zip(layout.tensors, layout.offsets, root["tensors"], strict=True)
    )
    return PlannedShard(layout.name, layout.header, layout.size_bytes, tensors)


def _number(numbers: dict[StoredArray, int], array: StoredArray) -> int:
    return numbers.setdefault(array, len(numbers))


def _copies(values: Iterable[Any], arrays: list[StoredArray]) -> Iterable[Copy]:
    for offset, shape, file, array, base, strides, dtype, casts in values:
        yield Copy(Box(tuple(offset), tuple(shape)), file, arrays[array], base, tuple(strides), dtype, tuple(casts))


def _array_values(array: StoredArray) -> list[object]:
    segments = [[part.offset, part.length, part.marks, part.stored_length] for part in array.segments]
    return [array.shape, array.dtype, array.fortran, segments, array.axes, array.means]


def _array(values: Any) -> StoredArray:
    shape, dtype, fortran, segments, axes, means = values
    parts = tuple(
        Segment(offset, length, None if marks is None else tuple(marks), stored_length)
        for offset, length, marks, stored_length in segments
    )
    return StoredArray(tuple(shape), dtype, fortran, parts, None if axes is None else tuple(axes), means)


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
