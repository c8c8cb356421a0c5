"""Validate: re-read an output or release as a consumer would, and hold it against what it promises to be."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ckptcore.errors import ReleaseInvalid
from ckptcore.release_reader import held_tensors, plain_files, read_headers
from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.manifest import MANIFEST_NAME, FileRecord, Manifest, parse_manifest
from ckptcore.rules.shapes import Expectation
from ckptcore.rules.shard_layout import INDEX_NAME
from ckptcore.rules.tensors import TensorSpec
from ckptcore.rules.validation import FoundOutput, ValidationReport, check_output, compare_file, files_to_read
from ckptcore.steps import tell, verb
from ckptcore.storage.digests import sha256_of
from ckptcore.storage.progress import OnProgress, ignore_progress
from ckptcore.storage.refusals import reported
from ckptcore.storage.regular_files import read_document, read_end


@dataclass(frozen=True, slots=True)
class Examined:
    """A directory of which all but the data was read.

    ``report`` is what that shows, and ``unread`` what the manifest promises of the files that only their bytes can
    still prove wrong, the largest first.
    """

    manifest: Manifest | None
    report: ValidationReport
    unread: tuple[FileRecord, ...]


@verb("validate")
def validate(
    path: str | os.PathLike[str],
    *,
    expectations: Sequence[Expectation] = (),
    on_progress: OnProgress = ignore_progress,
) -> ValidationReport:
    """Re-read the directory ``path``, every byte that a digest is known of once, and report every mismatch.

    Checked are sizes and SHA-256 against the manifest, headers against the manifest's tensor table and the index, names
    given twice, and shapes and dtypes against ``expectations``. A directory without a manifest is checked against its
    index and the expectations, and the report notes it. Raises :class:`ReleaseNotFound` where there is no directory.
    """
    directory = Path(path)
    examined = examine(directory, expectations)
    tell(directory=os.fspath(path), files=examined.report.files, bytes=sum(f.size_bytes for f in examined.unread))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        read = pool.map(lambda promised: reread(directory, promised, on_progress), examined.unread)
        issues = [issue for found in read for issue in found]
    return replace(examined.report, issues=in_order([*examined.report.issues, *issues]))


def examine(directory: Path, expectations: Sequence[Expectation] = ()) -> Examined:
    """Look at names, sizes, headers, index and manifest of ``directory``, and at no data.

    Raises :class:`ReleaseNotFound` and :class:`StorageError`.
    """
    issues: list[Issue] = []
    names = plain_files(directory, issues)
    manifest = _manifest(directory, names, issues)
    with reported("cannot read", directory):
        files = tuple(FileRecord(name, (directory / name).stat().st_size, "") for name in names)
        index = read_document(directory / INDEX_NAME) if INDEX_NAME in names else None
    shards = tuple(shard.found() for shard in read_headers(directory, names, issues))
    found = FoundOutput(files, shards, index, manifest)
    notes: list[Issue] = []
    if manifest is None and not issues:
        notes.append(Issue(MANIFEST_NAME, "is not here; digests and provenance are not checked", code="no-manifest"))
    report = ValidationReport(
        path=str(directory),
        files=len(files),
        tensors=sum(len(shard.tensors) for shard in shards),
        size_bytes=sum(record.size_bytes for record in files),
        issues=in_order([*issues, *check_output(found, expectations)]),
        notes=tuple(notes),
    )
    return Examined(manifest, report, () if manifest is None else files_to_read(manifest, files))


def reread(directory: Path, promised: FileRecord, on_progress: OnProgress) -> tuple[Issue, ...]:
    """Read one file of ``directory`` and hold its digest against the promised one. Raises :class:`StorageError`."""
    return tuple(compare_file(promised, sha256_of(directory / promised.name, on_progress)))


def require_valid(report: ValidationReport) -> None:
    """Raise :class:`ReleaseInvalid` with every issue of the report, if it has any."""
    if report.issues:
        raise ReleaseInvalid(f"{report.path}: {len(report.issues)} mismatch(es)", report.issues)


def specs_of(path: str | os.PathLike[str]) -> tuple[TensorSpec, ...]:
    """The tensors of a directory of safetensors files, from their headers alone, sorted by key.

    Raises :class:`ReleaseNotFound` and :class:`ReleaseInvalid`.
    """
    return tuple(sorted((tensor.spec for tensor in held_tensors(Path(path))), key=lambda spec: spec.key))


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a finished output. Raises :class:`ReleaseInvalid` where it is missing or wrong."""
    path = directory / MANIFEST_NAME
    if not path.is_file():
        raise ReleaseInvalid(f"{directory}: has no {MANIFEST_NAME}; only an output of ckpt merge can be published")
    return parse_manifest(read_document(path), str(path))


_TAIL_BYTES = 1 << 16
_SOURCE = b'\n "source": '


def source_path(directory: Path) -> str:
    """What a finished output was made from, as its manifest says, at little cost where it has many tensors.

    The source stands behind the tensors, and no text in the document has a line's end in it. Raises as
    :func:`read_manifest` does, which reads a manifest that somebody else laid out.
    """
    path = directory / MANIFEST_NAME
    tail = b""
    with reported("cannot read", path):
        if path.is_file():
            tail = read_end(path, _TAIL_BYTES)
    _, found, rest = tail.rpartition(_SOURCE)
    try:
        source, _ = json.JSONDecoder().raw_decode(str(rest, "utf-8")) if found else ({}, 0)
    except ValueError:
        source = {}
    named = source.get("path") if isinstance(source, dict) else None
    return named if isinstance(named, str) else read_manifest(directory).source.path


def _manifest(directory: Path, names: Sequence[str], issues: list[Issue]) -> Manifest | None:
    if MANIFEST_NAME not in names:
        return None
    try:
        return read_manifest(directory)
    except ReleaseInvalid as error:
        issues += error.issues or (Issue(MANIFEST_NAME, error.message, code="manifest"),)
        return None
