"""Is one version whole and true to itself: every file, piece, shape and dtype, before a byte of it is merged.

Gathers what the files say (``header_scan``, and ``deep_scan`` for payloads), decides by ``rules``, and gives a report
with every issue, and for a sound version where each tensor's bytes lie. Nothing is executed or unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptcore.collector import collector_paused
from ckptcore.completion import save_issues
from ckptcore.errors import SourceChanged, VersionDamaged, VersionIncomplete
from ckptcore.header_scan import HeaderScan, MetadataScan, listed, scan_metadata, scan_rank_files
from ckptcore.rules.agreement import resolved_dtype
from ckptcore.rules.coverage import Coverage, primary_pieces
from ckptcore.rules.fingerprint import SOURCE_CHANGED, FileStamp, Fingerprint
from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.layout import metadata_lock_name, parse_rank_file_name
from ckptcore.rules.located import LocatedCheckpoint, LocatedPiece, LocatedTensor, ReplicaPair
from ckptcore.rules.metadata import Metadata
from ckptcore.rules.stored import StoredArray
from ckptcore.rules.tensors import Index, IndexedTensor, TensorSpec
from ckptcore.rules.verification import VerificationReport
from ckptcore.rules.versions import MISSING_DIRECTORY, Listing, StateKind, Version, check_marks
from ckptcore.steps import tell, verb
from ckptcore.storage.local import Directories, fingerprint
from ckptcore.storage.progress import OnProgress, ignore_progress

if TYPE_CHECKING:
    from ckptcore.deep_scan import DeepScan


@dataclass(frozen=True, slots=True)
class Verified:
    """A version's report, and where the tensors of a sound one lie; ``located`` is None unless the report is sound."""

    report: VerificationReport
    located: LocatedCheckpoint | None

    @property
    def checkpoint(self) -> LocatedCheckpoint:
        """Where every tensor's bytes lie. Raises as :func:`require_sound` does, so that no unsound one is ever read."""
        if self.located is None:
            raise _refusal(self.report)
        return self.located


def verify(version: Version, *, deep: bool = False, on_progress: OnProgress = ignore_progress) -> Verified:
    """Check the version and report everything that is wrong with it; headers only, unless ``deep``.

    ``deep`` also reads every payload: SHA-256 of each file, NaN and Inf of each float tensor, replicas equal.
    ``on_progress`` gets bytes as they are dealt with: each rank file's size once, and every file's again where
    ``deep``. Raises :class:`StorageError` where a file cannot be read; what is missing or wrong is in the report.
    """
    return verify_listed(version, Directories(), deep=deep, on_progress=on_progress)


@verb("verify")
def verify_listed(
    version: Version, directories: Directories, *, deep: bool = False, on_progress: OnProgress = ignore_progress
) -> Verified:
    """:func:`verify` for one of many versions, whose directories may have been listed already."""
    tell(version=version.label, directory=version.directory)
    listing, marks = directories.listing(version.directory), directories.listing(version.marks_directory)
    if listing is None or marks is None:
        gone = Issue(version.label, "its directory is missing", version.directory, code=MISSING_DIRECTORY)
        return Verified(VerificationReport(version, (), 0, 0, (gone,), ()), None)
    with collector_paused():
        promised = scan_metadata(version, listing)
        if promised.metadata is None or promised.index is None:
            unread = in_order([*promised.issues, *check_marks(version, marks, ()), *save_issues(version, listing)])
            return Verified(VerificationReport(version, (promised.finding,), 0, 0, unread, ()), None)
        scan = scan_rank_files(version, promised.index, listing.names, on_progress)
        tensors, replicas, decided = _decide(promised.index, scan)
        if not promised.index.tensors and not promised.issues:
            decided = (*decided, Issue(version.label, "its metadata names no tensor", code="no-tensors"))
    payloads = None
    if deep:
        # Headers need no numpy, and importing it costs as much as verifying a small version.
        from ckptcore.deep_scan import scan_payloads

        readable = sorted(stamp.name for stamp in _stamps(promised, scan))
        payloads = scan_payloads(version, readable, tensors, replicas, on_progress)
    with collector_paused():
        source = Fingerprint(tuple(sorted(_stamps(promised, scan))))
        issues = [*promised.issues, *scan.issues, *decided, *check_marks(version, marks, _ranks(promised.index))]
        issues += [*save_issues(version, listing), *_changes(version, source)]
        notes = [*scan.notes, *_directory_notes(version, promised.index, listing), *_inferred_notes(promised.index)]
        report = _report(version, promised, scan, tensors, payloads, issues, notes)
        tell(state=report.state.kind.value, files=len(report.files), tensors=report.tensor_count, issues=len(issues))
        if not report.is_sound:
            return Verified(report, None)
        return Verified(report, _located(version, promised.metadata, source, tensors))


def require_sound(verified: Verified) -> Verified:
    """``verified`` itself, where its report is sound.

    Raises, with every issue of the report, :class:`SourceChanged` where the source moved under the verification,
    :class:`VersionIncomplete` where something is missing, else :class:`VersionDamaged`.
    """
    if not verified.report.is_sound:
        raise _refusal(verified.report)
    return verified


def _refusal(report: VerificationReport) -> SourceChanged | VersionIncomplete | VersionDamaged:
    state = report.state
    message = f"{report.version.directory}: {report.version.label} is {state.kind}: {len(state.reasons)} issue(s)"
    if any(issue.code == SOURCE_CHANGED for issue in state.reasons):
        return SourceChanged(message, state.reasons)
    if state.kind is StateKind.INCOMPLETE:
        return VersionIncomplete(message, state.reasons)
    return VersionDamaged(message, state.reasons)


def _ranks(index: Index) -> set[int]:
    return {parsed.rank for parsed in map(parse_rank_file_name, index.files) if parsed is not None}


def _decide(
    index: Index, scan: HeaderScan
) -> tuple[tuple[LocatedTensor, ...], tuple[ReplicaPair, ...], tuple[Issue, ...]]:
    """The tensors of which every piece was found, the replicas of those pieces, and the issues of all tensors."""
    tensors, replicas, issues = list[LocatedTensor](), list[ReplicaPair](), list[Issue]()
    coverage = Coverage()
    for tensor, found in zip(index.tensors, scan.arrays, strict=True):
        issues += coverage.check(tensor)
        dtype = resolved_dtype(tensor, (array for array in found if array is not None))
        if isinstance(dtype, Issue):
            # Where every piece is missing, that has been said already.
            issues += [dtype] if any(array is not None for array in found) or not tensor.pieces else []
            continue
        located = _locate(tensor, dtype, found)
        if located is not None:
            tensors.append(located)
            replicas += _replicas(tensor, located, found)
    return tuple(tensors), tuple(replicas), tuple(issues)


def _locate(tensor: IndexedTensor, dtype: str, found: Sequence[StoredArray | None]) -> LocatedTensor | None:
    primary = primary_pieces(tensor)
    if primary is not tensor.pieces:
        arrays = dict(zip(tensor.pieces, found, strict=True))
        found = [arrays[piece] for piece in primary]
    pieces = tuple(LocatedPiece(piece, array) for piece, array in zip(primary, found, strict=True) if array is not None)
    return LocatedTensor(TensorSpec(tensor.key, dtype, tensor.shape), pieces) if len(pieces) == len(primary) else None


def _replicas(tensor: IndexedTensor, located: LocatedTensor, found: Sequence[StoredArray | None]) -> list[ReplicaPair]:
    if len(located.pieces) == len(tensor.pieces):
        return []
    primary = {(chosen.piece.box, chosen.piece.flat): chosen for chosen in located.pieces}
    return [
        ReplicaPair(tensor.key, primary[piece.box, piece.flat], LocatedPiece(piece, array))
        for piece, array in zip(tensor.pieces, found, strict=True)
        if array is not None and piece != primary[piece.box, piece.flat].piece
    ]


def _stamps(promised: MetadataScan, scan: HeaderScan) -> list[FileStamp]:
    return [*scan.stamps, *([promised.stamp] if promised.stamp is not None else [])]


def _changes(version: Version, before: Fingerprint) -> tuple[Issue, ...]:
    after = fingerprint(version.directory, (stamp.name for stamp in before.files))
    return tuple(replace(change, where=f"{version.label}: {change.where}") for change in before.changes_to(after))


def _directory_notes(version: Version, index: Index, listing: Listing) -> list[Issue]:
    """Files beside those of the version that nothing will read."""
    notes = []
    for name in sorted(set(listing.rank_files.get(version.unique_id, ())) - set(index.files)):
        what = f"{name} is not named by the metadata: left by another save of this id, and not read"
        notes.append(Issue(version.label, what, code="stale-rank-file"))
    lock = metadata_lock_name(version.unique_id)
    if lock in listing.names:
        notes.append(
            Issue(version.label, f"{lock} was left by an interrupted save, and is harmless", code="stale-lock")
        )
    # A step or a plain directory may hold anything; a component's is for rank files alone.
    if version.component is not None and listing.strangers:
        what = f"{len(listing.strangers)} entries of its directory belong to no save"
        notes.append(Issue(version.label, what, found=listed(listing.strangers), code="extra-files"))
    return notes


def _inferred_notes(index: Index) -> list[Issue]:
    inferred = [tensor.key for tensor in index.tensors if not tensor.shape_is_recorded]
    if not inferred:
        return []
    what = (
        f"the metadata records no global shapes (before Paddle 3.2): those of {len(inferred)} tensor(s) "
        "are the bounds of their pieces"
    )
    return [Issue("", what, code="inferred-shape")]


def _report(
    version: Version,
    promised: MetadataScan,
    scan: HeaderScan,
    tensors: Sequence[LocatedTensor],
    payloads: DeepScan | None,
    issues: Sequence[Issue],
    notes: Sequence[Issue],
) -> VerificationReport:
    files = (promised.finding, *scan.findings)
    if payloads is not None:
        files = tuple(replace(found, sha256=payloads.digests.get(found.name, "")) for found in files)
        issues, notes = [*issues, *payloads.issues], [*notes, *payloads.notes]
    return VerificationReport(
        version=version,
        files=files,
        tensor_count=len(promised.index.tensors) if promised.index is not None else 0,
        tensor_bytes=sum(tensor.spec.size_bytes for tensor in tensors),
        issues=in_order(issues),
        notes=in_order(notes),
        deep=None if payloads is None else payloads.findings,
    )


def _located(
    version: Version, metadata: Metadata, source: Fingerprint, tensors: tuple[LocatedTensor, ...]
) -> LocatedCheckpoint:
    return LocatedCheckpoint(
        directory=version.directory,
        step=version.step,
        unique_id=version.unique_id,
        component=version.component,
        fingerprint=source,
        tensors=tensors,
        nested_keys=metadata.nested_keys,
        paddle_format=_paddle_format(metadata),
    )


def _paddle_format(metadata: Metadata) -> str:
    """The first Paddle release whose metadata has the fields that this one has."""
    if any(place.shape is not None for stored in metadata.storage.values() for place in stored.places):
        return "3.3"
    if any(record.global_shape is not None for records in metadata.tensors.values() for record in records):
        return "3.2"
    has_dtype = any(record.dtype is not None for records in metadata.tensors.values() for record in records)
    return "3.0" if has_dtype else "2.6"
