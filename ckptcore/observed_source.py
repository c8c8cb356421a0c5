"""Keep an eye on one source: which versions it holds and in what state each is, cheaply, look after look.

What was looked into is remembered; the newest steps and those that are not whole are looked at every time, the others
in turn, since a save that overwrites an old step changes no directory. Nothing is written, and nobody is told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
    """A version in the source. ``state`` is None where a release was made of these very bytes: nothing was read."""

    sighting: bytes
    changed_at: float
    size_bytes: int
    file_count: int
    state: StateKind | None
    reason: str = ""
    issue_count: int = 0


class SourceEye:
    """One source and what is known of each of its versions. Not for several threads at once."""

    def __init__(self, source: str, component: str | None = None) -> None:
        self.source = source
        self._component = component
        self._marks = RunMarks()
        self._held: dict[int | None, dict[int, Held]] = {}
        self._listed: tuple[int, float, Sequence[int | None]] | None = None
        self._turn = 0
        self.unread_steps = 0
        self.troubles: dict[str, str] = {}
        """What cannot be read now, by its path, and why."""

    def held(self) -> Iterator[tuple[int | None, int, Held]]:
        """Every version that was looked at, with its step and id."""
        for step, versions in self._held.items():
            for unique_id, held in versions.items():
                yield step, unique_id, held

    def look(self, made: Made, until: float) -> None:
        """Look once: at the steps where something may be happening, and until ``until`` (of ``time.monotonic``) at
        those that were never looked into, the newest first."""
        root = os.path.realpath(self.source)
        try:
            steps = self._steps(root)
        except CheckpointError as error:
            self.troubles = {self.source: error.message}
            return
        self.troubles = {path: why for path, why in self.troubles.items() if path != self.source}
        for gone in self._held.keys() - set(steps):
            del self._held[gone]
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
            self._listed = (changed_ns, 0.0, listing.steps or (None,))
        return self._listed[2]

    def _steps_to_look_at(self, steps: Sequence[int | None]) -> list[int | None]:
        newest, old = steps[-NEWEST_STEPS:], [step for step in steps[:-NEWEST_STEPS] if step in self._held]
        is_open = [step for step in old if any(_may_change(held) for held in self._held[step].values())]
        begin = self._turn if self._turn < len(old) else 0
        in_turn = old[begin : begin + OLD_STEPS_A_LOOK]
        self._turn = begin + len(in_turn)
        return list(dict.fromkeys((*reversed(newest), *is_open, *in_turn)))

    def _look_at(self, root: str, step: int | None, made: Made) -> None:
        directory = _directory(root, step)
        try:
            place = place_of(directory, self._component, Directories())
            if place is None:
                self._held[step] = {}
                return
            self._marks = self._marks.with_those_of(place.marks)
            before = self._held.get(step, {})
            self._held[step] = {
                unique_id: self._judged(place, step, unique_id, before.get(unique_id), made(step, unique_id))
                for unique_id in place.listing.unique_ids
            }
            self.troubles.pop(directory, None)
        except CheckpointError as error:
            self._held.setdefault(step, {})
            self.troubles[directory] = error.message

    def _judged(
        self, place: Place, step: int | None, unique_id: int, before: Held | None, made: frozenset[str]
    ) -> Held:
        sighting, files = sighted(place, unique_id)
        record = bytes.fromhex(sighting.digest)
        # What had a release and lost it is read now: nobody knew its state.
        if before is not None and before.sighting == record and (before.state is not None or made):
            return before
        changed_at = max((stamp.mtime_ns for stamp in files.files), default=0) / 1e9
        size_bytes, file_count = files.size_bytes, len(files.files)
        if files.digest in made:
            return Held(record, changed_at, size_bytes, file_count, None)
        verified = verify(Version(self.source, step, unique_id, place.component, place.directory, self._marks))
        # Rank files that the metadata does not name are no part of a version, which only the metadata shows.
        if verified.located is not None and verified.located.fingerprint.digest in made:
            return Held(record, changed_at, size_bytes, file_count, None)
        state = verified.report.state
        reason = str(state.reasons[0]) if state.reasons else ""
        return Held(record, changed_at, size_bytes, file_count, state.kind, reason, len(state.reasons))


def _directory(root: str, step: int | None) -> str:
    return root if step is None else os.path.join(root, step_name(step))


def _may_change(held: Held) -> bool:
    return held.state is StateKind.INCOMPLETE
