"""Reads what each file of a version says about itself: the metadata, and the headers of the rank files it names.

The gathering half of ``verify``: it opens files in a few threads and keeps, of each, only what a merge needs. A file
that is missing or at fault becomes issues; the file system's own refusals are collected and raised together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ckptcore.errors import DamagedFile, StorageError
from ckptcore.formats.metadata_file import parse_metadata
from ckptcore.formats.rank_file import parse_rank_file
from ckptcore.formats.safetensors_file import safetensors_rank_file
from ckptcore.rules.agreement import Claims, check_stored, check_unclaimed, claims_of, unclaimed_keys
from ckptcore.rules.fingerprint import FileStamp
from ckptcore.rules.index import build_index
from ckptcore.rules.issues import Issue
from ckptcore.rules.layout import metadata_lock_name, metadata_name, parse_rank_file_name
from ckptcore.rules.metadata import Metadata
from ckptcore.rules.stored import RankFile, StoredArray
from ckptcore.rules.tensors import Index, IndexedTensor, Piece
from ckptcore.rules.verification import FileFinding, FileState
from ckptcore.rules.versions import MISSING_METADATA, MISSING_RANK_FILE, Listing, Version
from ckptcore.storage.local import GONE, LocalReader
from ckptcore.storage.progress import OnProgress

MAX_THREADS = 8
"""Headers are parsed under the interpreter's lock; more threads only hide the latency of a network file system."""

MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class MetadataScan:
    """The version's metadata file and the index in it; both None where it is missing or cannot be read."""

    finding: FileFinding
    stamp: FileStamp | None
    metadata: Metadata | None
    index: Index | None
    issues: tuple[Issue, ...]


@dataclass(frozen=True, slots=True)
class RankFileScan:
    """One rank file: ``arrays`` are those of the pieces that were asked for, in that order."""

    finding: FileFinding
    stamp: FileStamp | None
    arrays: tuple[StoredArray | None, ...]
    issues: tuple[Issue, ...]
    notes: tuple[Issue, ...] = ()
    refusal: StorageError | None = None


@dataclass(frozen=True, slots=True)
class HeaderScan:
    """All rank files of a version. ``arrays[t][p]`` is piece p of tensor t of the index, None where no array is it."""

    findings: tuple[FileFinding, ...]
    stamps: tuple[FileStamp, ...]
    arrays: tuple[tuple[StoredArray | None, ...], ...]
    issues: tuple[Issue, ...]
    notes: tuple[Issue, ...]


def scan_metadata(version: Version, listing: Listing) -> MetadataScan:
    """Read ``{unique_id}.metadata`` of the version, whose directory is ``listing``. Raises :class:`StorageError`."""
    name = metadata_name(version.unique_id)
    if name not in listing.names:
        return _missing_metadata(version, listing)
    try:
        with LocalReader(version.directory, name) as reader:
            stamp = reader.stamp
            try:
                metadata = parse_metadata(reader, name)
            except DamagedFile as damage:
                return _damaged_metadata(version, stamp, damage)
    except DamagedFile as damage:
        return _damaged_metadata(version, None, damage)
    except StorageError as refusal:
        if refusal.errno not in GONE:
            raise
        return _missing_metadata(version, listing)
    index, issues = build_index(metadata, name, version.unique_id)
    state = FileState.DAMAGED if issues else FileState.SOUND
    return MetadataScan(FileFinding(name, state, stamp.size_bytes), stamp, metadata, index, issues)


def _missing_metadata(version: Version, listing: Listing) -> MetadataScan:
    name = metadata_name(version.unique_id)
    rank_files = len(listing.rank_files.get(version.unique_id, ()))
    found = [f"{rank_files} rank files of it"] if rank_files else []
    if metadata_lock_name(version.unique_id) in listing.names:
        found.append(f"{name}.lock, left by a save that did not finish")
    issue = Issue(version.label, f"{name} is missing", found=" and ".join(found), code=MISSING_METADATA)
    return MetadataScan(FileFinding(name, FileState.MISSING), None, None, None, (issue,))


def _damaged_metadata(version: Version, stamp: FileStamp | None, damage: DamagedFile) -> MetadataScan:
    name = metadata_name(version.unique_id)
    finding = FileFinding(name, FileState.DAMAGED, None if stamp is None else stamp.size_bytes)
    return MetadataScan(finding, stamp, None, None, _issues_of(version.label, name, damage))


def scan_rank_files(version: Version, index: Index, names: frozenset[str], on_progress: OnProgress) -> HeaderScan:
    """Read the header of every rank file that the index names, and hold each array against its piece.

    ``on_progress`` gets the size in bytes of each file that is done. Raises :class:`StorageError`, with every file
    that could not be read, unless it is only missing.
    """
    pieces = _pieces_by_file(index)
    claims = claims_of(index)

    def scan(name: str) -> RankFileScan:
        wanted = [(index.tensors[t], index.tensors[t].pieces[p]) for t, p in pieces[name].positions()]
        return _scan_rank_file(version, name, wanted, claims, names)

    arrays: list[list[StoredArray | None]] = [[None] * len(tensor.pieces) for tensor in index.tensors]
    findings, stamps, refusals = [], [], []
    issues, notes = list[Issue](), list[Issue]()
    with ThreadPoolExecutor(min(MAX_THREADS, 2 * (os.cpu_count() or 1)), "ckpt-headers") as pool:
        for scanned in pool.map(scan, index.files):
            for (t, p), array in zip(pieces[scanned.finding.name].positions(), scanned.arrays, strict=True):
                arrays[t][p] = array
            findings.append(scanned.finding)
            issues += scanned.issues
            notes += scanned.notes
            if scanned.stamp is not None:
                stamps.append(scanned.stamp)
            if scanned.refusal is not None:
                refusals.append(scanned.refusal)
            on_progress(scanned.finding.size_bytes or 0)
    require_read(version, refusals)
    return HeaderScan(tuple(findings), tuple(stamps), tuple(map(tuple, arrays)), tuple(issues), tuple(notes))


def require_read(version: Version, refusals: Sequence[StorageError]) -> None:
    """Raise one :class:`StorageError` for all ``refusals``, which say nothing about the version itself."""
    if refusals:
        raised = StorageError(
            f"{version.directory}: {version.label}: {len(refusals)} file(s) could not be read",
            [Issue("", refusal.message, code="unreadable") for refusal in refusals],
        )
        raised.errno = refusals[0].errno
        raise raised


@dataclass(frozen=True, slots=True)
class _Held:
    """The pieces of one file, by their positions in the index. Two lists, since there may be millions of them."""

    tensors: list[int] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)

    def positions(self) -> Iterator[tuple[int, int]]:
        return zip(self.tensors, self.pieces, strict=True)


def _pieces_by_file(index: Index) -> Mapping[str, _Held]:
    by_file = {file: _Held() for file in index.files}
    for t, tensor in enumerate(index.tensors):
        for p, piece in enumerate(tensor.pieces):
            held = by_file[piece.file]
            held.tensors.append(t)
            held.pieces.append(p)
    return by_file


def _scan_rank_file(
    version: Version,
    name: str,
    wanted: Sequence[tuple[IndexedTensor, Piece]],
    claims: Claims,
    names: frozenset[str],
) -> RankFileScan:
    where = rank_label(version, name)
    nothing = (None,) * len(wanted)
    missing = RankFileScan(
        FileFinding(name, FileState.MISSING),
        None,
        nothing,
        (Issue(where, f"{name} is missing", code=MISSING_RANK_FILE),),
    )
    if name not in names:
        return missing
    stamp = None
    try:
        with LocalReader(version.directory, name) as reader:
            stamp = reader.stamp
            rank_file = _parse(reader, name)
    except DamagedFile as damage:
        size_bytes = None if stamp is None else stamp.size_bytes
        return RankFileScan(
            FileFinding(name, FileState.DAMAGED, size_bytes), stamp, nothing, _issues_of(where, name, damage)
        )
    except StorageError as refusal:
        if refusal.errno in GONE:
            return missing
        return RankFileScan(FileFinding(name, FileState.DAMAGED), stamp, nothing, (), refusal=refusal)
    arrays, issues = list[StoredArray | None](), list[Issue]()
    for tensor, piece in wanted:
        array = rank_file.arrays.get(tensor.key)
        found = check_stored(tensor, piece, array)
        issues += found
        arrays.append(None if found else array)
    unclaimed = unclaimed_keys({tensor.key for tensor, _ in wanted}, rank_file)
    issues += check_unclaimed(claims, name, unclaimed, may_hold_more=version.component == "ema_state")
    state = FileState.DAMAGED if issues else FileState.SOUND
    placed = tuple(replace(issue, where=f"{where}: {issue.where}") for issue in issues)
    notes = _unclaimed_notes(where, name, unclaimed)
    return RankFileScan(FileFinding(name, state, stamp.size_bytes), stamp, tuple(arrays), placed, notes)


def _parse(reader: LocalReader, name: str) -> RankFile:
    return safetensors_rank_file(reader, name) if name.endswith(".safetensors") else parse_rank_file(reader, name)


def _unclaimed_notes(where: str, name: str, keys: Sequence[str]) -> tuple[Issue, ...]:
    if not keys:
        return ()
    what = f"{name} holds {len(keys)} key(s) that the metadata does not assign to it; they are left out"
    return (Issue(where, what, found=listed([repr(key) for key in keys]), code="unclaimed-keys"),)


def rank_label(version: Version, name: str) -> str:
    """The writer of a rank file for people: ``rank 2 of version 11``."""
    parsed = parse_rank_file_name(name)
    return version.label if parsed is None else f"rank {parsed.rank} of {version.label}"


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _issues_of(where: str, name: str, damage: DamagedFile) -> tuple[Issue, ...]:
    """The findings in one file, each told with the rank and version that the file belongs to."""
    if not damage.issues:
        return (Issue(f"{where}: {name}", damage.message, code="damaged-file"),)
    return tuple(
        replace(issue, where=f"{where}: {name}" if issue.where == name else f"{where}: {name}: {issue.where}")
        for issue in damage.issues
    )
