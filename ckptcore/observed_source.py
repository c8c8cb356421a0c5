"""Keep an eye on one source: which versions it holds and in what state each is, cheaply, look after look.

What was looked into is remembered; the newest steps and those that are not whole are looked at every time, the others
in turn, since a save that overwrites an old step changes no directory. Nothing is written, and nobody is told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ckptcore.errors import CheckpointError, VersionNotFound
from ckptcore.placing import Place, place_of, sighted
from ckptcore.rules.layout import step_name
from ckptcore.rules.versions import Listing, RunMarks, StateKind, Version
from ckptcore.storage.local import Directories
from ckptcore.verifying import verify

NEWEST_STEPS = 2
OLD_STEPS_A_LOOK = 8

Made = Callable[[int | None, int], frozenset[str]]
"""The fingerprints of what releases of a step and an id were made from; empty where there are none."""


@dataclass(frozen=True, slots=True)
class Held:
    """A version in the source. ``state`` is None where a release was made of these very bytes: nothing was read.

    ``fingerprints`` are what a release of these bytes may say that it was made from; empty where there is one.
    """

    unique_id: int
    sighting: bytes
    changed_at: float
    size_bytes: int
    file_count: int
    state: StateKind | None
    reason: str = ""
    issue_count: int = 0
    fingerprints: frozenset[str] = frozenset()


class SourceEye:
    """One source and what is known of each of its versions. Not for several threads at once."""

    def __init__(self, source: str, component: str | None = None) -> None:
        self.source = source
        self._component = component
        self._marks = RunMarks()
        self._held: dict[int | None, tuple[Held, ...]] = {}
        self._listed: tuple[int, Sequence[int | None]] | None = None
        self._turn = 0
        self.number = 0
        """Grows with whatever changes."""
        self.unread_steps = 0
        self.troubles: dict[str, str] = {}
        """What cannot be read now, by its path, and why."""

    def held(self) -> Iterator[tuple[int | None, Held]]:
        """Every version that was looked at, with its step."""
        for step, versions in self._held.items():
            for held in versions:
                yield step, held

    def look(self, made: Made, until: float) -> None:
        """Look once: at the steps where something may be happening, and until ``until`` (of ``time.monotonic``) at
        those that were never looked into, the newest first."""
        before = dict(self.troubles)
        self._look(made, until)
        self.number += self.troubles != before

    def recognise(self, made: Made) -> None:
        """Find the versions of which a release was made since they were looked into; no disk is asked."""
        for step, versions in self._held.items():
            if any(held.state is not None and held.fingerprints & made(step, held.unique_id) for held in versions):
                found = (
                    _published(held) if held.fingerprints & made(step, held.unique_id) else held for held in versions
                )
                self._held[step] = tuple(found)
                self.number += 1

    def _look(self, made: Made, until: float) -> None:
        root = os.path.realpath(self.source)
        try:
            steps = self._steps(root)
        except CheckpointError as error:
            self.troubles = {self.source: error.message}
            return
        self.troubles = {path: why for path, why in self.troubles.items() if path != self.source}
        for gone in self._held.keys() - set(steps):
            del self._held[gone]
            self.number += 1
            self.troubles.pop(_directory(root, gone), None)
        for step in self._steps_to_look_at(steps):
            self._look_at(root, step, made)
        unread = [step for step in reversed(steps) if step not in self._held]
        for position, step in enumerate(unread):
            if time.monotonic() > until:
                self.unread_steps = len(unread) - position
                return
            self._look_at(root, step, made)
        self.unread_steps = 0

    def _steps(self, root: str) -> Sequence[int | None]:
        """The steps of the run, sorted; where the source is a step or rank files, None for itself."""
        try:
            changed_ns = os.stat(root).st_mtime_ns
        except OSError as error:
            raise VersionNotFound(f"{self.source}: {error.strerror}") from error
        # A directory that changed lately may change again without another time.
        if self._listed is None or self._listed[0] != changed_ns or time.time() - changed_ns / 1e9 < 10.0:
            listing = Directories().listing(root) or Listing()
            steps = listing.steps or (None,)
            self._listed = (changed_ns, steps if self._listed is None or steps != self._listed[1] else self._listed[1])
        return self._listed[1]

    def _steps_to_look_at(self, steps: Sequence[int | None]) -> list[int | None]:
        newest, old = steps[-NEWEST_STEPS:], [step for step in steps[:-NEWEST_STEPS] if step in self._held]
        is_open = [step for step in old if any(held.state is StateKind.INCOMPLETE for held in self._held[step])]
        begin = self._turn if self._turn < len(old) else 0
        in_turn = old[begin : begin + OLD_STEPS_A_LOOK]
        self._turn = begin + len(in_turn)
        return list(dict.fromkeys((*reversed(newest), *is_open, *in_turn)))

    def _look_at(self, root: str, step: int | None, made: Made) -> None:
        directory = _directory(root, step)
        try:
            place = place_of(directory, self._component, Directories())
            if place is None:
                self._keep(step, ())
                return
            self._marks = self._marks.with_those_of(place.marks)
            before = {held.unique_id: held for held in self._held.get(step, ())}
            found = (self._judged(place, step, each, before.get(each), made) for each in place.listing.unique_ids)
            self._keep(step, tuple(found))
            self.troubles.pop(directory, None)
        except CheckpointError as error:
            self._keep(step, self._held.get(step, ()))
            self.troubles[directory] = error.message

    def _keep(self, step: int | None, found: tuple[Held, ...]) -> None:
        if self._held.get(step) != found:
            self._held[step] = found
            self.number += 1

    def _judged(self, place: Place, step: int | None, unique_id: int, before: Held | None, made: Made) -> Held:
        sighting, files = sighted(place, unique_id)
        record = bytes.fromhex(sighting.digest)
        if before is not None and before.sighting == record:
            return before
        changed_at = max((stamp.mtime_ns for stamp in files.files), default=0) / 1e9
        size_bytes, file_count = files.size_bytes, len(files.files)
        published = made(step, unique_id)
        if files.digest in published:
            return Held(unique_id, record, changed_at, size_bytes, file_count, None)
        verified = verify(Version(self.source, step, unique_id, place.component, place.directory, self._marks))
        # Rank files that the metadata does not name are no part of a version, which only the metadata shows.
        if verified.located is not None and verified.located.fingerprint.digest in published:
            return Held(unique_id, record, changed_at, size_bytes, file_count, None)
        fingerprints = {files.digest} | ({verified.located.fingerprint.digest} if verified.located else set())
        state = verified.report.state
        reason = str(state.reasons[0]) if state.reasons else ""
        return Held(
            unique_id,
            record,
            changed_at,
            size_bytes,
            file_count,
            state.kind,
            reason,
            len(state.reasons),
            frozenset(fingerprints),
        )


def _published(held: Held) -> Held:
    return replace(held, state=None, reason="", issue_count=0, fingerprints=frozenset())


def _directory(root: str, step: int | None) -> str:
    return root if step is None else os.path.join(root, step_name(step))
