"""Watch sources for trainers that announce nothing, by looking again and again, which works on NFS and Lustre too.

A version is announced when nothing about it changes any more and it is whole: its mark first, then the event. What was
there before watching began, but for the newest steps, is left to reconcile. Looks are cheap: a run of 10,000 steps is
listed only when its directory changed, and of old steps a few are looked at each time. A source that vanishes or
cannot be read is told of once, and looked at again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ckptcore import announcing
from ckptcore.errors import CheckpointError, EventUnacceptable, StorageError, VersionNotFound
from ckptcore.events import DAMAGED, Event, damaged_event, send, send_once
from ckptcore.placing import place_of, sighted
from ckptcore.rules.layout import step_name
from ckptcore.rules.versions import Listing, RunMarks, StateKind, Version, VersionState
from ckptcore.rules.watching import Track, follow, is_due, known, next_pause
from ckptcore.storage.local import Directories
from ckptcore.verifying import verify

NEWEST_STEPS = 2
"""Steps in which something may be happening, and which are looked at every time."""
OLD_STEPS_A_LOOK = 32
"""Others are looked at in turn, for a save that overwrites them."""
_MTIME_GRAIN_S = 2.0
"""A directory that changed twice within this may have one time for both changes."""


@dataclass(frozen=True, slots=True)
class Found:
    """A version that is written, and what it is. ``digest`` is over the files that it has."""

    version: Version
    state: VersionState
    digest: str


class SourceWatch:
    """One source and what is known of each of its versions. Not for several threads at once."""

    def __init__(self, source: str, component: str | None = None, settle_looks: int = 3) -> None:
        self.source = source
        self._component = component
        self._settle_looks = settle_looks
        self._listed_at: tuple[int, float, float] | None = None
        self._root_listing: Listing | None = None
        self._marks = RunMarks()
        self._tracks: dict[int | None, dict[int, Track]] = {}
        self._pending: set[int | None] = set()
        """Steps with something that is not judged yet, and in `_open` those that were found incomplete."""
        self._open: set[int | None] = set()
        self._seen: frozenset[int | None] | None = None
        self._old: set[int | None] = set()
        """Steps that were there before watching began, and were not looked at since."""
        self._turn = 0
        self.troubles: dict[str, str] = {}
        """What cannot be read now, by its path, and why."""

    @property
    def is_busy(self) -> bool:
        """Whether something was seen that is not judged yet."""
        return bool(self._pending)

    def look(self) -> Iterator[Found]:
        """Look once: each version that is settled since the last look, once. Raises :class:`CheckpointError` where the
        source itself is not there or cannot be read; then nothing that was known is forgotten."""
        root = os.path.realpath(self.source)
        steps = self._steps(root)
        self._meet(steps)
        self.troubles = {path: why for path, why in self.troubles.items() if os.path.lexists(path)}
        for step in self._steps_to_look_at(steps):
            directory = root if step is None else os.path.join(root, step_name(step))
            try:
                yield from self._look_at_step(step, directory, Directories())
                self.troubles.pop(directory, None)
            except (StorageError, VersionNotFound) as error:
                self.troubles[directory] = error.message

    def _meet(self, steps: Sequence[int | None]) -> None:
        """Note which steps came and went since the last look."""
        now = frozenset(steps)
        if now == self._seen:
            return
        if self._seen is None:
            self._old = set(steps[:-NEWEST_STEPS])
        else:
            self._pending |= now - self._seen
        self._seen = now
        for kept in (self._pending, self._open, self._old):
            kept &= now
        for gone in self._tracks.keys() - now:
            del self._tracks[gone]

    def _steps(self, root: str) -> Sequence[int | None]:
        """The steps of the run, sorted; where the source is a step or rank files, None for itself."""
        try:
            changed_ns = os.stat(root).st_mtime_ns
        except OSError as error:
            raise VersionNotFound(f"{self.source}: {error.strerror}") from error
        now = time.monotonic()
        seen_ns, first_seen, listed = self._listed_at or (-1, now, now)
        if self._root_listing is None or seen_ns != changed_ns or listed - first_seen < _MTIME_GRAIN_S:
            listing = Directories().listing(root)
            if listing is None:
                raise VersionNotFound(f"{self.source}: no such directory")
            self._root_listing = listing
            self._listed_at = (changed_ns, first_seen if seen_ns == changed_ns else now, now)
        return self._root_listing.steps or (None,)

    def _steps_to_look_at(self, steps: Sequence[int | None]) -> list[int | None]:
        newest, old = steps[-NEWEST_STEPS:], steps[:-NEWEST_STEPS]
        of_interest = sorted(self._pending | self._open, key=lambda step: -1 if step is None else step)
        begin = self._turn if self._turn < len(old) else 0
        in_turn = old[begin : begin + OLD_STEPS_A_LOOK]
        self._turn = begin + len(in_turn)
        return list(dict.fromkeys((*newest, *of_interest, *in_turn)))

    def _look_at_step(self, step: int | None, directory: str, directories: Directories) -> Iterator[Found]:
        place = place_of(directory, self._component, directories)
        was_there_before = step in self._old
        for kept in (self._pending, self._open, self._old):
            kept.discard(step)
        if place is None:
            self._tracks.pop(step, None)
            return
        self._marks = self._marks.with_those_of(place.marks)
        tracks = self._tracks.setdefault(step, {})
        for gone in tracks.keys() - set(place.listing.unique_ids):
            del tracks[gone]
        for unique_id in place.listing.unique_ids:
            sighting, files = sighted(place, unique_id)
            if was_there_before:
                tracks[unique_id] = known(sighting)
                continue
            before = tracks.get(unique_id)
            track = tracks[unique_id] = follow(before, sighting)
            if is_due(track, sighting, before, self._settle_looks):
                version = Version(self.source, step, unique_id, place.component, place.directory, self._marks)
                state = verify(version).report.state
                tracks[unique_id] = track.judged(is_open=state.kind is StateKind.INCOMPLETE)
                yield Found(version, state, files.digest)
            elif not track.is_judged:
                self._pending.add(step)
            if tracks[unique_id].is_open:
                self._open.add(step)


class Watcher:
    """Several sources, and the server that is told; ``tell`` gets a line for people."""

    def __init__(self, sources: Iterable[SourceWatch], url: str | None, tell: Callable[[str], None]) -> None:
        self._sources = tuple(sources)
        self._url = url
        self._tell = tell
        self._told: dict[str, str] = {}
        self._unsent: dict[str, Event] = {}

    def run(self, stop: threading.Event, *, every_s: float, slowest_s: float) -> None:
        """Look until ``stop`` is set."""
        pause_s = every_s
        while not stop.is_set():
            pause_s = next_pause(pause_s, self.look(), every_s, slowest_s)
            stop.wait(pause_s)

    def look(self) -> bool:
        """Look at every source once; whether anything happened or is about to."""
        is_busy = False
        for watch in self._sources:
            try:
                for found in watch.look():
                    self._act(found)
                    is_busy = True
                self._settle_account(watch, None)
            except CheckpointError as error:
                self._settle_account(watch, error.message)
            except OSError as error:
                # Gone or unreadable between two looks at it, as where the trainer deletes the step meanwhile.
                self._settle_account(watch, f"{error.filename or watch.source}: {error.strerror or error}")
            is_busy = is_busy or watch.is_busy
        return self._send() or is_busy

    @property
    def has_unsent(self) -> bool:
        """Whether events wait for a server that does not take them."""
        return bool(self._unsent)

    def _act(self, found: Found) -> None:
        version, state = found.version, found.state
        match state.kind:
            case StateKind.COMPLETE:
                event = self._mark(version)
                self._unsent[event["id"]] = event
            case StateKind.DAMAGED:
                self._tell(f"{version.directory}: {version.label} is damaged: {state.reasons[0]}")
                event = damaged_event(version, found.digest, state.reasons)
                self._unsent[event["id"]] = event
            case StateKind.INCOMPLETE:
                self._tell(f"{version.directory}: {version.label} is waited for: {state.reasons[0]}")

    def _mark(self, version: Version) -> Event:
        try:
            event = announcing.write_mark(version.directory, version.unique_id).event
        except OSError as error:
            # A source that may only be read: the event alone has to do, and reconcile stands behind it.
            self._tell(f"{version.directory}: {version.label}: no mark is written: {error.strerror or error}")
            event = announcing.event_of(version.directory, version.unique_id, None)
        self._tell(f"{version.directory}: {version.label} is written and whole")
        return event

    def _send(self) -> bool:
        """Send what is to be sent; whether anything is left."""
        if self._url is None:
            self._unsent.clear()
            return False
        for identity, event in tuple(self._unsent.items()):
            try:
                # Each event of a damaged version is an alert; a second one of one that is whole finds it published.
                (send_once if event["event"] == DAMAGED else send)(event, self._url)
            except EventUnacceptable as error:
                # It would stand before all others for ever; what is whole, reconcile finds without it.
                self._tell(f"{event['resource']['prefect.resource.id']}: dropped: {error.message}")
            except StorageError as error:
                self._say("", error.message)
                return True
            del self._unsent[identity]
            self._say("", None)
        return False

    def _settle_account(self, watch: SourceWatch, trouble: str | None) -> None:
        """Tell of what cannot be read, once, and of what can be read again."""
        self._say(watch.source, trouble)
        if trouble is not None:
            return
        prefix = f"{watch.source}\0"
        for path in {key.removeprefix(prefix) for key in self._told if key.startswith(prefix)} - watch.troubles.keys():
            self._say(f"{prefix}{path}", None)
        for path, why in watch.troubles.items():
            self._say(f"{prefix}{path}", why)

    def _say(self, key: str, trouble: str | None) -> None:
        if self._told.get(key) == trouble:
            return
        if trouble is None:
            self._tell(f"{key.rpartition(chr(0))[2] or self._url}: is there again")
            del self._told[key]
        else:
            self._tell(trouble)
            self._told[key] = trouble
