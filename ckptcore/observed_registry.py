"""Keep an eye on one name of a registry: its releases, aliases and pins, and what is being merged there.

The history is read again only when it or the directories beside it have changed, and a release is measured once, since
it never changes. What the history says is not kept: a hundred long ones would fill the memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ckptcore.clock import seconds_of
from ckptcore.errors import CheckpointError
from ckptcore.pinning import pins_on
from ckptcore.registry import Shelf, aliases_on, history_of, is_release, shelf_of
from ckptcore.rules.observed import AliasSeen, DiskSeen, ReleaseSeen, WorkSeen
from ckptcore.rules.release import Act, ReleaseName, parse_release_name
from ckptcore.rules.retention import PRUNE
from ckptcore.rules.steps import VERBS, VerbTotal

MERGING_SECONDS = 300.0
"""A staging directory in which nothing was written for so long was left by a merge that was killed."""
_MTIME_GRAIN_SECONDS = 2.0
"""A directory that changed twice within this may have one time for both changes."""

Named = tuple[int | None, int]
"""A version of a source: its step and its id."""
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Retired:
    """What was published and pruned since."""

    release: str
    name: ReleaseName
    published_at: float


class RegistryEye:
    """One name and what is known of its releases. Not for several threads at once."""

    def __init__(self, registry: str, name: str) -> None:
        self._registry = registry
        self._name = name
        self._stamp: tuple[tuple[int, int], ...] = ()
        self._made: Mapping[Named, frozenset[str]] | None = None
        self.number = 0
        """Grows with whatever changes."""
        self.releases: tuple[ReleaseSeen, ...] = ()
        """The newest first."""
        self.retired: tuple[Retired, ...] = ()
        self.aliases: tuple[AliasSeen, ...] = ()
        self.merging: frozenset[Named] = frozenset()
        self.work = WorkSeen()
        self.troubles: tuple[str, ...] = ()
        self.device: int | None = None
        """Which file system it lies on."""
        self._space: tuple[int, int] | None = None

    def made(self, step: int | None, unique_id: int) -> frozenset[str]:
        """The fingerprints of what was published of this version; asked only for what is new or has changed."""
        if self._made is None:
            try:
                self._made = _made(history_of(shelf_of(self._registry, self._name)))
            except CheckpointError:
                self._made = {}  # the look says that it cannot be read
        return self._made.get((step, unique_id), _NOTHING)

    def look(self, until: float) -> None:
        """Look once; releases are measured until ``until`` (of ``time.monotonic``), the newest first."""
        self._made = None
        before = (self.releases, self.retired, self.aliases, self.merging, self.troubles)
        try:
            self._look(until)
        except CheckpointError as error:
            self.troubles, self._stamp = (error.message,), ()
        self.device, self._space = _file_system_of(self._registry)
        now = (self.releases, self.retired, self.aliases, self.merging, self.troubles)
        if any(one is not other and one != other for one, other in zip(now, before, strict=True)):
            self.number += 1

    def forget(self) -> None:
        """Let go of what only one look needs."""
        self._made = None

    def disk(self, grows_bytes_a_second: float) -> DiskSeen | None:
        """The file system as the last look found it."""
        if self._space is None:
            return None
        return DiskSeen(*self._space, grows_bytes_a_second)

    def _look(self, until: float) -> None:
        shelf = shelf_of(self._registry, self._name)
        if not os.path.isdir(self._registry):
            self.troubles = (f"{self._registry}: there is no such registry",)
            return
        stamp = tuple(_stamp(path) for path in (shelf.history, shelf.root, shelf.releases, shelf.pins))
        is_settled = all(time.time() - changed_ns / 1e9 > _MTIME_GRAIN_SECONDS for changed_ns, _ in stamp)
        if stamp != self._stamp or not is_settled:
            self._read(shelf)
        self._stamp, self.troubles = stamp, ()
        self._measure(shelf, until)
        self.merging = frozenset(_merging(shelf, {release.name for release in self.releases[:1]}))

    def _read(self, shelf: Shelf) -> None:
        acts = history_of(shelf)
        self.work = _work(acts)
        published = {act.release: seconds_of(act.at) for act in acts if act.act == "publish"}
        moved = {act.alias: seconds_of(act.at) for act in acts if act.alias}
        pins, names = pins_on(shelf), _names_in(shelf.releases)
        known = {release.name: release for release in self.releases}
        releases = list[ReleaseSeen]()
        for name in names:
            version = parse_release_name(name)
            if version is None:
                continue
            # What the history does not know was published by a process that was killed before it could say so.
            published_at = published.get(name) or _stamp(shelf.release(name))[0] / 1e9
            before = known.get(name)
            size = None if before is None else before.size_bytes
            release = ReleaseSeen(name, version.step, version.unique_id, published_at, size, name in pins)
            releases.append(before if before is not None and before == release else release)
        releases.sort(key=lambda each: (each.published_at, each.step or -1, each.unique_id), reverse=True)
        self.releases = tuple(releases)
        self.retired = tuple(_retired(acts, names))
        self.aliases = tuple(
            AliasSeen(alias, release, _step_of(release), moved.get(alias), release in names)
            for alias, release in aliases_on(shelf).items()
        )

    def _measure(self, shelf: Shelf, until: float) -> None:
        unmeasured = [at for at, release in enumerate(self.releases) if release.size_bytes is None]
        if not unmeasured:
            return
        releases = list(self.releases)
        for at in unmeasured:
            if time.monotonic() > until:
                break
            path = shelf.release(releases[at].name)
            if is_release(path):
                releases[at] = replace(releases[at], size_bytes=_size(path))
        self.releases = tuple(releases)


def _file_system_of(path: str) -> tuple[int | None, tuple[int, int] | None]:
    """The device that the path lies on, and its bytes in all and free; None where they cannot be told."""
    try:
        status = os.statvfs(path)
        return os.stat(path).st_dev, (status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)
    except OSError:
        return None, None


def _made(acts: Sequence[Act]) -> Mapping[Named, frozenset[str]]:
    made: dict[Named, frozenset[str]] = {}
    for act in acts:
        if act.act == "publish" and act.source and (name := parse_release_name(act.release)):
            version = (name.step, name.unique_id)
            made[version] = made.get(version, _NOTHING) | {act.source}
    return made


def _retired(acts: Sequence[Act], there: frozenset[str]) -> Iterator[Retired]:
    """What was pruned and not published again."""
    published, gone = dict[str, float](), dict[str, float]()
    for act in acts:
        if act.act == "publish":
            published[act.release] = seconds_of(act.at) or 0.0
            gone.pop(act.release, None)
        elif act.act == PRUNE and act.release in published:
            gone[act.release] = published[act.release]
    for release, at in gone.items():
        name = parse_release_name(release)
        if release not in there and name is not None:
            yield Retired(release, name, at)


def _step_of(release: str) -> int | None:
    name = parse_release_name(release)
    return None if name is None else name.step


def _stamp(path: Path) -> tuple[int, int]:
    """Time and size, zeros where nothing is there."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _work(acts: Sequence[Act]) -> WorkSeen:
    """What all publications took; a history may name any verb, and only those that there are count."""
    took = [act.took for act in acts if act.act == "publish"]
    total: dict[str, VerbTotal] = {}
    for one in took:
        for verb in VERBS:
            if verb in one:
                before = total.get(verb, VerbTotal(0.0, 0))
                total[verb] = VerbTotal(before.seconds + one[verb].seconds, before.size_bytes + one[verb].size_bytes)
    last = next((one for one in reversed(took) if one), {})
    return WorkSeen(len(took), total, {verb: last[verb] for verb in VERBS if verb in last})


def _names_in(directory: Path) -> frozenset[str]:
    try:
        with os.scandir(directory) as entries:
            return frozenset(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return frozenset()


def _size(directory: Path) -> int:
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0  # pruned at this moment


def _merging(shelf: Shelf, published: set[str]) -> Iterator[Named]:
    """The versions into whose staging somebody wrote lately. Their locks are left alone: a look at one takes it."""
    now = time.time()
    for name in _names_in(shelf.stagings) - published:
        version = parse_release_name(name)
        if version is None:
            continue
        try:
            with os.scandir(shelf.staging(name)) as entries:
                youngest = max((entry.stat(follow_symlinks=False).st_mtime for entry in entries), default=0.0)
        except OSError:
            continue
        if now - youngest < MERGING_SECONDS:
            yield version.step, version.unique_id
