"""The record of a release: every file with size and digest, every tensor, and where it all came from.

Owns the document's schema and its JSON round trip. It is written last, so a directory that has one is whole.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ckptcore.errors import ReleaseInvalid
from ckptcore.rules.issues import Issue
from ckptcore.rules.json_documents import NotJson, parse_json
from ckptcore.rules.merge_plan import MergePlan
from ckptcore.rules.tensors import DTYPES, TensorSpec

MANIFEST_NAME = "manifest.json"
SIGNATURE_NAME = "model.sig"
"""Where model-signing's own command puts a signature."""
UNLISTED = frozenset({MANIFEST_NAME, SIGNATURE_NAME})
"""The files of a release that the manifest does not list: itself, and the signature that covers it."""
MANIFEST_SCHEMA = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
# As many digits as the names of releases give a step and an id, and more than a file has bytes.
_END_OF_NUMBERS = 10**18


@dataclass(frozen=True, slots=True, order=True)
class FileRecord:
    """One file of a release by its plain name. ``sha256`` is empty where digests were not asked for."""

    name: str
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, name: str, data: bytes) -> FileRecord:
        """The record of a file with that content."""
        return cls(name, len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """One tensor of a release and the shard that holds it. ``sha256`` is over its data; "" where it was only merged.

    ``overflows`` counts the finite values that a cast made infinite.
    """

    spec: TensorSpec
    file: str
    sha256: str = ""
    overflows: int = 0

    def to_json(self) -> dict[str, object]:
        spec = self.spec
        record: dict[str, object] = {"key": spec.key, "dtype": spec.dtype, "shape": list(spec.shape), "file": self.file}
        record |= {"sha256": self.sha256} if self.sha256 else {}
        return record | ({"overflows": self.overflows} if self.overflows else {})


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """What a release was made from. ``fingerprint`` is the digest over names, sizes and times of the source's files."""

    path: str
    step: int | None
    unique_id: int
    component: str | None
    fingerprint: str
    paddle_format: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """``files`` (without the manifest itself) and ``tensors`` are sorted by name and key.

    ``software`` names the versions that made it, ``flow_run`` the Prefect run or "", ``created_at`` the UTC time.
    """

    files: tuple[FileRecord, ...]
    tensors: tuple[TensorRecord, ...]
    source: SourceRecord
    plan_digest: str
    software: Mapping[str, str]
    flow_run: str
    created_at: str

    @property
    def attachments(self) -> tuple[FileRecord, ...]:
        """The files that hold no tensors and are not the index: configuration and tokenizer."""
        shards = {tensor.file for tensor in self.tensors}
        return tuple(
            f for f in self.files if f.name not in shards and not f.name.endswith((".safetensors", ".index.json"))
        )

    @property
    def identity(self) -> str:
        """What makes two releases the same: the plan, its source included, and the attached files."""
        return release_identity(self.plan_digest, self.attachments)

    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(record.spec for record in self.tensors)

    def to_bytes(self) -> bytes:
        """The document, readable and with a final newline; the same manifest gives the same bytes."""
        # Bytes of a path that are no UTF-8 are lone surrogates here, which JSON can only hold as escapes.
        return (json.dumps(self.to_json(), ensure_ascii=False, indent=1) + "\n").encode(errors="backslashreplace")

    def to_json(self) -> dict[str, object]:
        source = self.source
        return {
            "schema": MANIFEST_SCHEMA,
            "files": [{"name": f.name, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in self.files],
            "tensors": [record.to_json() for record in self.tensors],
            "source": {
                "path": source.path,
                "step": source.step,
                "unique_id": source.unique_id,
                "component": source.component,
                "fingerprint": source.fingerprint,
                "paddle_format": source.paddle_format,
            },
            "plan_digest": self.plan_digest,
            "software": dict(self.software),
            "flow_run": self.flow_run,
            "created_at": self.created_at,
        }


def is_earlier(source: SourceRecord, other: SourceRecord) -> bool:
    """Whether ``source`` is a version before ``other`` of the same run: a lower step, or the same and a lower id."""
    if source.component != other.component or _run(source) != _run(other):
        return False
    return (-1 if source.step is None else source.step, source.unique_id) < (
        -1 if other.step is None else other.step,
        other.unique_id,
    )


def _run(source: SourceRecord) -> str:
    """The directory of the run: above that of the component, where there is one, and of the step."""
    path = posixpath.dirname(source.path) if source.component is not None else source.path
    return path if source.step is None else posixpath.dirname(path)


def release_identity(plan_digest: str, attachments: tuple[FileRecord, ...]) -> str:
    """SHA-256 over the plan's digest and the names and digests of the attached files."""
    attached = [[record.name, record.sha256] for record in sorted(attachments)]
    return hashlib.sha256(json.dumps([plan_digest, attached]).encode()).hexdigest()


def tensor_records(
    plan: MergePlan, digests: Mapping[str, str], overflows: Mapping[str, int]
) -> tuple[TensorRecord, ...]:
    """The tensor table of what ``plan`` writes, sorted by key. ``digests`` holds the SHA-256 by key, where known, and
    ``overflows`` how many values a cast made infinite, where it did."""
    records = [
        TensorRecord(tensor.spec, shard.name, digests.get(tensor.spec.key, ""), overflows.get(tensor.spec.key, 0))
        for shard in plan.shards
        for tensor in shard.tensors
    ]
    return tuple(sorted(records, key=lambda record: record.spec.key))


def parse_manifest(data: bytes, where: str) -> Manifest:
    """The manifest in ``data``. Raises :class:`ReleaseInvalid` with every field that is missing or wrong."""
    try:
        document = parse_json(data)
    except NotJson as error:
        raise ReleaseInvalid(f"{where}: not a JSON document: {error}") from error
    reader = _Fields(where)
    root = reader.record(document, "manifest")
    if root.get("schema") != MANIFEST_SCHEMA:
        raise ReleaseInvalid(
            f"{where}: schema version: expected {MANIFEST_SCHEMA}, found {reprlib.repr(root.get('schema'))}"
        )
    manifest = reader.manifest(root)
    if reader.issues:
        raise ReleaseInvalid(f"{where}: {len(reader.issues)} field(s) are wrong", reader.issues)
    return manifest


class _Fields:
    """Reads typed fields and collects what is wrong with them."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.issues: list[Issue] = []

    def get(self, record: Mapping[str, Any], field: str, kind: type | tuple[type, ...], default: Any) -> Any:
        value = record.get(field)
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return value
        expected = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        self.issues.append(Issue(self.where, f"field {field!r}", expected, type(value).__name__, "manifest"))
        return default

    def record(self, value: object, what: str) -> Mapping[str, Any]:
        if isinstance(value, dict):
            return value
        self.issues.append(Issue(self.where, what, "an object", type(value).__name__, "manifest"))
        return {}

    def text(self, record: Mapping[str, Any], field: str) -> str:
        return str(self.get(record, field, str, ""))

    def number(self, record: Mapping[str, Any], field: str) -> int:
        value = int(self.get(record, field, int, 0))
        if 0 <= value < _END_OF_NUMBERS:
            return value
        self.wrong(field, f"a number from 0 to {_END_OF_NUMBERS - 1:,}", value)
        return 0

    def digest(self, record: Mapping[str, Any], field: str) -> str:
        """A SHA-256, or "" where none was asked for."""
        text = self.text(record, field)
        if text and not _SHA256.fullmatch(text):
            self.wrong(field, "64 hexadecimal digits", text)
        return text

    def time(self, record: Mapping[str, Any], field: str) -> str:
        text = self.text(record, field)
        try:
            is_time = datetime.fromisoformat(text).tzinfo is not None
        except ValueError:
            is_time = False
        if not is_time:
            self.wrong(field, "a date and time with its zone", text)
        return text

    def wrong(self, field: str, expected: str, found: object) -> None:
        self.issues.append(Issue(self.where, f"field {field!r}", expected, reprlib.repr(found), "manifest"))

    def file(self, value: object) -> FileRecord:
        record = self.record(value, "file")
        name = self.text(record, "name")
        if "/" in name or "\0" in name or name in ("", ".", ".."):
            self.issues.append(Issue(self.where, "file name", "a plain name", repr(name), "manifest"))
        return FileRecord(name, self.number(record, "size_bytes"), self.digest(record, "sha256"))

    def tensor(self, value: object) -> TensorRecord:
        record = self.record(value, "tensor")
        dtype = self.text(record, "dtype")
        shape = self.get(record, "shape", list, [])
        if dtype not in DTYPES or not all(type(n) is int and n >= 0 for n in shape):
            found = f"{dtype!r} {reprlib.repr(shape)}"
            self.issues.append(Issue(self.where, "tensor", "a known dtype and a shape", found, "manifest"))
            dtype, shape = "uint8", []
        sha256 = self.digest(record, "sha256") if "sha256" in record else ""
        spec = TensorSpec(self.text(record, "key"), dtype, tuple(shape))
        overflows = self.number(record, "overflows") if "overflows" in record else 0
        return TensorRecord(spec, self.text(record, "file"), sha256, overflows)

    def manifest(self, root: Mapping[str, Any]) -> Manifest:
        source = self.record(root.get("source"), "source")
        software = self.get(root, "software", dict, {})
        none = type(None)
        return Manifest(
            files=tuple(self.file(item) for item in self.get(root, "files", list, [])),
            tensors=tuple(self.tensor(item) for item in self.get(root, "tensors", list, [])),
            source=SourceRecord(
                path=self.text(source, "path"),
                step=None if source.get("step", 0) is None else self.number(source, "step"),
                unique_id=self.number(source, "unique_id"),
                component=self.get(source, "component", (str, none), None),
                fingerprint=self.digest(source, "fingerprint"),
                paddle_format=self.text(source, "paddle_format"),
            ),
            plan_digest=self.digest(root, "plan_digest"),
            software={name: self.text(software, name) for name in software},
            flow_run=self.text(root, "flow_run"),
            created_at=self.time(root, "created_at"),
        )
