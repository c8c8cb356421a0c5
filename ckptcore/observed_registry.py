"""Keep an eye on one name of a registry: its releases, aliases and pins, and what is being merged there.

The history is read again only when it has changed, and a release is measured once, since it never changes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ckptcore.clock import seconds_of
from ckptcore.errors import CheckpointError
from ckptcore.pinning import pins_on
from ckptcore.registry import Shelf, aliases_on, history_of, is_release, shelf_of
from ckptcore.rules.observed import AliasSeen, DiskSeen, ReleaseSeen
from ckptcore.rules.release import Act, ReleaseName, parse_release_name
from ckptcore.rules.retention import PRUNE

MERGING_SECONDS = 300.0
"""A staging directory in which nothing was written for so long was left by a merge that was killed."""


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
        self._history_stamp: tuple[int, int] | None = None
        self._made: dict[tuple[int | None, int], frozenset[str]] = {}
        self._published: dict[str, float] = {}
        self._alias_since: dict[str, float | None] = {}
        self._gone: Mapping[str, float] = {}
        self._sizes: dict[str, int] = {}
        self.releases: tuple[ReleaseSeen, ...] = ()
        self.retired: tuple[Retired, ...] = ()
        self.aliases: tuple[AliasSeen, ...] = ()
        self.merging: frozenset[tuple[int | None, int]] = frozenset()
        self.troubles: tuple[str, ...] = ()

    def made(self, step: int | None, unique_id: int) -> frozenset[str]:
        """The fingerprints of what was published of this version."""
        return self._made.get((step, unique_id), frozenset())

    def look(self, until: float) -> None:
        """Look once; releases are measured until ``until`` (of ``time.monotonic``), the newest first."""
        try:
            shelf = shelf_of(self._registry, self._name)
            self.troubles = ()
            if not os.path.isdir(self._registry):
                self.troubles = (f"{self._registry}: there is no such registry",)
                return
            self._read_history(shelf)
            self._list(shelf, until)
        except CheckpointError as error:
            self.troubles = (error.message,)

    @property
    def device(self) -> int | None:
        """Which file system it lies on."""
        try:
            return os.stat(self._registry).st_dev
        except OSError:
            return None

    def disk(self, grows_bytes_a_second: float) -> DiskSeen | None:
        try:
            status = os.statvfs(self._registry)
        except OSError:
            return None
        return DiskSeen(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize, grows_bytes_a_second)

    def _read_history(self, shelf: Shelf) -> None:
        try:
            status = os.stat(shelf.history)
            stamp = (status.st_mtime_ns, status.st_size)
        except OSError:
            stamp = None
        if stamp is not None and stamp == self._history_stamp:
            return
        acts = history_of(shelf)
        self._history_stamp = stamp
        made: dict[tuple[int | None, int], frozenset[str]] = {}
        self._published, self._alias_since = {}, {}
        for act in acts:
            at = seconds_of(act.at)
            if act.alias:
                self._alias_since[act.alias] = at
            name = parse_release_name(act.release)
            if act.act != "publish" or name is None:
                continue
            self._published[act.release] = at or 0.0
            if act.source:
                version = (name.step, name.unique_id)
                made[version] = made.get(version, frozenset()) | {act.source}
        self._made = made
        self._gone = _gone(acts)

    def _list(self, shelf: Shelf, until: float) -> None:
        pins = pins_on(shelf)
        names = _names_in(shelf.releases)
        self._sizes = {name: size for name, size in self._sizes.items() if name in names}
        releases = []
        for name in sorted(names, key=lambda name: self._published.get(name, float("inf")), reverse=True):
            version = parse_release_name(name)
            if version is None:
                continue
            if name not in self._sizes and time.monotonic() < until and is_release(shelf.release(name)):
                self._sizes[name] = _size(shelf.release(name))
            published_at = self._published.get(name)
            if published_at is None:
                published_at = _changed_at(os.path.join(shelf.releases, name))
            releases.append(
                ReleaseSeen(name, version.step, version.unique_id, published_at, self._sizes.get(name), name in pins)
            )
        self.releases = tuple(releases)
        self.retired = tuple(
            Retired(release, version, at)
            for release, at in self._gone.items()
            if release not in names and (version := parse_release_name(release)) is not None
        )
        self.aliases = tuple(
            AliasSeen(
                alias,
                release,
                named.step if (named := parse_release_name(release)) else None,
                self._alias_since.get(alias),
                release in names,
            )
            for alias, release in aliases_on(shelf).items()
        )
        self.merging = frozenset(_merging(shelf, names))


def _gone(acts: Sequence[Act]) -> Mapping[str, float]:
    """What was pruned and not published again, and when it was published."""
    published: dict[str, float] = {}
    gone: dict[str, float] = {}
    for act in acts:
        if act.act == "publish":
            published[act.release] = seconds_of(act.at) or 0.0
            gone.pop(act.release, None)
        elif act.act == PRUNE and act.release in published:
            gone[act.release] = published[act.release]
    return gone


def _names_in(directory: os.PathLike[str]) -> frozenset[str]:
    try:
        with os.scandir(directory) as entries:
            return frozenset(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return frozenset()


def _size(directory: os.PathLike[str]) -> int:
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0  # pruned at this moment


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _merging(shelf: Shelf, published: frozenset[str]) -> Iterator[tuple[int | None, int]]:
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
