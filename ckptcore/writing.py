"""Write what a plan says into a held staging directory: begin, merge shards, finish.

:func:`begin` prepares the place of the shards and keeps those that a killed process finished there.
:func:`merge_shards` writes some of them: in any process, on any machine that sees the directory, many at once, and a
shard done twice does no harm. :func:`finish` takes the place away from whoever still writes, and writes the manifest
last.

Staging, lock and the move to where readers look are the callers'. How a plan travels to another machine is
``sharing``'s.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ckptcore.clock import now
from ckptcore.errors import NotEnoughSpace, SourceChanged, StorageError
from ckptcore.rules.finished_shard import FinishedShard, finished_shard, record_name
from ckptcore.rules.issues import Issue
from ckptcore.rules.layout import metadata_name
from ckptcore.rules.manifest import MANIFEST_NAME, FileRecord, Manifest, SourceRecord, tensor_records
from ckptcore.rules.merge_plan import MergePlan
from ckptcore.rules.shard_layout import INDEX_NAME
from ckptcore.steps import tell
from ckptcore.storage.commit import remove_tree, sync_directory, write_file
from ckptcore.storage.copier import Digests, write_shards
from ckptcore.storage.digests import copy_file, sha256_of
from ckptcore.storage.leases import held_if_possible
from ckptcore.storage.local import fingerprint
from ckptcore.storage.parts import aside_of, close, owned, put, put_document, take_over
from ckptcore.storage.progress import OnProgress, ignore_progress
from ckptcore.storage.refusals import reported
from ckptcore.storage.regular_files import lies_at, read_document
from ckptcore.storage.staging import clear

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Writing:
    """An output that was begun: its ``staging``, the directory of its finished ``parts``, and how shards are written.

    ``rest`` are the names of the shards that were not finished when it was begun, in order.
    """

    plan: MergePlan
    staging: Path
    parts: Path
    digests: Digests
    fsync: bool
    rest: tuple[str, ...]

    @property
    def kept_bytes(self) -> int:
        """The data of the shards that an earlier process had finished."""
        rest = set(self.rest)
        return sum(shard.data_bytes for shard in self.plan.shards if shard.name not in rest)


def begin(plan: MergePlan, staging: Path, *, digests: Digests, fsync: bool) -> Writing:
    """Prepare the held directory ``staging`` for the shards of ``plan``.

    What a killed process finished there of the same plan is kept, everything else is cleared; nobody who still works
    for that process can put anything there from now on. Raises :class:`NotEnoughSpace`.
    """
    parts = take_over(staging)
    kept = _kept(plan, staging, parts, digests, is_synced=fsync)
    clear(staging, keep={parts.name, *kept})
    clear(parts, keep={file for name in kept for file in (name, record_name(name))})
    if kept:
        _log.info("%s: going on with %d of %d shards finished", staging, len(kept), len(plan.shards))
    rest = [shard for shard in plan.shards if shard.name not in kept]
    rest_bytes = sum(shard.size_bytes for shard in rest)
    tell(shards=len(rest), bytes=rest_bytes)
    check_space(staging, rest_bytes)
    return Writing(plan, staging, parts, digests, fsync, tuple(shard.name for shard in rest))


def _kept(plan: MergePlan, staging: Path, parts: Path, digests: Digests, *, is_synced: bool) -> set[str]:
    """The shards that are finished. Where they were not synced they are read again, and must have their digests."""
    finished = _finished(plan, [shard.name for shard in plan.shards], parts, digests)
    kept = {name for name, shard in finished.items() if _is_whole(staging, parts, shard, is_synced=is_synced)}
    with reported("cannot list", parts):
        left = os.listdir(parts)
    if left and not kept:
        _log.info("%s: starting over: nothing of this plan and source is finished there", staging)
    return kept


def _finished(plan: MergePlan, names: Iterable[str], parts: Path, digests: Digests) -> dict[str, FinishedShard]:
    """What the records of the named shards say, as far as there are any of this plan."""
    finished = {}
    for name in names:
        record = parts / record_name(name)
        if lies_at(record) and (shard := finished_shard(read_document(record), name, plan.digest, digests)) is not None:
            finished[name] = shard
    return finished


def _is_whole(staging: Path, parts: Path, shard: FinishedShard, *, is_synced: bool) -> bool:
    # In the staging itself where a process was killed in `finish`.
    paths = [place / shard.record.name for place in (parts, staging)]
    with reported("cannot look at", paths[0]):
        path = next((path for path in paths if path.is_file()), None)
        if path is None or path.stat().st_size != shard.record.size_bytes:
            return False
    return is_synced or sha256_of(path, ignore_progress) == shard.record


def merge_shards(
    plan: MergePlan,
    names: Collection[str],
    parts: Path,
    *,
    digests: Digests,
    fsync: bool,
    on_progress: OnProgress = ignore_progress,
) -> Mapping[str, str]:
    """Write the shards ``names`` of ``plan`` into ``parts``, where each appears when it is whole; each one's SHA-256.

    ``plan`` may lack other shards. What is finished there already is left as it is. Several processes may be at the
    same shard: each writes aside, and what they write is the same. Raises :class:`SourceChanged` where the source is
    not what was planned, :class:`Busy` where another process has taken the staging over or finished it,
    :class:`WorkerUnfit`, :class:`NotEnoughSpace`, :class:`StorageError` and :class:`DamagedFile`.
    """
    asides: dict[str, Path] = {}

    def path_of(name: str) -> Path:
        asides[name] = aside_of(parts, name)
        return asides[name]

    def note(shard: FinishedShard) -> None:
        name = shard.record.name
        put(asides[name], parts / name)
        put_document(parts / record_name(name), shard.to_bytes(plan.digest, digests))
        finished[name] = shard

    with owned(parts), held_if_possible(Path(plan.directory) / metadata_name(plan.unique_id)):
        finished = _finished(plan, names, parts, digests)
        rest = [shard for shard in plan.shards if shard.name in names and shard.name not in finished]
        check_source(plan)
        try:
            write_shards(plan, rest, path_of, digests=digests, fsync=fsync, on_progress=on_progress, on_shard=note)
        except BaseException:
            # Whoever does them instead needs the room.
            for aside in asides.values():
                with suppress(OSError):
                    aside.unlink()
            raise
    return {name: shard.record.sha256 for name, shard in sorted(finished.items())}


def write_rest(writing: Writing, on_progress: OnProgress) -> None:
    """Write what was not finished when it was begun, here and now; ``on_progress`` is told of the finished as well."""
    on_progress(writing.kept_bytes)
    merge_shards(
        writing.plan,
        set(writing.rest),
        writing.parts,
        digests=writing.digests,
        fsync=writing.fsync,
        on_progress=on_progress,
    )


def finish(writing: Writing, *, attach: Sequence[tuple[Path, FileRecord]] = (), flow_run: str = "") -> Manifest:
    """Make an output of the finished shards: the index, the attached files, and last the manifest.

    Nobody can put shards there any more. The source's fingerprint is compared after its last byte was read: raises
    :class:`SourceChanged`. Raises :class:`Busy` as :func:`merge_shards` does, and :class:`StorageError`, with every
    shard that is missing, where some are.
    """
    plan, staging = writing.plan, writing.staging
    parts = close(writing.parts)
    finished = _finished(plan, [shard.name for shard in plan.shards], parts, writing.digests)
    _require_all(writing, parts, finished)
    for name in finished:
        if lies_at(parts / name):
            put(parts / name, staging / name)
    records = [shard.record for shard in finished.values()]
    if plan.index is not None:
        write_file(staging / INDEX_NAME, plan.index)
        records.append(FileRecord.of(INDEX_NAME, plan.index))
    records += [copy_file(path, staging / path.name, known) for path, known in attach]
    check_source(plan)
    tensor_digests = {key: digest for shard in finished.values() for key, digest in shard.tensors.items()}
    overflows = {key: count for shard in finished.values() for key, count in shard.overflows.items()}
    for key, count in sorted(overflows.items()):
        _log.warning("tensor %r: %s finite value(s) became infinite when they were cast", key, f"{count:,}")
    manifest = Manifest(
        files=tuple(sorted(records)),
        tensors=tensor_records(plan, tensor_digests, overflows),
        source=SourceRecord(
            path=plan.directory,
            step=plan.step,
            unique_id=plan.unique_id,
            component=plan.component,
            fingerprint=plan.fingerprint.digest,
            paddle_format=plan.paddle_format,
        ),
        plan_digest=plan.digest,
        software=software(),
        flow_run=flow_run,
        created_at=now(),
    )
    if writing.fsync:
        sync_directory(staging)
    write_file(staging / MANIFEST_NAME, manifest.to_bytes())
    if writing.fsync:
        sync_directory(staging)
    remove_tree(parts)
    return manifest


def _require_all(writing: Writing, parts: Path, finished: Mapping[str, FinishedShard]) -> None:
    missing = [
        Issue(
            shard.name, "is not there whole", f"{shard.size_bytes:,} bytes, and a record of them", code="missing-shard"
        )
        for shard in writing.plan.shards
        if shard.name not in finished
        or finished[shard.name].record.size_bytes != shard.size_bytes
        or not _is_whole(writing.staging, parts, finished[shard.name], is_synced=True)
    ]
    if missing:
        raise StorageError(f"{writing.staging}: {len(missing)} shard(s) are missing", missing)


def check_source(plan: MergePlan) -> None:
    """Raise :class:`SourceChanged`, naming each file, where the source is not what was verified."""
    names = [stamp.name for stamp in plan.fingerprint.files]
    changes = plan.fingerprint.changes_to(fingerprint(Path(plan.directory), names))
    if changes:
        raise SourceChanged(
            f"{plan.directory}: {len(changes)} file(s) changed since they were verified; nothing was published", changes
        )


def check_space(directory: Path, needed: int) -> None:
    """Raise :class:`NotEnoughSpace` where the disk that holds ``directory`` has less than ``needed`` bytes free."""
    with reported("cannot ask for the free space of", directory):
        disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise NotEnoughSpace(f"{directory}: not enough disk space: expected {needed:,} bytes free, found {free:,}")


def software() -> Mapping[str, str]:
    """The versions that shape a release, read without importing any of them."""
    return {name: metadata.version(name) for name in ("ckptcore", "numpy", "prefect")}
