"""Publish: a registry of immutable releases and movable aliases, each step atomic, nothing done twice.

``stage`` writes a release aside, ``pass_gates`` lets it be checked and signed, ``publish_staged`` makes it visible and
moves the alias last; ``publish`` does all of it for an output that was merged before. Which names mean what is
``rules.release``'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ckptcore.devices import DeviceHost
from ckptcore.errors import (
    Busy,
    InvalidName,
    NotEnoughSpace,
    ReleaseInvalid,
    ReleaseNotFound,
    SmokeFailed,
    SourceChanged,
    Superseded,
)
from ckptcore.gates import pass_gate, require_ready
from ckptcore.leasing import lease
from ckptcore.registry import Shelf, history_of, is_release, make_shelf, move_alias, pointed_to, record, shelf_of
from ckptcore.rules.gates import Gate, GateReport, Signature
from ckptcore.rules.manifest import (
    MANIFEST_NAME,
    UNLISTED,
    FileRecord,
    Manifest,
    SourceRecord,
    is_earlier,
    release_identity,
)
from ckptcore.rules.merge_plan import MergePlan
from ckptcore.rules.release import DEFAULT_ALIAS, check_alias, check_name, is_published, release_name
from ckptcore.rules.steps import NOTHING_TOOK, VerbTotal
from ckptcore.steps import tell, verb
from ckptcore.storage.commit import locked, sync_directory, write_file
from ckptcore.storage.copier import Digests
from ckptcore.storage.digests import copy_file, sha256_of
from ckptcore.storage.progress import OnProgress, ignore_progress
from ckptcore.storage.staging import clear, commit, drop, forget, held
from ckptcore.validating import read_manifest, require_valid, validate
from ckptcore.writing import Writing, begin, check_space, finish, write_rest


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
    """A visible release; ``alias`` points to it, or is "" where it was left behind. ``did_work`` is False where all of
    it stood already.

    ``gates`` is what was passed on the way.
    """

    registry: str
    name: str
    release: str
    path: str
    alias: str
    did_work: bool
    gates: tuple[GateReport, ...] = ()

    def after(self, passed: Sequence[GateReport]) -> Published:
        """The same, with what was passed before it."""
        did_work = self.did_work or any(report.changed for report in passed)
        return replace(self, did_work=did_work, gates=tuple(passed))

    def to_json(self) -> dict[str, object]:
        document = {field: getattr(self, field) for field in self.__slots__}
        return document | {"gates": [report.to_json() for report in self.gates]}


@dataclass(frozen=True, slots=True)
class Staging:
    """A release that this process holds while its shards are written, here or elsewhere.

    ``staged`` is what it is, or becomes when it is finished; ``writing`` is None where there is nothing to write.
    """

    staged: Staged
    writing: Writing | None
    attached: tuple[tuple[Path, FileRecord], ...]
    flow_run: str

    def finish(self) -> Staged:
        """The staged release, once its shards are all there. Raises what :func:`ckptcore.writing.finish` does."""
        if self.writing is not None:
            finish(self.writing, attach=self.attached, flow_run=self.flow_run)
        return self.staged


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
    and finished is kept, and unfinished is gone on with. Raises :class:`Busy` where another process is writing the
    same.
    """
    with staging(plan, registry, name, attach=attach, flow_run=flow_run) as release:
        if release.writing is not None:
            write_rest(release.writing, on_progress)
        return release.finish()


@contextmanager
def staging(
    plan: MergePlan,
    registry: str | os.PathLike[str],
    name: str,
    *,
    attach: Sequence[str | os.PathLike[str]] = (),
    flow_run: str = "",
) -> Iterator[Staging]:
    """Hold the staged release of ``plan`` while the block has its shards written and finishes it; see :func:`stage`."""
    shelf = shelf_of(registry, name)
    attached = _attachments(attach)
    records = tuple(sha256_of(path, ignore_progress) for path in attached)
    release = release_name(plan.step, plan.unique_id, release_identity(plan.digest, records))
    with (
        verb("merge"),
        _held(shelf, release) as (staged, is_to_write),
    ):
        tell(name=name, release=release)
        writing = begin(plan, Path(staged.path), digests=Digests.TENSORS, fsync=True) if is_to_write else None
        yield Staging(staged, writing, tuple(zip(attached, records, strict=True)), flow_run)


@contextmanager
def _held(shelf: Shelf, release: str) -> Iterator[tuple[Staged, bool]]:
    """Hold the staging of a release, unless it is visible already; and whether it is to be written: another run may
    have left it staged and finished."""
    registry, path = str(shelf.root.parent), shelf.staging(release)
    published = Staged(registry, shelf.name, release, str(shelf.release(release)), already_published=True)
    if is_release(shelf.release(release)):
        yield published, False
        return
    make_shelf(shelf)
    with held(path):
        if is_release(shelf.release(release)):
            drop(path)
            yield published, False
            return
        try:
            yield replace(published, path=str(path), already_published=False), not is_release(path)
        except (SourceChanged, NotEnoughSpace, Superseded):
            # Of no use to a later run, or in the way of everybody; anything else is gone on with.
            drop(path)
            raise


def settled(staged: Staged) -> Staged:
    """``staged`` as it lies now: another process that staged the same release may have published it meanwhile."""
    shelf = shelf_of(staged.registry, staged.name)
    if staged.already_published or not is_release(shelf.release(staged.release)):
        return staged
    return replace(staged, path=str(shelf.release(staged.release)), already_published=True)


def is_settled(staged: Staged, alias: str) -> bool:
    """Whether the release is visible and was published under ``alias`` before, so that nothing is to be checked."""
    history = history_of(shelf_of(staged.registry, staged.name))
    return staged.already_published and is_published(history, staged.release, alias)


def pass_gates(
    staged: Staged, gates: Sequence[Gate], *, alias: str = DEFAULT_ALIAS, host: DeviceHost = DeviceHost()
) -> tuple[GateReport, ...]:
    """Let a staged release through each of ``gates`` in turn, or a published one to which ``alias`` is yet to move.

    Where all stands already, there is nothing to check; a signature that is missing is made even then. A staged release
    that fails its check or smoke test is thrown away, so that no later run finds it finished. Nobody can write, publish
    or prune the release meanwhile. Devices come from ``host``. Raises what :func:`ckptcore.gates.pass_gate` does, and
    :class:`Busy`.
    """
    shelf = shelf_of(staged.registry, staged.name)
    stands = is_settled(staged, alias)
    due = [gate for gate in gates if not stands or isinstance(gate, Signature)]
    if not due:
        return ()
    try:
        with _kept(shelf, staged) as directory:
            visible = staged.already_published
            return tuple(pass_gate(gate, directory, is_visible=visible, host=host) for gate in due)
    except (ReleaseInvalid, SmokeFailed):
        discard(staged)
        raise


@contextmanager
def _kept(shelf: Shelf, staged: Staged) -> Iterator[Path]:
    """The directory of a release that nobody changes or deletes while the block runs."""
    if staged.already_published:
        with lease(staged.path) as directory:
            yield directory
        return
    # Before anything is made: on a machine that does not see the registry there is nothing to hold.
    if not Path(staged.path).exists() and not is_release(shelf.release(staged.release)):
        raise ReleaseNotFound(f"{staged.path}: no finished release is staged here")
    with held(Path(staged.path)):
        if is_release(shelf.release(staged.release)):
            drop(Path(staged.path))
            raise Busy(f"{staged.name}@{staged.release}: another process has published it meanwhile; try again")
        if not (Path(staged.path) / MANIFEST_NAME).exists():
            raise ReleaseNotFound(f"{staged.path}: no finished release is staged here")
        yield Path(staged.path)


@verb("publish")
def publish_staged(
    staged: Staged,
    *,
    alias: str = DEFAULT_ALIAS,
    flow_run: str = "",
    reason: str = "",
    only_forward: bool = False,
    took: Mapping[str, VerbTotal] = NOTHING_TOOK,
) -> Published:
    """Make a staged release visible in one rename, then move ``alias`` to it in another, then record the act.

    With ``only_forward`` the alias stays where it names a later version of the same run, so that what is published
    late does not take its place. Killed anywhere between, the same call finishes what is left; called again, it does
    nothing. What the steps before it ``took`` is recorded with it.
    """
    tell(name=staged.name, release=staged.release, alias=alias)
    shelf = shelf_of(staged.registry, staged.name)
    check_alias(alias)
    target = shelf.release(staged.release)
    did_work = False
    with locked(shelf.lock, wait=True):
        if not is_release(target):
            if not (Path(staged.path) / MANIFEST_NAME).exists():
                raise ReleaseNotFound(f"{staged.path}: no finished release is staged here")
            with held(Path(staged.path)):
                commit(Path(staged.path), target, overwrite=False)
            did_work = True
        history = history_of(shelf)
        if did_work or not is_published(history, staged.release, alias):
            forget(shelf.staging(staged.release))
            source = read_manifest(target).source
            moves = not (only_forward and _is_behind(shelf, alias, source))
            if moves:
                move_alias(
                    shelf,
                    "publish",
                    alias,
                    staged.release,
                    flow_run=flow_run,
                    reason=reason,
                    source=source.fingerprint,
                    took=took,
                )
                did_work = True
            elif did_work or not is_published(history, staged.release, ""):
                fingerprint = source.fingerprint
                record(
                    shelf, "publish", staged.release, flow_run=flow_run, reason=reason, source=fingerprint, took=took
                )
                did_work = True
            alias = alias if moves else ""
    return Published(staged.registry, staged.name, staged.release, str(target), alias, did_work)


def _is_behind(shelf: Shelf, alias: str, source: SourceRecord) -> bool:
    current = shelf.release(pointed_to(shelf, alias) or ".")
    return is_release(current) and is_earlier(source, read_manifest(current).source)


def publish(
    directory: str | os.PathLike[str],
    registry: str | os.PathLike[str],
    name: str,
    *,
    alias: str = DEFAULT_ALIAS,
    attach: Sequence[str | os.PathLike[str]] = (),
    gates: Sequence[Gate] = (),
    flow_run: str = "",
) -> Published:
    """Publish a directory that ``merge`` wrote: validated first, copied and hashed into the registry, never moved."""
    require_ready(gates)
    check_alias(alias)
    source = Path(directory)
    require_valid(validate(source))
    manifest = read_manifest(source)
    shelf = shelf_of(registry, name)
    attached = _attachments(attach)
    added = tuple(sha256_of(path, ignore_progress) for path in attached)
    records = (*manifest.attachments, *added)
    version = manifest.source
    release = release_name(version.step, version.unique_id, release_identity(manifest.plan_digest, records))
    with _held(shelf, release) as (staged, is_to_write):
        if is_to_write:
            _copy_output(source, manifest, zip(attached, added, strict=True), Path(staged.path))
    passed = pass_gates(staged, gates, alias=alias)
    return publish_staged(staged, alias=alias, flow_run=flow_run).after(passed)


def _copy_output(source: Path, manifest: Manifest, attached: Iterable[tuple[Path, FileRecord]], staging: Path) -> None:
    clear(staging)
    check_space(staging, sum(record.size_bytes for record in manifest.files))
    copied = [copy_file(source / record.name, staging / record.name, record) for record in manifest.files]
    copied += [copy_file(path, staging / path.name, known) for path, known in attached]
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
        if name in UNLISTED or name.endswith((".safetensors", ".index.json")) or names.count(name) > 1:
            raise InvalidName(f"attached file {name!r}: the release has a file of that name already")
        check_name(name, "attached file")
    return tuple(paths)


def discard(staged: Staged) -> None:
    """Delete a staged release that failed its validation or a gate; a published one is left alone."""
    if not staged.already_published:
        with held(Path(staged.path)):
            drop(Path(staged.path))
