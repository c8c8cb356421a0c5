"""Publish: a registry of immutable releases and movable aliases, each step atomic, nothing done twice.

``stage`` writes a release aside, ``publish_staged`` makes it visible and moves the alias last; ``publish`` does both
for an output that was merged before. Which names mean what is ``rules.release``'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckptcore.errors import InvalidName, NotEnoughSpace, ReleaseNotFound, SourceChanged
from ckptcore.merging import check_space, ignore_progress, write_output
from ckptcore.registry import Shelf, history_of, is_release, make_shelf, move_alias, shelf_of
from ckptcore.rules.manifest import MANIFEST_NAME, Manifest, release_identity
from ckptcore.rules.merge_plan import MergePlan
from ckptcore.rules.release import DEFAULT_ALIAS, check_name, is_published, release_name
from ckptcore.storage.commit import locked, remove_tree, sync_directory, write_file
from ckptcore.storage.copier import Digests, OnProgress
from ckptcore.storage.digests import copy_file, sha256_of
from ckptcore.storage.staging import clear, commit, held
from ckptcore.validating import read_manifest, require_valid, validate

# What a serving engine wants beside the weights, by Hugging Face's names.
COMPANION_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "preprocessor_config.json",
)


@dataclass(frozen=True, slots=True)
class Staged:
    """A release that is written but not visible, or ``already_published``; ``path`` is where it lies now."""

    registry: str
    name: str
    release: str
    path: str
    already_published: bool


@dataclass(frozen=True, slots=True)
class Published:
    """A visible release; ``alias`` points to it. ``did_work`` is False where all of it stood already."""

    registry: str
    name: str
    release: str
    path: str
    alias: str
    did_work: bool

    def to_json(self) -> dict[str, object]:
        return {field: getattr(self, field) for field in self.__slots__}


def companions_of(directory: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The configuration and tokenizer files beside a version: in its directory or, for a component, in its step's."""
    here = Path(directory)
    places = (here, here.parent) if here.parent.name.startswith("checkpoint-") else (here,)
    found = {path.name: path for place in places for name in COMPANION_FILES if (path := place / name).is_file()}
    return tuple(found[name] for name in sorted(found))


def stage(
    plan: MergePlan,
    registry: str | os.PathLike[str],
    name: str,
    *,
    attach: Sequence[str | os.PathLike[str]] = (),
    flow_run: str = "",
    on_progress: OnProgress = ignore_progress,
) -> Staged:
    """Merge ``plan`` into a release of ``name`` that nobody sees yet; nothing is written where it exists already.

    The release's name follows from the plan, its source included, and the attached files. What another run left staged
    and finished is kept, and unfinished is cleared. Raises :class:`Busy` where another process is writing the same.
    """
    shelf = shelf_of(registry, name)
    attached = _attachments(attach)
    records = tuple(sha256_of(path, ignore_progress) for path in attached)
    release = release_name(plan.step, plan.unique_id, release_identity(plan.digest, records))

    def write(staging: Path) -> None:
        write_output(
            plan,
            staging,
            attach=attached,
            digests=Digests.TENSORS,
            fsync=True,
            flow_run=flow_run,
            on_progress=on_progress,
        )

    return _staged(shelf, release, write)


def _staged(shelf: Shelf, release: str, write: Callable[[Path], None]) -> Staged:
    """The release, staged by ``write`` unless it is visible already or another run left it staged and finished."""
    registry, staging = str(shelf.root.parent), shelf.staging(release)
    published = Staged(registry, shelf.name, release, str(shelf.release(release)), already_published=True)
    if is_release(shelf.release(release)):
        return published
    make_shelf(shelf)
    with held(staging):
        if is_release(shelf.release(release)):
            remove_tree(staging)
            return published
        if not (staging / MANIFEST_NAME).exists():
            try:
                write(staging)
            except (SourceChanged, NotEnoughSpace):
                # Of no use to a later run, or in the way of everybody; anything else is gone on with.
                remove_tree(staging)
                raise
    return Staged(registry, shelf.name, release, str(staging), already_published=False)


def publish_staged(staged: Staged, *, alias: str = DEFAULT_ALIAS, flow_run: str = "", reason: str = "") -> Published:
    """Make a staged release visible in one rename, then move ``alias`` to it in another, then record the act.

    Killed anywhere between, the same call finishes what is left; called again, it does nothing.
    """
    shelf = shelf_of(staged.registry, staged.name)
    check_name(alias, "alias")
    target = shelf.release(staged.release)
    did_work = False
    with locked(shelf.lock, wait=True):
        if not is_release(target):
            if not (Path(staged.path) / MANIFEST_NAME).exists():
                raise ReleaseNotFound(f"{staged.path}: no finished release is staged here")
            with held(Path(staged.path)):
                commit(Path(staged.path), target, overwrite=False)
            did_work = True
        if did_work or not is_published(history_of(shelf), staged.release, alias):
            move_alias(shelf, "publish", alias, staged.release, flow_run=flow_run, reason=reason)
            did_work = True
    return Published(staged.registry, staged.name, staged.release, str(target), alias, did_work)


def publish(
    directory: str | os.PathLike[str],
    registry: str | os.PathLike[str],
    name: str,
    *,
    alias: str = DEFAULT_ALIAS,
    attach: Sequence[str | os.PathLike[str]] = (),
    flow_run: str = "",
) -> Published:
    """Publish a directory that ``merge`` wrote: validated first, copied and hashed into the registry, never moved."""
    source = Path(directory)
    require_valid(validate(source))
    manifest = read_manifest(source)
    shelf = shelf_of(registry, name)
    attached = _attachments(attach)
    records = (*manifest.attachments, *(sha256_of(path, ignore_progress) for path in attached))
    version = manifest.source
    release = release_name(version.step, version.unique_id, release_identity(manifest.plan_digest, records))
    staged = _staged(shelf, release, lambda staging: _copy_output(source, manifest, attached, staging))
    return publish_staged(staged, alias=alias, flow_run=flow_run)


def _copy_output(source: Path, manifest: Manifest, attached: Sequence[Path], staging: Path) -> None:
    clear(staging)
    check_space(staging, sum(record.size_bytes for record in manifest.files))
    copied = [copy_file(source / record.name, staging / record.name) for record in manifest.files]
    copied += [copy_file(path, staging / path.name) for path in attached]
    complete = Manifest(
        files=tuple(sorted(copied)),
        tensors=manifest.tensors,
        source=manifest.source,
        plan_digest=manifest.plan_digest,
        software=manifest.software,
        flow_run=manifest.flow_run,
        created_at=manifest.created_at,
    )
    write_file(staging / MANIFEST_NAME, complete.to_bytes())
    sync_directory(staging)


def _attachments(attach: Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """The files to attach, sorted by name. Raises :class:`InvalidName` for a name that a release uses itself."""
    paths = sorted((Path(path) for path in attach), key=lambda path: path.name)
    names = [path.name for path in paths]
    for name in names:
        if name == MANIFEST_NAME or name.endswith((".safetensors", ".index.json")) or names.count(name) > 1:
            raise InvalidName(f"attached file {name!r}: the release has a file of that name already")
        check_name(name, "attached file")
    return tuple(paths)


def discard(staged: Staged) -> None:
    """Delete a staged release that failed its validation; a published one is left alone."""
    if not staged.already_published:
        with held(Path(staged.path)):
            remove_tree(Path(staged.path))
