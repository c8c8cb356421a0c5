"""Merge: plan the copies of a verified checkpoint, and write them as an unsharded safetensors directory.

Gather (the located checkpoint), decide (``rules``), act (``storage.copier``). The output appears at its path whole or
not at all. Publishing it under a name is ``publish``'s.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from ckptcore.clock import now
from ckptcore.errors import InvalidName, NotEnoughSpace, OutputExists, SourceChanged
from ckptcore.mappings import config_of
from ckptcore.rules.journal import JOURNAL_NAME, FinishedShard, finished_shards, journal_head
from ckptcore.rules.layout import metadata_name
from ckptcore.rules.located import LocatedCheckpoint
from ckptcore.rules.manifest import MANIFEST_NAME, FileRecord, Manifest, SourceRecord, tensor_records
from ckptcore.rules.merge_plan import DEFAULT_MAX_SHARD_BYTES, MergePlan, plan_merge
from ckptcore.rules.output_layout import LaidOut, OutputLayout, laid_out
from ckptcore.rules.selection import Selection
from ckptcore.rules.shard_layout import INDEX_NAME
from ckptcore.steps import tell, verb
from ckptcore.storage.commit import append_line, sync_directory, write_file
from ckptcore.storage.copier import Digests, write_shards
from ckptcore.storage.digests import copy_file, sha256_of
from ckptcore.storage.leases import held_if_possible
from ckptcore.storage.local import fingerprint
from ckptcore.storage.progress import OnProgress, ignore_progress
from ckptcore.storage.refusals import reported
from ckptcore.storage.regular_files import read_document
from ckptcore.storage.staging import clear, commit, drop, forget, held

_log = logging.getLogger(__name__)


@verb("plan")
def plan(
    checkpoint: LocatedCheckpoint,
    *,
    selection: Selection = Selection(),
    layout: OutputLayout = OutputLayout(),
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
) -> MergePlan:
    """What a merge of ``checkpoint`` will do; nothing is written.

    Raises :class:`SelectionError`, :class:`MappingError` and :class:`UnsupportedDtype`, each with every tensor
    concerned.
    """
    made = lay_out(checkpoint, selection=selection, layout=layout)
    planned = plan_merge(checkpoint, made.outputs, max_shard_bytes=max_shard_bytes, notes=made.notes)
    tell(plan=planned.digest, shards=len(planned.shards), planned_bytes=planned.bytes_out)
    return planned


def lay_out(checkpoint: LocatedCheckpoint, *, selection: Selection, layout: OutputLayout) -> LaidOut:
    """The tensors that a release of ``checkpoint`` holds, and what each is made of. Raises as :func:`plan` does."""
    config = config_of(checkpoint.directory, layout)
    return laid_out(checkpoint.tensors, selection, layout, config)


@verb("merge")
def merge(
    plan: MergePlan,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    digests: bool = True,
    attach: Sequence[Path] = (),
    on_progress: OnProgress = ignore_progress,
) -> Manifest:
    """Write what ``plan`` says to the directory ``out``: shards, index and ``manifest.json``.

    ``out`` appears whole, in one rename, or not at all; with ``overwrite`` what was there is exchanged for it. Data is
    left to the kernel to write back, as ``cp`` does; a release is synced when it is published. Without ``digests`` the
    manifest records sizes alone. The files to ``attach`` are copied in. Raises :class:`OutputExists`,
    :class:`NotEnoughSpace`, :class:`SourceChanged`, :class:`StorageError`.
    """
    if "\0" in os.fspath(out):
        raise InvalidName(f"output {os.fspath(out)!r} contains a NUL character")
    target = Path(os.path.abspath(out))
    _keep_the_source(plan, target)
    staged = target.with_name(f".{target.name}.staging")
    if os.path.lexists(target) and not overwrite:
        forget(staged)
        raise OutputExists(f"{target} exists already; choose another output or pass --overwrite")
    _require_output(target)
    with held(staged):
        try:
            hashed = Digests.SHARDS if digests else Digests.NONE
            records = tuple((path, sha256_of(path, ignore_progress)) for path in attach)
            manifest = write_output(plan, staged, attach=records, digests=hashed, on_progress=on_progress)
            commit(staged, target, overwrite=overwrite)
        except BaseException:
            drop(staged)
            raise
    return manifest


def _require_output(target: Path) -> None:
    """Raise :class:`OutputExists` where ``target`` holds anything but an earlier output: nobody meant to lose it."""
    if not os.path.lexists(target):
        return
    with reported("cannot list", target):
        is_plain = target.is_dir() and not target.is_symlink()
        names = sorted(os.listdir(target)) if is_plain else []
    if not is_plain:
        raise OutputExists(f"{target} is no directory; --overwrite replaces an earlier output and nothing else")
    if names and MANIFEST_NAME not in names:
        held = f"{target} holds {names[0]!r} and no {MANIFEST_NAME}"
        raise OutputExists(f"{held}; --overwrite replaces an earlier output and nothing else")


def _keep_the_source(plan: MergePlan, target: Path) -> None:
    """Raise :class:`OutputExists` where replacing ``target`` would delete what is being merged."""
    source, real_target = Path(plan.directory), Path(os.path.realpath(target.parent), target.name)
    if real_target in (source, *source.parents):
        raise OutputExists(f"{target} holds the source, {source}; choose another output")


def write_output(
    plan: MergePlan,
    directory: Path,
    *,
    attach: Sequence[tuple[Path, FileRecord]] = (),
    digests: Digests = Digests.SHARDS,
    fsync: bool = False,
    flow_run: str = "",
    on_progress: OnProgress = ignore_progress,
) -> Manifest:
    """Fill the held staging ``directory`` with the shards, the index, the attached files, and last the manifest.

    What a killed process left there of the same plan is gone on with; anything else is cleared first. The
    source's fingerprint is compared before the first and after the last byte: raises :class:`SourceChanged`.
    """
    head = journal_head(plan.digest, digests)
    finished = {shard.record.name: shard for shard in kept_shards(plan, directory, head, is_synced=fsync)}
    rest = [shard for shard in plan.shards if shard.name not in finished]
    on_progress(sum(shard.size_bytes - len(shard.header) for shard in plan.shards if shard.name in finished))
    check_space(directory, sum(shard.size_bytes for shard in rest))
    tell(shards=len(rest), bytes=sum(shard.size_bytes for shard in rest))
    check_source(plan)
    journal = directory / JOURNAL_NAME
    if not journal.exists():
        append_line(journal, head)

    def note(shard: FinishedShard) -> None:
        finished[shard.record.name] = shard
        append_line(journal, shard.to_line())

    with held_if_possible(Path(plan.directory) / metadata_name(plan.unique_id)):
        write_shards(plan, rest, directory, digests=digests, fsync=fsync, on_progress=on_progress, on_shard=note)
    records = [shard.record for shard in finished.values()]
    if plan.index is not None:
        write_file(directory / INDEX_NAME, plan.index)
        records.append(FileRecord.of(INDEX_NAME, plan.index))
    records += [copy_file(path, directory / path.name, known) for path, known in attach]
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
    write_file(directory / MANIFEST_NAME, manifest.to_bytes())
    if fsync:
        sync_directory(directory)
    return manifest


def kept_shards(plan: MergePlan, directory: Path, head: bytes, *, is_synced: bool) -> tuple[FinishedShard, ...]:
    """The shards in ``directory`` that an earlier, killed run of the same plan finished; all else there is deleted.

    Where they were not synced when they were noted, they are read again and kept only with the digest that was noted.
    """
    journal = directory / JOURNAL_NAME
    noted = finished_shards(read_document(journal), head) if journal.exists() else ()
    if noted is None:
        _log.info("%s: starting over: what was left is of another plan or source", directory)
    kept = tuple(shard for shard in noted or () if _is_whole(directory, shard, is_synced=is_synced))
    clear(directory, keep={JOURNAL_NAME, *(shard.record.name for shard in kept)} if noted is not None else set())
    if kept:
        _log.info("%s: going on with %d of %d shards finished", directory, len(kept), len(plan.shards))
    return kept


def _is_whole(directory: Path, shard: FinishedShard, *, is_synced: bool) -> bool:
    path = directory / shard.record.name
    if not path.is_file() or path.stat().st_size != shard.record.size_bytes:
        return False
    return is_synced or sha256_of(path, ignore_progress) == shard.record


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
