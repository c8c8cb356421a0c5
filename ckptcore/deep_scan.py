"""Reads the payloads of a version: the SHA-256 of every file, NaN and Inf, and whether replicas are equal.

The gathering half of ``verify --deep``, over what the headers located. It streams; memory is a few blocks a thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ckptcore.errors import DamagedFile, StorageError
from ckptcore.formats.payload_scan import NonFiniteCount, comparable, first_difference, has_non_finite, scan_file
from ckptcore.header_scan import rank_label, require_read
from ckptcore.rules.issues import Issue
from ckptcore.rules.located import LocatedTensor, ReplicaPair
from ckptcore.rules.stored import StoredArray
from ckptcore.rules.verification import DeepFindings, NonFinite
from ckptcore.rules.versions import Version
from ckptcore.storage.local import LocalReader
from ckptcore.storage.progress import OnProgress

MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class DeepScan:
    """What the payloads showed: the SHA-256 of each file by name, the findings, and what is wrong or worth a note."""

    digests: Mapping[str, str]
    findings: DeepFindings
    issues: tuple[Issue, ...]
    notes: tuple[Issue, ...]


@dataclass(frozen=True, slots=True)
class _FileResult:
    name: str
    sha256: str = ""
    size_bytes: int = 0
    counts: tuple[NonFiniteCount, ...] = ()
    issues: tuple[Issue, ...] = ()
    refusal: StorageError | None = None


def scan_payloads(
    version: Version,
    names: Sequence[str],
    tensors: Sequence[LocatedTensor],
    replicas: Sequence[ReplicaPair],
    on_progress: OnProgress,
) -> DeepScan:
    """Read the files ``names``, which must be whole, and count over the pieces of ``tensors`` in them.

    ``on_progress`` gets the number of bytes of each file that is done. Raises :class:`StorageError`.
    """
    floats = _floats_by_file(tensors)
    digests: dict[str, str] = {}
    totals: dict[str, list[int]] = {}
    issues, notes, refusals = list[Issue](), list[Issue](), list[StorageError]()

    def scan(name: str) -> _FileResult:
        return _scan_file(version, name, [(array, dtype) for _, array, dtype in floats.get(name, ())])

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "ckpt-deep") as pool:
        for result in pool.map(scan, names):
            on_progress(result.size_bytes)
            digests[result.name] = result.sha256
            issues += result.issues
            if result.refusal is not None:
                refusals.append(result.refusal)
            for (key, _, _), count in zip(floats.get(result.name, ()), result.counts, strict=False):
                total = totals.setdefault(key, [0, 0])
                total[0] += count.nan
                total[1] += count.inf
        for issue, refusal in pool.map(lambda pair: _compare(version, pair), replicas):
            if refusal is not None:
                refusals.append(refusal)
            if issue is not None:
                (notes if issue.code == NOT_COMPARED else issues).append(issue)
    require_read(version, refusals)
    found = tuple(NonFinite(key, nan, inf) for key, (nan, inf) in sorted(totals.items()) if nan or inf)
    floats_checked = sum(has_non_finite(tensor.spec.dtype) for tensor in tensors)
    compared = len(replicas) - len(notes)
    return DeepScan(digests, DeepFindings(found, floats_checked, compared), tuple(issues), tuple(notes))


def _floats_by_file(tensors: Sequence[LocatedTensor]) -> Mapping[str, list[tuple[str, StoredArray, str]]]:
    by_file: dict[str, list[tuple[str, StoredArray, str]]] = {}
    for tensor in tensors:
        if has_non_finite(tensor.spec.dtype):
            for located in tensor.pieces:
                by_file.setdefault(located.piece.file, []).append((tensor.spec.key, located.array, tensor.spec.dtype))
    return by_file


def _scan_file(version: Version, name: str, arrays: Sequence[tuple[StoredArray, str]]) -> _FileResult:
    try:
        with LocalReader(version.directory, name) as reader:
            sha256, counts = scan_file(reader, arrays)
    except DamagedFile as damage:
        return _FileResult(name, issues=(Issue(rank_label(version, name), damage.message, code="damaged-file"),))
    except StorageError as refusal:
        return _FileResult(name, refusal=refusal)
    return _FileResult(name, sha256, reader.size_bytes, counts)


NOT_COMPARED = "replica-not-compared"


def _compare(version: Version, pair: ReplicaPair) -> tuple[Issue | None, StorageError | None]:
    primary, replica = pair.primary, pair.replica
    where, place = f"tensor {pair.key!r}", f"{replica.piece.box} in {replica.piece.file}"
    if not comparable(primary.array, replica.array):
        what = f"the replica of {place} was not compared: it is stored in another memory order"
        return Issue(where, what, code=NOT_COMPARED), None
    try:
        with (
            LocalReader(version.directory, primary.piece.file) as reader,
            LocalReader(version.directory, replica.piece.file) as other_reader,
        ):
            position = first_difference(reader, primary.array, other_reader, replica.array)
    except DamagedFile as damage:
        return Issue(where, damage.message, code="damaged-file"), None
    except StorageError as refusal:
        return None, refusal
    if position is None:
        return None, None
    what = f"the replica of {place} differs from {primary.piece.file}, first at stored element {position:,}"
    return Issue(where, what, code="replica-differs"), None
