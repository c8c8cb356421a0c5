"""Publish: a registry of immutable releases and movable aliases, each step atomic, nothing done twice.

``stage`` writes a release aside, ``publish_staged`` makes it visible and moves the alias last; ``publish`` does both
for an output that was merged before. Which names mean what is ``rules.release``'s.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ckptcore.errors import InvalidName, ReleaseNotFound
from ckptcore.merging import check_space, ignore_progress, now, write_output
from ckptcore.rules.manifest import MANIFEST_NAME, Manifest, release_identity
from ckptcore.rules.merge_plan import MergePlan
from ckptcore.rules.release import (
    DEFAULT_ALIAS,
    HISTORY,
    RELEASES,
    Act,
    check_name,
    is_published,
    parse_history,
    parse_reference,
    release_name,
)
from ckptcore.storage.commit import (
    append_line,
    locked,
    point_symlink,
    remove_tree,
    sync_directory,
    write_file,
)
from ckptcore.storage.copier import OnProgress
from ckptcore.storage.digests import copy_file, sha256_of
from ckptcore.storage.refusals import reported
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


@dataclass(frozen=True, slots=True)
class _Places:
    """The paths of one name in a registry."""

    root: Path

    def release(self, release: str) -> Path:
        return self.root / RELEASES / release

    def staging(self, release: str) -> Path:
        return self.root / ".staging" / release

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def history(self) -> Path:
        return self.root / HISTORY


def _places(registry: str | os.PathLike[str], name: str) -> _Places:
    return _Places(Path(os.path.abspath(registry)) / check_name(name, "name"))


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
    places = _places(registry, name)
    attached = _attachments(attach)
    records = tuple(sha256_of(path, ignore_progress) for path in attached)
    release = release_name(plan.step, plan.unique_id, release_identity(plan.digest, records))
    staged = Staged(os.path.abspath(registry), name, release, str(places.staging(release)), already_published=False)
    if _is_release(places.release(release)):
        return _as_published(staged, places)
    _make_places(places)
    with held(places.staging(release)):
        if _is_release(places.release(release)):
            return _as_published(staged, places)
        if not (places.staging(release) / MANIFEST_NAME).exists():
            clear(places.staging(release))
            write_output(
                plan,
                places.staging(release),
                attach=attached,
                fsync=True,
                flow_run=flow_run,
                on_progress=on_progress,
            )
    return staged


def publish_staged(staged: Staged, *, alias: str = DEFAULT_ALIAS, flow_run: str = "", reason: str = "") -> Published:
    """Make a staged release visible in one rename, then move ``alias`` to it in another, then record the act.

    Killed anywhere between, the same call finishes what is left; called again, it does nothing.
    """
    places = _places(staged.registry, staged.name)
    check_name(alias, "alias")
    target = places.release(staged.release)
    did_work = False
    with locked(places.lock, wait=True):
        if not _is_release(target):
            if not (Path(staged.path) / MANIFEST_NAME).exists():
                raise ReleaseNotFound(f"{staged.path}: no finished release is staged here")
            with held(Path(staged.path)):
                commit(Path(staged.path), target, overwrite=False)
            did_work = True
        history = parse_history(places.history.read_bytes()) if places.history.exists() else ()
        if did_work or not is_published(history, staged.release, alias):
            previous = _pointed_to(places, alias)
            point_symlink(places.root / alias, f"{RELEASES}/{staged.release}")
            act = Act(
                at=now(),
                act="publish",
                release=staged.release,
                alias=alias,
                previous=previous,
                user=_user(),
                host=socket.gethostname(),
                flow_run=flow_run,
                reason=reason,
            )
            append_line(places.history, act.to_line())
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
    places = _places(registry, name)
    attached = _attachments(attach)
    records = (*manifest.attachments, *(sha256_of(path, ignore_progress) for path in attached))
    version = manifest.source
    release = release_name(version.step, version.unique_id, release_identity(manifest.plan_digest, records))
    staging = places.staging(release)
    staged = Staged(os.path.abspath(registry), name, release, str(staging), already_published=False)
    if not _is_release(places.release(release)):
        _make_places(places)
        with held(staging):
            if not (staging / MANIFEST_NAME).exists():
                clear(staging)
                _copy_output(source, manifest, attached, staging)
    return publish_staged(staged, alias=alias, flow_run=flow_run)


def resolve(registry: str | os.PathLike[str], reference: str) -> Path:
    """The directory that ``NAME``, ``NAME@alias`` or ``NAME@release`` means now, without symlinks in its last parts.

    Raises :class:`ReleaseNotFound` and :class:`InvalidName`.
    """
    wanted = parse_reference(reference)
    places = _places(registry, wanted.name)
    release = _pointed_to(places, wanted.ref) or wanted.ref
    path = places.release(release)
    if not _is_release(path):
        known = "no such name" if not places.root.is_dir() else f"no release or alias {wanted.ref!r}"
        raise ReleaseNotFound(f"{registry}: {reference}: {known}")
    return path


def _copy_output(source: Path, manifest: Manifest, attached: Sequence[Path], staging: Path) -> None:
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


def _make_places(places: _Places) -> None:
    with reported("cannot make the registry's directories in", places.root):
        (places.root / RELEASES).mkdir(parents=True, exist_ok=True)
        (places.root / ".staging").mkdir(exist_ok=True)


def _is_release(path: Path) -> bool:
    return (path / MANIFEST_NAME).is_file()


def _as_published(staged: Staged, places: _Places) -> Staged:
    return Staged(staged.registry, staged.name, staged.release, str(places.release(staged.release)), True)


def _pointed_to(places: _Places, alias: str) -> str:
    """The release that an alias names, or "" where there is no such alias."""
    link = places.root / alias
    return Path(os.readlink(link)).name if link.is_symlink() else ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container's user need not have a name


def discard(staged: Staged) -> None:
    """Delete a staged release that failed its validation; a published one is left alone."""
    if not staged.already_published:
        with held(Path(staged.path)):
            remove_tree(Path(staged.path))
