"""When a version that somebody is writing counts as written, and how often to look.

Pure decisions over what single looks at a source have shown; looking is ``watching``'s work, and judging whether what
is written is whole is ``verifying``'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_SLOWING = 1.5


@dataclass(frozen=True, slots=True)
class Sighting:
    """A version at one look: a digest over names, sizes and times of its files and marks.

    ``is_marked_finished`` where its writer's own marks say that nothing more will be written.
    """

    digest: str
    is_marked_finished: bool = False


@dataclass(frozen=True, slots=True)
class Track:
    """What is known of a version: its last digest, and in how many looks in a row it was that.

    ``is_judged`` where these very bytes were looked into, or are none of the watcher's business.
    """

    digest: str
    looks: int
    is_judged: bool
    is_open: bool = False
    """Judged, and something was still missing."""

    def judged(self, *, is_open: bool) -> Track:
        return replace(self, is_judged=True, is_open=is_open)


def known(sighting: Sighting) -> Track:
    """The track of a version that was there before watching began: of interest only when it changes."""
    return Track(sighting.digest, 1, is_judged=True)


def follow(track: Track | None, sighting: Sighting) -> Track:
    """The track after one more look."""
    if track is not None and track.digest == sighting.digest:
        return replace(track, looks=track.looks + 1)
    return Track(sighting.digest, 1, is_judged=False)


def is_due(track: Track, sighting: Sighting, before: Track | None, settle_looks: int) -> bool:
    """Whether the version is to be looked into now: settled, and not judged as it is.

    Marks settle it at the first look. Later they may be those of the save that is being overwritten.
    """
    if track.is_judged:
        return False
    return track.looks >= settle_looks or (before is None and sighting.is_marked_finished)


def next_pause(pause_s: float, is_busy: bool, every_s: float, slowest_s: float) -> float:
    """How long to wait for the next look: ``every_s`` while anything happens, then slower and slower."""
    return every_s if is_busy else min(max(pause_s, every_s) * _SLOWING, max(slowest_s, every_s))
