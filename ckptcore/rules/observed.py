"""What an operator sees of a pipeline at one moment: versions and their stages, releases, aliases, and what is wrong.

Pure data, and the questions that are asked of it. Gathering is ``observing``'s; showing is ``dashboard``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ckptcore.rules.steps import VerbTotal
from ckptcore.rules.versions import StateKind, version_label

QUIET_SECONDS = 60.0
"""So long without a change, and what is not whole counts as left unfinished rather than being written."""


@dataclass(frozen=True, slots=True)
class Watched:
    """One source and the name that it is published under; either may be missing. ``key`` stands in addresses.

    ``pipeline`` is the name under which it is deployed, "" where it is not. ``stall_seconds`` is None where nobody said
    how long is too long.
    """

    key: str
    name: str
    pipeline: str = ""
    source: str = ""
    component: str | None = None
    registry: str = ""
    alias: str = ""
    stall_seconds: float | None = None
    server: str = ""
    has_retention: bool = False
    config: str = ""
    """The ckpt.yaml that says so, "" where it is watched without one."""


class Stage(StrEnum):
    """How far a version has come."""

    WRITING = "writing"
    INCOMPLETE = "incomplete"
    DAMAGED = "damaged"
    COMPLETE = "complete"
    MERGING = "merging"
    PUBLISHED = "published"
    RETIRED = "retired"
    """It was published, and its release was pruned."""


WHOLE = frozenset({Stage.COMPLETE, Stage.MERGING, Stage.PUBLISHED, Stage.RETIRED})


@dataclass(frozen=True, slots=True)
class VersionSeen:
    """One version, in the source, in the registry, or in both. Times are seconds since 1970.

    ``changed_at`` is the youngest time of its files, None where the source holds it no more. ``reason`` is the first
    of ``issue_count`` findings. ``is_saved_again`` where other bytes lie there than its release was made from.
    """

    step: int | None
    unique_id: int
    stage: Stage
    changed_at: float | None = None
    size_bytes: int = 0
    file_count: int = 0
    release: str = ""
    published_at: float | None = None
    reason: str = ""
    issue_count: int = 0
    is_saved_again: bool = False

    @property
    def label(self) -> str:
        return version_label(self.step, self.unique_id)

    @property
    def order(self) -> tuple[int, int]:
        """Later versions are greater; without a step counts as before every step."""
        return (-1 if self.step is None else self.step, self.unique_id)

    @property
    def was_published(self) -> bool:
        """Whether a release was made of these bytes, pruned since or not."""
        return bool(self.release) and not self.is_saved_again

    @property
    def seen_at(self) -> float | None:
        """When it came into the world, as far as anybody can tell."""
        return self.changed_at if self.changed_at is not None else self.published_at


@dataclass(frozen=True, slots=True)
class ReleaseSeen:
    """A release that lies in the registry. ``size_bytes`` is None until it was measured."""

    name: str
    step: int | None
    unique_id: int
    published_at: float
    size_bytes: int | None = None
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class AliasSeen:
    """An alias and the release that it names; ``since`` is None where the history does not say."""

    alias: str
    release: str
    step: int | None = None
    since: float | None = None
    exists: bool = True


@dataclass(frozen=True, slots=True)
class WorkSeen:
    """What publishing took, by verb, as the history says: in all, and the last time. ``publications`` counts them."""

    publications: int = 0
    total: Mapping[str, VerbTotal] = field(default_factory=dict)
    last: Mapping[str, VerbTotal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DiskSeen:
    """The file system of a registry. ``grows_bytes_a_second`` is what all that is published there adds, net."""

    total_bytes: int
    free_bytes: int
    grows_bytes_a_second: float = 0.0

    def fills_up_at(self, now: float) -> float | None:
        """When it is full if it goes on like this, None where it does not fill."""
        if self.grows_bytes_a_second <= 0:
            return None
        return now + self.free_bytes / self.grows_bytes_a_second


@dataclass(frozen=True, slots=True)
class PipelineSeen:
    """All of it. ``versions`` and ``releases`` come newest first.

    ``unread_steps`` are steps that were not looked into yet; ``troubles`` say what cannot be read, and why.
    """

    watched: Watched
    versions: tuple[VersionSeen, ...] = ()
    releases: tuple[ReleaseSeen, ...] = ()
    aliases: tuple[AliasSeen, ...] = ()
    is_read: bool = False
    """Whether it was looked at at all."""
    unread_steps: int = 0
    troubles: tuple[str, ...] = ()
    used_bytes: int = 0
    is_measured: bool = True
    """Whether ``used_bytes`` counts every release."""
    grows_bytes_a_second: float = 0.0
    disk: DiskSeen | None = None
    newest: VersionSeen | None = None
    newest_complete: VersionSeen | None = None
    newest_published: VersionSeen | None = None
    changed_at: float | None = None
    """When a version last changed, whichever it was: a resumed run may write steps below those that are kept."""
    counts: Mapping[Stage, int] = field(default_factory=dict)
    work: WorkSeen = WorkSeen()

    @property
    def key(self) -> str:
        return self.watched.key

    def waits_seconds(self, now: float) -> float | None:
        """The lag: for how long the newest complete version has not been published; None where it was."""
        complete = self.newest_complete
        if complete is None or complete.changed_at is None or complete.was_published:
            return None
        return max(0.0, now - complete.changed_at)

    @property
    def took_seconds(self) -> float | None:
        """From the last byte of the newest published version to its publication."""
        version = self.newest_published
        if version is None or version.changed_at is None or version.published_at is None:
            return None
        took = version.published_at - version.changed_at
        return took if took >= 0 else None

    def quiet_seconds(self, now: float) -> float | None:
        """The stall clock: how long ago any version last changed; None where there was none."""
        return None if self.changed_at is None else max(0.0, now - self.changed_at)

    def is_stalled(self, now: float) -> bool:
        quiet, limit = self.quiet_seconds(now), self.watched.stall_seconds
        return limit is not None and quiet is not None and quiet > limit

    def version(self, step: int | None, unique_id: int) -> VersionSeen | None:
        return next((each for each in self.versions if (each.step, each.unique_id) == (step, unique_id)), None)

    def release(self, name: str) -> ReleaseSeen | None:
        return next((each for each in self.releases if each.name == name), None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is watched, as it was at ``at``; ``number`` grows with each change."""

    at: float = 0.0
    number: int = 0
    pipelines: tuple[PipelineSeen, ...] = ()

    def pipeline(self, key: str) -> PipelineSeen | None:
        return next((each for each in self.pipelines if each.key == key), None)


def assembled(
    watched: Watched,
    versions: Iterable[VersionSeen],
    releases: Sequence[ReleaseSeen],
    aliases: Sequence[AliasSeen],
    *,
    retired_count: int,
    unread_steps: int = 0,
    troubles: Sequence[str] = (),
    disk: DiskSeen | None = None,
) -> PipelineSeen:
    """The pipeline, with the answers that every page wants."""
    newest_first = tuple(sorted(versions, key=lambda version: version.order, reverse=True))
    published_first = tuple(sorted(releases, key=lambda release: release.published_at, reverse=True))
    counts: dict[Stage, int] = dict.fromkeys(Stage, 0)
    for version in newest_first:
        counts[version.stage] += 1
    return PipelineSeen(
        watched,
        newest_first,
        published_first,
        tuple(aliases),
        True,
        unread_steps,
        tuple(troubles),
        sum(release.size_bytes or 0 for release in releases),
        all(release.size_bytes is not None for release in releases),
        growth(published_first, retired_count),
        disk,
        next(iter(newest_first), None),
        next((version for version in newest_first if version.stage in WHOLE), None),
        next((version for version in newest_first if version.stage is Stage.PUBLISHED), None),
        max((version.seen_at for version in newest_first if version.seen_at is not None), default=None),
        counts,
    )


def stage_of(state: StateKind, quiet_seconds: float) -> Stage:
    """The stage of a version that has no release: while its files still change, it is being written."""
    if state is StateKind.COMPLETE:
        return Stage.COMPLETE
    if quiet_seconds < QUIET_SECONDS:
        return Stage.WRITING
    return Stage.DAMAGED if state is StateKind.DAMAGED else Stage.INCOMPLETE


_FITTED = 50
_SHORTEST_FIT_SECONDS = 3600.0


def growth(releases: Sequence[ReleaseSeen], retired_count: int) -> float:
    """Bytes a second that publishing adds and pruning does not take away again; 0 where too little is known.

    The slope of a line through the sizes of the last releases, added up over their times (least squares), less the
    share of what was ever published that was pruned since.
    """
    measured = [release for release in releases if release.size_bytes is not None][:_FITTED]
    if not measured or measured[0].published_at - measured[-1].published_at < _SHORTEST_FIT_SECONDS:
        return 0.0
    measured.reverse()
    first = measured[0].published_at
    times = [release.published_at - first for release in measured]
    totals, total = list[float](), 0.0
    for release in measured:
        total += release.size_bytes or 0
        totals.append(total)
    middle_t, middle_y = sum(times) / len(times), sum(totals) / len(totals)
    spread = sum((t - middle_t) ** 2 for t in times)
    slope = sum((t - middle_t) * (y - middle_y) for t, y in zip(times, totals, strict=True)) / spread
    kept = len(releases) / (len(releases) + retired_count)
    return max(0.0, slope * kept) if retired_count < len(releases) else 0.0


def on_shared_disks(pipelines: Sequence[PipelineSeen], devices: Sequence[int | None]) -> dict[int, float]:
    """The growth of each device by all pipelines that publish there."""
    grows: dict[int, float] = {}
    for pipeline, device in zip(pipelines, devices, strict=True):
        if device is not None:
            grows[device] = grows.get(device, 0.0) + pipeline.grows_bytes_a_second
    return grows
