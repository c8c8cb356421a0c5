"""Is a directory of safetensors files what its manifest, its index and the expectations say: every mismatch at once.

Takes what was read from the disk as data; reading it is ``validate``'s work.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.json_documents import parse_json
from ckptcore.rules.manifest import UNLISTED, FileRecord, Manifest
from ckptcore.rules.shapes import Expectation, check_expectations, compare_specs
from ckptcore.rules.shard_layout import INDEX_NAME
from ckptcore.rules.tensors import TensorSpec


@dataclass(frozen=True, slots=True)
class FoundShard:
    """A safetensors file as its own header describes it."""

    name: str
    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class FoundOutput:
    """A directory as it was read: all plain files, the headers of the shards, the index's bytes, its manifest.

    The SHA-256 of a file that was not read, or not yet, is empty and is not judged.
    """

    files: tuple[FileRecord, ...]
    shards: tuple[FoundShard, ...]
    index: bytes | None
    manifest: Manifest | None

    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(sorted((s for shard in self.shards for s in shard.tensors), key=lambda spec: spec.key))


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """What was found wrong (``issues``), and worth knowing (``notes``), in how many files, tensors and bytes."""

    path: str
    files: int
    tensors: int
    size_bytes: int
    issues: tuple[Issue, ...]
    notes: tuple[Issue, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "path": self.path,
            "valid": not self.issues,
            "files": self.files,
            "tensors": self.tensors,
            "size_bytes": self.size_bytes,
            "issues": [issue.to_json() for issue in self.issues],
            "notes": [note.to_json() for note in self.notes],
        }


def check_output(found: FoundOutput, expectations: Sequence[Expectation]) -> tuple[Issue, ...]:
    """Every contradiction between the files, their headers, the index, the manifest and the expectations."""
    issues = [*names_given_twice(found.shards), *_index_agrees(found)]
    if found.manifest is not None:
        issues += _files_agree(found.manifest, found.files)
        issues += _tensors_agree(found.manifest, found)
    if expectations:
        issues += check_expectations(found.specs(), expectations)
    if not found.shards:
        issues.append(Issue("", "no safetensors file is here", code="no-shards"))
    return in_order(issues)


def names_given_twice(shards: Iterable[FoundShard]) -> Iterator[Issue]:
    """One issue for each tensor that more than one shard holds."""
    holder: dict[str, str] = {}
    for shard in shards:
        for spec in shard.tensors:
            first = holder.setdefault(spec.key, shard.name)
            if first != shard.name:
                yield Issue(f"tensor {spec.key!r}", f"is in {first} and in {shard.name}", code="duplicate-tensor")


def _index_agrees(found: FoundOutput) -> Iterator[Issue]:
    if found.index is None:
        if len(found.shards) > 1:
            yield Issue(INDEX_NAME, "is missing", f"an index of {len(found.shards)} shards", "none", "index")
        return
    try:
        document = parse_json(found.index)
        weight_map, total = document["weight_map"], document["metadata"]["total_size"]
        entries = dict(weight_map.items())
    except (ValueError, KeyError, TypeError, AttributeError):
        yield Issue(INDEX_NAME, "is no index: a JSON object with weight_map and metadata.total_size", code="index")
        return
    holder = {spec.key: shard.name for shard in found.shards for spec in shard.tensors}
    yield from _maps_differ(entries, holder)
    size = sum(spec.size_bytes for spec in found.specs())
    if total != size:
        yield Issue(INDEX_NAME, "metadata.total_size", f"{size:,} bytes", _shown(total), "index")


def _maps_differ(entries: Mapping[str, object], holder: Mapping[str, str]) -> Iterator[Issue]:
    for key in entries.keys() | holder.keys():
        if entries.get(key) != holder.get(key):
            expected, listed = holder.get(key, "in no shard"), entries.get(key, "not listed")
            yield Issue(INDEX_NAME, f"tensor {key!r}", expected, _shown(listed), "index")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else reprlib.repr(value)  # which goes a few levels deep


def _files_agree(manifest: Manifest, files: Sequence[FileRecord]) -> Iterator[Issue]:
    recorded = {record.name: record for record in manifest.files}
    present = {record.name: record for record in files if record.name not in UNLISTED}
    for name in recorded.keys() - present.keys():
        yield Issue(name, "is missing", f"{recorded[name].size_bytes:,} bytes", "no such file", "file-missing")
    for name in present.keys() - recorded.keys():
        yield Issue(name, "is not in the manifest", code="file-extra")
    for name in recorded.keys() & present.keys():
        yield from compare_file(recorded[name], present[name])


def compare_file(promised: FileRecord, found: FileRecord) -> Iterator[Issue]:
    """How a file's size, or its SHA-256 where both know it, differs from what the manifest promises."""
    if promised.size_bytes != found.size_bytes:
        yield Issue(promised.name, "size", f"{promised.size_bytes:,} bytes", f"{found.size_bytes:,}", "file-size")
    elif promised.sha256 and found.sha256 and promised.sha256 != found.sha256:
        yield Issue(promised.name, "SHA-256", promised.sha256, found.sha256, "file-digest")


def files_to_read(manifest: Manifest, files: Iterable[FileRecord]) -> tuple[FileRecord, ...]:
    """What the manifest promises of those ``files`` that only their bytes can still prove wrong, the largest first."""
    sizes = {record.name: record.size_bytes for record in files}
    unread = [f for f in manifest.files if f.sha256 and sizes.get(f.name) == f.size_bytes]
    return tuple(sorted(unread, key=lambda record: (-record.size_bytes, record.name)))


def _tensors_agree(manifest: Manifest, found: FoundOutput) -> Iterator[Issue]:
    yield from compare_specs(manifest.specs(), found.specs())
    holder = {spec.key: shard.name for shard in found.shards for spec in shard.tensors}
    for record in manifest.tensors:
        actual = holder.get(record.spec.key)
        if actual is not None and actual != record.file:
            yield Issue(f"tensor {record.spec.key!r}", "shard", record.file, actual, "tensor-file")
