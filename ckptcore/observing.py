"""Observe: what sources and registries hold now, as one snapshot that pages and metrics are made from.

Gathers again and again at little cost: what did not change is not read again, and what takes long is done bit by bit,
so that a first snapshot of a hundred pipelines is there within seconds. Nothing is written, locked or stored. A file
system that does not answer, as that of a dead server, holds up the pipelines that lie on it and no others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckptcore.observed_registry import Named, RegistryEye, Retired
from ckptcore.observed_source import Held, SourceEye
from ckptcore.rules.observed import (
    PipelineSeen,
    ReleaseSeen,
    Snapshot,
    Stage,
    VersionSeen,
    Watched,
    assembled,
    on_shared_disks,
    stage_of,
)

BUDGET_SECONDS = 2.0
"""How long one look may take, about, for what was never looked into."""

PATIENCE_SECONDS = 10.0
"""A look that takes longer is said to be held up."""

_WAIT_SECONDS = 1.0
"""How long beyond its budget a look is waited for; then it goes on by itself, and is met again."""

_MOST_UNDERWAY = 16

_NOTHING: frozenset[str] = frozenset()


class Observer:
    """Looks at everything that is watched. Not for several threads at once; the snapshots are for all."""

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._eyes = tuple(_Eye(each) for each in watched)
        self._seen: list[PipelineSeen] = []
        self.snapshot = Snapshot()

    @property
    def has_seen_all(self) -> bool:
        """Whether there is nothing left that was never looked into."""
        return all(seen.is_read and not seen.unread_steps and seen.is_measured for seen in self.snapshot.pipelines)

    def look(self) -> Snapshot:
        """Look once, and give what is there now; ``number`` grows only where something changed."""
        until = time.monotonic() + BUDGET_SECONDS
        # Whoever was never looked at comes first, for what is newest there; then one after the other is read whole.
        for eye in sorted(self._eyes, key=lambda eye: eye.seen.is_read):
            if eye.is_looking or sum(each.is_underway for each in self._eyes) >= _MOST_UNDERWAY:
                continue
            if eye.seen.is_read:
                eye.look_for_a_while(until)
            elif time.monotonic() < until:
                eye.look_for_a_while(0.0)
        seen = [eye.picture() for eye in self._eyes]
        devices = [eye.device for eye in self._eyes]
        grows = on_shared_disks(seen, devices)
        found = tuple(
            replace(each, disk=None if eye.registry is None else eye.registry.disk(grows.get(device or 0, 0.0)))
            for each, eye, device in zip(seen, self._eyes, devices, strict=True)
        )
        # The free space changes with every byte that anybody writes, and counts as no change.
        has_changed = len(seen) != len(self._seen) or any(
            one is not other for one, other in zip(seen, self._seen, strict=True)
        )
        self._seen = seen
        self.snapshot = Snapshot(time.time(), self.snapshot.number + has_changed, found)
        return self.snapshot


class _Eye:
    """One source and one name, joined by the versions that both know."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.source = SourceEye(watched.source, watched.component) if watched.source else None
        self.registry = RegistryEye(watched.registry, watched.name) if watched.registry else None
        self.seen = PipelineSeen(watched)
        """What the last look saw; the same object where nothing changed."""
        self._numbers = (-1, -1)
        self._thread: threading.Thread | None = None
        self._began_at = 0.0
        self._fault: Exception | None = None
        self._held_up: tuple[PipelineSeen, PipelineSeen] | None = None

    @property
    def is_looking(self) -> bool:
        """Whether the last look goes on still."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_underway(self) -> bool:
        """Whether the last look goes on, and has not done so for suspiciously long."""
        return self.is_looking and time.time() - self._began_at <= PATIENCE_SECONDS

    def look_for_a_while(self, until: float) -> None:
        """Look on a thread of its own, which is left to itself where it does not come back. A file system that hangs
        cannot be asked to stop; a daemon thread ends with the process. Raises what went wrong in the look, once."""
        self._fault, self._began_at = None, time.time()
        self._thread = threading.Thread(target=self._look_guarded, args=(until,), name="look", daemon=True)
        self._thread.start()
        self._thread.join(max(0.0, until - time.monotonic()) + _WAIT_SECONDS)
        if not self.is_looking and self._fault is not None:
            raise self._fault

    def _look_guarded(self, until: float) -> None:
        try:
            self.look(until)
        except Exception as error:  # noqa: BLE001 - whoever waits for the look raises it
            self._fault = error

    def picture(self) -> PipelineSeen:
        """What the last look saw, and that the present one is held up; the same object where nothing changed."""
        seen = self.seen
        if not self.is_looking or self.is_underway:
            self._held_up = None
            return seen
        if self._held_up is None or self._held_up[0] is not seen:
            began = time.strftime("%H:%M:%S", time.gmtime(self._began_at))
            places = " and ".join(filter(None, (self.watched.source, self.watched.registry)))
            trouble = f"{places}: the look of {began} UTC is not over, the file system is slow or hangs; this is older"
            self._held_up = (seen, replace(seen, troubles=(trouble, *seen.troubles)))
        return self._held_up[1]

    @property
    def device(self) -> int | None:
        return None if self.registry is None else self.registry.device

    def look(self, until: float) -> None:
        """Look once, until about ``until`` of ``time.monotonic``."""
        registry, source, begin = self.registry, self.source, time.monotonic()
        if source is not None:
            if registry is not None:
                registry.look(begin + max(0.0, until - begin) / 2)  # what is left is for the source
                if registry.number != self._numbers[1]:
                    source.recognise(registry.made)
            source.look(self._made, until)
        elif registry is not None:
            registry.look(until)
        numbers = (0 if source is None else source.number, 0 if registry is None else registry.number)
        if registry is not None:
            registry.forget()
        unread_steps = 0 if source is None else source.unread_steps
        seen = self.seen
        if numbers == self._numbers and unread_steps == seen.unread_steps and not _ages(seen):
            return
        before = {(version.step, version.unique_id): version for version in seen.versions}
        versions = (_same(before.get((each.step, each.unique_id)), each) for each in self._versions(time.time()))
        self.seen = assembled(
            self.watched,
            versions,
            () if registry is None else registry.releases,
            () if registry is None else registry.aliases,
            retired_count=0 if registry is None else len(registry.retired),
            unread_steps=unread_steps,
            troubles=[
                *(() if registry is None else registry.troubles),
                *(() if source is None else source.troubles.values()),
            ],
        )
        if registry is not None:
            self.seen = replace(self.seen, work=registry.work)
        self._numbers = numbers

    def _made(self, step: int | None, unique_id: int) -> frozenset[str]:
        return _NOTHING if self.registry is None else self.registry.made(step, unique_id)

    def _versions(self, now: float) -> Iterator[VersionSeen]:
        registry, held = self.registry, dict[Named, Held]()
        if self.source is not None:
            held = {(step, found.unique_id): found for step, found in self.source.held()}
        releases, retired = dict[Named, ReleaseSeen](), dict[Named, Retired]()
        if registry is not None:
            for release in registry.releases:  # the newest first: an earlier release of a version gives way
                releases.setdefault((release.step, release.unique_id), release)
            retired = {(gone.name.step, gone.name.unique_id): gone for gone in registry.retired}
        for version in held.keys() | releases.keys() | retired.keys():
            is_merging = registry is not None and version in registry.merging
            yield _seen(version, held.get(version), releases.get(version), retired.get(version), is_merging, now)


def _ages(seen: PipelineSeen) -> bool:
    """Whether the stage of a version may change with time alone."""
    return bool(seen.counts.get(Stage.WRITING))


def _same(before: VersionSeen | None, now: VersionSeen) -> VersionSeen:
    """What was known, where nothing changed: a hundred thousand need not be held twice while pages are made."""
    return before if before is not None and before == now else now


def _seen(
    version: Named,
    held: Held | None,
    release: ReleaseSeen | None,
    retired: Retired | None,
    is_merging: bool,
    now: float,
) -> VersionSeen:
    was_published = release is not None or retired is not None
    is_same = held is None or held.state is None
    if is_same:
        stage = Stage.RETIRED if release is None else Stage.PUBLISHED
    else:
        assert held is not None
        assert held.state is not None
        stage = stage_of(held.state, now - held.changed_at)
    if is_merging and stage in (Stage.COMPLETE, Stage.RETIRED):
        stage = Stage.MERGING
    of_release: tuple[str, float | None] = ("", None)
    if release is not None:
        of_release = (release.name, release.published_at)
    elif retired is not None:
        of_release = (retired.release, retired.published_at)
    return VersionSeen(
        *version,
        stage,
        None if held is None else held.changed_at,
        0 if held is None else held.size_bytes,
        0 if held is None else held.file_count,
        *of_release,
        "" if held is None else held.reason,
        0 if held is None else held.issue_count,
        is_saved_again=was_published and not is_same,
    )
