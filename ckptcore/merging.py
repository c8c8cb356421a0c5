"""Merge: plan the copies of a verified checkpoint, and write them as an unsharded safetensors directory.

Gather (the located checkpoint), decide (``rules``), act (``writing``). The output appears at its path whole or
not at all. Publishing it under a name is ``publish``'s.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ckptcore.collector import collector_paused
from ckptcore.errors import InvalidName, OutputExists
from ckptcore.mappings import config_of
from ckptcore.rules.located import LocatedCheckpoint
from ckptcore.rules.manifest import MANIFEST_NAME, Manifest
from ckptcore.rules.merge_plan import DEFAULT_MAX_SHARD_BYTES, MergePlan, plan_merge
from ckptcore.rules.output_layout import LaidOut, OutputLayout, laid_out
from ckptcore.rules.selection import Selection
from ckptcore.steps import tell, verb
from ckptcore.storage.copier import Digests
from ckptcore.storage.digests import sha256_of
from ckptcore.storage.progress import OnProgress, ignore_progress
from ckptcore.storage.refusals import reported
from ckptcore.storage.staging import commit, drop, forget, held
from ckptcore.writing import begin, finish, write_rest


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
    with collector_paused():
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
            writing = begin(plan, staged, digests=hashed, fsync=False)
            write_rest(writing, on_progress)
            manifest = finish(writing, attach=records)
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
