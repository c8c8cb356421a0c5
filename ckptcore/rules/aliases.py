"""What an alias named before, read from the history: where a rollback goes.

A rollback undoes the last move that no rollback has undone: after moves to A, B and C the first goes to B and the next
to A. Moving the link and recording the act are ``registry``'s.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ckptcore.rules.release import Act

PROMOTE = "promote"
ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Earlier:
    """Where a rollback goes, and what it passes over because it is gone, the newest first."""

    release: str
    skipped: tuple[str, ...]


def trail_of(history: Sequence[Act], alias: str, current: str) -> tuple[str, ...]:
    """What ``alias`` named, one move after the other, the oldest first and undone moves left out.

    The last is ``current``, which the alias names now, "" where there is none.
    """
    trail: list[str] = []
    for act in history:
        if act.alias != alias:
            continue
        _meet(trail, act.previous)
        if act.act == ROLLBACK:
            _go_back(trail, act.release)
        else:
            _go_on(trail, act.release)
    _meet(trail, current)
    return tuple(trail)


def is_recorded(history: Sequence[Act], alias: str, release: str) -> bool:
    """Whether the last recorded move of ``alias`` is the one to ``release``."""
    return next((act.release for act in reversed(history) if act.alias == alias), None) == release


def earlier(trail: Sequence[str], available: Collection[str]) -> Earlier | None:
    """The nearest earlier release of a trail that is still there, or None."""
    skipped: dict[str, None] = {}
    for release in reversed(trail[:-1]):
        if release == trail[-1]:
            continue
        if release in available:
            return Earlier(release, tuple(skipped))
        skipped[release] = None
    return None


def _meet(trail: list[str], release: str) -> None:
    """The alias is seen to name ``release``. Where no act says so, its writer was killed between link and record, and
    a release that the alias named before was most likely gone back to."""
    if release and trail[-1:] != [release]:
        _go_back(trail, release)


def _go_back(trail: list[str], release: str) -> None:
    while trail and release in trail[:-1]:
        trail.pop()
        if trail[-1] == release:
            return
    _go_on(trail, release)


def _go_on(trail: list[str], release: str) -> None:
    if trail[-1:] != [release]:
        trail.append(release)
