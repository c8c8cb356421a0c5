"""Validate: re-read an output or release as a consumer would, and hold it against what it promises to be."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ckptcore.errors import CheckpointError, ReleaseInvalid, ReleaseNotFound
from ckptcore.formats.safetensors_file import parse_safetensors
from ckptcore.merging import ignore_progress
from ckptcore.rules.issues import Issue
from ckptcore.rules.manifest import MANIFEST_NAME, Manifest, parse_manifest
from ckptcore.rules.shapes import Expectation
from ckptcore.rules.shard_layout import INDEX_NAME
from ckptcore.rules.tensors import DTYPES, TensorSpec
from ckptcore.rules.validation import FoundOutput, FoundShard, ValidationReport, check_output
from ckptcore.storage.copier import OnProgress
from ckptcore.storage.digests import sha256_of
from ckptcore.storage.local import LocalReader
from ckptcore.storage.refusals import reported

_DTYPE_NAMES = {dtype.safetensors: dtype.name for dtype in DTYPES.values() if dtype.safetensors}


def validate(
    path: str | os.PathLike[str],
    *,
    expectations: Sequence[Expectation] = (),
    on_progress: OnProgress = ignore_progress,
) -> ValidationReport:
    """Re-read the directory ``path``, every byte once, and report every mismatch.

    Checked are sizes and SHA-256 against the manifest, headers against the manifest's tensor table and the index, names
    given twice, and shapes and dtypes against ``expectations``. A directory without a manifest is checked against its
    index and the expectations, and the report notes it. Raises :class:`ReleaseNotFound` where there is no directory.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise ReleaseNotFound(f"{directory}: no such directory")
    issues: list[Issue] = []
    names = _plain_files(directory, issues)
    manifest = _manifest(directory, names, issues)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        files = tuple(pool.map(lambda name: sha256_of(directory / name, on_progress), names))
    shards = tuple(_shards(directory, names, issues))
    index = (directory / INDEX_NAME).read_bytes() if INDEX_NAME in names else None
    found = FoundOutput(files, shards, index, manifest)
    notes: list[Issue] = []
    if manifest is None and not issues:
        notes.append(Issue(MANIFEST_NAME, "is not here; digests and provenance are not checked", code="no-manifest"))
    return ValidationReport(
        path=str(directory),
        files=len(files),
        tensors=len(found.specs()),
        size_bytes=sum(record.size_bytes for record in files),
        issues=tuple(sorted({*issues, *check_output(found, expectations)})),
        notes=tuple(notes),
    )


def require_valid(report: ValidationReport) -> None:
    """Raise :class:`ReleaseInvalid` with every issue of the report, if it has any."""
    if report.issues:
        raise ReleaseInvalid(f"{report.path}: {len(report.issues)} mismatch(es)", report.issues)


def specs_of(path: str | os.PathLike[str]) -> tuple[TensorSpec, ...]:
    """The tensors of a directory of safetensors files, from their headers alone, sorted by key."""
    directory, issues = Path(path), list[Issue]()
    if not directory.is_dir():
        raise ReleaseNotFound(f"{directory}: no such directory")
    shards = tuple(_shards(directory, _plain_files(directory, issues), issues))
    if issues or not shards:
        raise ReleaseInvalid(f"{directory}: no readable safetensors files", issues)
    return FoundOutput((), shards, None, None).specs()


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a finished output. Raises :class:`ReleaseInvalid` where it is missing or wrong."""
    path = directory / MANIFEST_NAME
    if not path.is_file():
        raise ReleaseInvalid(f"{directory}: has no {MANIFEST_NAME}; only an output of ckpt merge can be published")
    with reported("cannot read", path):
        return parse_manifest(path.read_bytes(), str(path))


def _plain_files(directory: Path, issues: list[Issue]) -> list[str]:
    """The names of the plain files, sorted; anything else than a file is an issue. Dot files are the registry's own."""
    names = []
    with reported("cannot list", directory), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_file(follow_symlinks=False):
                names.append(entry.name)
            else:
                issues.append(Issue(entry.name, "is no plain file", code="file-kind"))
    return sorted(names)


def _manifest(directory: Path, names: Iterable[str], issues: list[Issue]) -> Manifest | None:
    if MANIFEST_NAME not in names:
        return None
    try:
        return read_manifest(directory)
    except ReleaseInvalid as error:
        issues += error.issues or (Issue(MANIFEST_NAME, error.message, code="manifest"),)
        return None


def _shards(directory: Path, names: Iterable[str], issues: list[Issue]) -> Iterable[FoundShard]:
    for name in names:
        if not name.endswith(".safetensors"):
            continue
        try:
            with LocalReader(directory, name) as reader:
                header = parse_safetensors(reader, name)
        except CheckpointError as error:
            issues += error.issues or (Issue(name, error.message, code="shard"),)
            continue
        specs, unknown = [], []
        for tensor in header.tensors:
            dtype = _DTYPE_NAMES.get(tensor.dtype)
            if dtype is None:
                unknown.append(
                    Issue(f"tensor {tensor.name!r}", f"unknown dtype {tensor.dtype!r} in {name}", code="dtype")
                )
            else:
                specs.append(TensorSpec(tensor.name, dtype, tensor.shape))
        issues += unknown
        yield FoundShard(name, tuple(specs))
