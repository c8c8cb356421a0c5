"""Merge: plan the copies of a verified checkpoint, and write them as an unsharded safetensors directory.

Gather (the located checkpoint), decide (``rules``), act (``storage.copier``). The output appears at its path whole or
not at all. Publishing it under a name is ``publish``'s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from ckptcore.clock import now
from ckptcore.errors import NotEnoughSpace, OutputExists, SourceChanged
from ckptcore.rules.located import LocatedCheckpoint
from ckptcore.rules.manifest import MANIFEST_NAME, FileRecord, Manifest, SourceRecord, tensor_records
from ckptcore.rules.merge_plan import DEFAULT_MAX_SHARD_BYTES, MergePlan, plan_merge
from ckptcore.rules.selection import Selection, select
from ckptcore.rules.shard_layout import INDEX_NAME
from ckptcore.storage.commit import remove_tree, sync_directory, write_file
from ckptcore.storage.copier import OnProgress, write_shards
from ckptcore.storage.digests import copy_file
from ckptcore.storage.local import fingerprint
from ckptcore.storage.refusals import reported
from ckptcore.storage.staging import clear, commit, held


def ignore_progress(size_bytes: int) -> None:
    """The progress callback of those who do not look."""


def plan(
    checkpoint: LocatedCheckpoint,
    *,
    selection: Selection = Selection(),
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
) -> MergePlan:
    """What a merge of ``checkpoint`` will do; nothing is written.

    Raises :class:`SelectionError` and :class:`UnsupportedDtype`, each with every tensor concerned.
    """
    outputs = select([tensor.spec for tensor in checkpoint.tensors], selection)
    return plan_merge(checkpoint, outputs, max_shard_bytes=max_shard_bytes)


def merge(
    plan: MergePlan,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    digests: bool = True,
    on_progress: OnProgress = ignore_progress,
) -> Manifest:
    """Write what ``plan`` says to the directory ``out``: shards, index and ``manifest.json``.

    ``out`` appears whole, in one rename, or not at all; with ``overwrite`` what was there is exchanged for it. Data is
    left to the kernel to write back, as ``cp`` does; a release is synced when it is published. Without ``digests`` the
    manifest records sizes alone. Raises :class:`OutputExists`, :class:`NotEnoughSpace`, :class:`SourceChanged`,
    :class:`StorageError`.
    """
    target = Path(os.path.abspath(out))
    if os.path.lexists(target) and not overwrite:
        raise OutputExists(f"{target} exists already; choose another output or pass --overwrite")
    staged = target.with_name(f".{target.name}.staging")
    with held(staged):
        try:
            clear(staged)
            manifest = write_output(plan, staged, digests=digests, on_progress=on_progress)
            commit(staged, target, overwrite=overwrite)
        except BaseException:
            remove_tree(staged)
            raise
    return manifest


def write_output(
    plan: MergePlan,
    directory: Path,
    *,
    attach: Sequence[Path] = (),
    digests: bool = True,
    fsync: bool = False,
    flow_run: str = "",
    on_progress: OnProgress = ignore_progress,
) -> Manifest:
    """Fill the empty ``directory`` with the shards, the index, the attached files, and last the manifest.

    The source's fingerprint is compared before the first and after the last byte: raises :class:`SourceChanged`.
    """
    check_space(directory, plan.bytes_out)
    check_source(plan)
    records = list(write_shards(plan, plan.shards, directory, digests=digests, fsync=fsync, on_progress=on_progress))
    if plan.index is not None:
        write_file(directory / INDEX_NAME, plan.index)
        records.append(FileRecord.of(INDEX_NAME, plan.index))
    records += [copy_file(path, directory / path.name) for path in attach]
    check_source(plan)
    manifest = Manifest(
        files=tuple(sorted(records)),
        tensors=tensor_records(plan),
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
