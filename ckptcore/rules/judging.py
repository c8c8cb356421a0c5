"""What there is to say of a pipeline in one sentence: what is wrong, or how it goes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ckptcore.rules.observed import PipelineSeen, Stage


class Level(StrEnum):
    """How urgently somebody should look."""

    WRONG = "wrong"
    WAITING = "waiting"
    BUSY = "busy"
    FINE = "fine"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What there is to say of a pipeline in one sentence, the worst first."""

    level: Level
    sentence: str

    @property
    def rank(self) -> int:
        return list(Level).index(self.level)


SLOW_PUBLISHING_SECONDS = 15 * 60.0
DISK_DAYS = 7.0
DAY = 86_400.0


def judge(seen: PipelineSeen, now: float, *, is_running: bool = False, failure: str = "") -> Judgement:
    """What is wrong, or how it goes. ``failure`` is the last run's, where no later run went well."""
    newest = seen.newest
    if seen.troubles:
        return Judgement(Level.WRONG, seen.troubles[0])
    lost = [alias.alias for alias in seen.aliases if not alias.exists]
    if lost:
        return Judgement(Level.WRONG, f"{lost[0]} names a release that does not exist")
    if newest is not None and newest.stage is Stage.DAMAGED:
        return Judgement(Level.WRONG, f"{newest.label} is damaged: {newest.reason}")
    if failure:
        return Judgement(Level.WRONG, failure)
    if seen.is_stalled(now):
        return Judgement(Level.WRONG, "no new version for longer than allowed")
    fills_up_at = None if seen.disk is None else seen.disk.fills_up_at(now)
    if fills_up_at is not None and fills_up_at - now < DISK_DAYS * DAY:
        return Judgement(Level.WRONG, "the disk of the registry fills up within a week")
    if newest is not None and newest.stage is Stage.INCOMPLETE:
        return Judgement(Level.WAITING, f"{newest.label} was left incomplete: {newest.reason}")
    waits = seen.waits_seconds(now)
    if waits is not None and not is_running:
        level = Level.WAITING if waits > SLOW_PUBLISHING_SECONDS else Level.BUSY
        complete = seen.newest_complete
        return Judgement(level, f"{complete.label if complete else 'a version'} is complete and not published yet")
    if is_running or (newest is not None and newest.stage is Stage.MERGING):
        return Judgement(Level.BUSY, "a run is at work")
    if newest is not None and newest.stage is Stage.WRITING:
        return Judgement(Level.BUSY, f"{newest.label} is being written")
    if newest is None:
        what = "there is no version yet" if seen.is_read and not seen.unread_steps else "it is being looked at"
        return Judgement(Level.EMPTY, what)
    if newest.stage is Stage.RETIRED:
        return Judgement(Level.FINE, "the newest version was published, and its release pruned since")
    return Judgement(Level.FINE, "the newest version is published")
