"""What to do about a version that is not published: try, try again, or leave it alone.

Pure: what was tried comes as data. Finding the versions is ``reconciling``'s, asking the server the flow's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ckptcore.rules.release import Act, parse_release_name

MOST_ATTEMPTS = 6
"""After so many tries nobody waits any longer for what broke each time, and nothing that ended well is repeated."""
FIRST_PAUSE_S = 60.0
LONGEST_PAUSE_S = 4 * 3600.0
_GROWTH = 4.0


class Outcome(StrEnum):
    """How one try to publish a version went."""

    UNDERWAY = "underway"
    REFUSED = "refused"
    """The version, the release or the request is at fault, or somebody cancelled it."""
    BROKEN = "broken"
    """The file system, a full disk, a killed process: the same may succeed later."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Attempt:
    """``ended_at`` in seconds since 1970, None while it is under way."""

    outcome: Outcome
    ended_at: float | None = None


def next_attempt(attempts: Sequence[Attempt], now: float) -> int | None:
    """The number of the try that is due now, from 1; None where none is.

    What was refused would be refused again, since the bytes are the same. What broke is tried again, later each
    time and then every few hours, for as long as it is there: a disk may be full for longer than anybody foresees.
    """
    if any(attempt.outcome in (Outcome.UNDERWAY, Outcome.REFUSED) for attempt in attempts):
        return None
    if _is_repeated(attempts):
        return None
    if attempts:
        growth = _GROWTH ** min(len(attempts) - 1, MOST_ATTEMPTS)
        pause_s = min(FIRST_PAUSE_S * growth, LONGEST_PAUSE_S)
        last = max(attempt.ended_at or 0.0 for attempt in attempts)
        if now - last < pause_s:
            return None
    return len(attempts) + 1


MOST_STOPS = 2
"""After so many runs that stopped for a newer version without a publication in between, the next goes on to its end:
of a trainer that writes faster than a merge takes, every third version at least is published."""


def is_given_up(attempts: Sequence[Attempt]) -> bool:
    """Whether nobody waits for the version any more, by what was tried: nothing is under way, and it was refused, or
    broke so often that another version is published meanwhile. What broke is tried again all the same."""
    if any(attempt.outcome is Outcome.UNDERWAY for attempt in attempts):
        return False
    return len(attempts) >= MOST_ATTEMPTS or any(attempt.outcome is Outcome.REFUSED for attempt in attempts)


def _is_repeated(attempts: Sequence[Attempt]) -> bool:
    """Whether run after run ended well and left it unpublished, which one more would not change."""
    return sum(attempt.outcome is Outcome.DONE for attempt in attempts) >= MOST_ATTEMPTS


def last_publication(history: Iterable[Act]) -> str | None:
    """When the name was last published."""
    return max((act.at for act in history if act.act == "publish"), default=None)


Made = tuple[int | None, int, str]
"""What a release was made from: step, unique_id, and the fingerprint of the files."""


def named_ever(history: Iterable[Act], alias: str, current: str) -> frozenset[str]:
    """The releases that the alias names, ``current``, or ever named; a rollback leaves what it left published."""
    acts = [act for act in history if act.alias == alias]
    return frozenset({current, *(act.release for act in acts), *(act.previous for act in acts)} - {""})


def made_from(history: Iterable[Act]) -> dict[str, Made]:
    """What each release was made from, by its name, where the history tells it."""
    acts = ((parse_release_name(act.release), act) for act in history if act.act == "publish" and act.source)
    return {act.release: (name.step, name.unique_id, act.source) for name, act in acts if name is not None}


def published_under(history: Sequence[Act], named: Collection[str], visible: Collection[str]) -> frozenset[str]:
    """The releases that nothing is left to do for: those that the alias ``named`` once, those that were published and
    stayed behind it, which is recorded without an alias, and those that were pruned since, which was meant."""
    behind = {act.release for act in history if act.act == "publish" and not act.alias}
    pruned = {act.release for act in history if act.act == "prune"}
    return frozenset({*named, *behind, *(pruned - set(visible))})
