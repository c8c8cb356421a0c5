"""What a picture of a pipeline says: stages, lag, stall, growth, and what is wrong first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckptcore.rules.judging import DAY, Level, judge
from ckptcore.rules.observed import (
    AliasSeen,
    DiskSeen,
    PipelineSeen,
    ReleaseSeen,
    Stage,
    VersionSeen,
    Watched,
    assembled,
    growth,
    on_shared_disks,
    stage_of,
)
from ckptcore.rules.versions import StateKind

NOW = 1_000_000.0
WATCHED = Watched("llama", "llama", stall_seconds=3600.0)


def version(step: int, stage: Stage, *, age_s: float = 100.0, published_s: float | None = None) -> VersionSeen:
    is_published = published_s is not None
    return VersionSeen(
        step,
        0,
        stage,
        NOW - age_s,
        release=f"step-{step}" if is_published else "",
        published_at=NOW - published_s if published_s is not None else None,
        reason="rank 1 is missing" if stage in (Stage.INCOMPLETE, Stage.DAMAGED) else "",
    )


def pipeline(*versions: VersionSeen, **others: object) -> PipelineSeen:
    seen = assembled(WATCHED, versions, [], [], retired_count=0)
    return replace(seen, **others)  # type: ignore[arg-type]


def test_the_newest_of_each_kind_is_found_whatever_the_order() -> None:
    seen = pipeline(
        version(100, Stage.PUBLISHED, age_s=500, published_s=400),
        version(400, Stage.WRITING, age_s=5),
        version(300, Stage.DAMAGED),
        version(200, Stage.COMPLETE, age_s=120),
    )
    assert [each.step for each in seen.versions] == [400, 300, 200, 100]
    found = (seen.newest, seen.newest_complete, seen.newest_published)
    assert [each and each.step for each in found] == [400, 200, 100]
    assert (seen.waits_seconds(NOW), seen.took_seconds, seen.quiet_seconds(NOW)) == (120, 100, 5)
    assert seen.counts[Stage.DAMAGED] == 1


def test_nothing_waits_when_the_newest_complete_version_is_published() -> None:
    assert pipeline(version(100, Stage.PUBLISHED, published_s=10)).waits_seconds(NOW) is None
    assert pipeline().waits_seconds(NOW) is None


def test_a_run_that_resumed_from_an_earlier_step_is_not_stalled() -> None:
    kept = version(300, Stage.PUBLISHED, age_s=9000, published_s=8900)
    seen = pipeline(kept, version(200, Stage.PUBLISHED, age_s=60, published_s=30), replace(kept, step=100))
    assert seen.quiet_seconds(NOW) == 60
    assert not seen.is_stalled(NOW)


def test_a_version_that_was_saved_again_waits_for_its_release() -> None:
    again = replace(version(200, Stage.COMPLETE, age_s=1000, published_s=400), is_saved_again=True)
    seen = pipeline(version(100, Stage.PUBLISHED, age_s=5000, published_s=4000), again)
    assert seen.newest_published is not None
    assert seen.newest_published.step == 100
    assert seen.waits_seconds(NOW) == 1000
    assert "step 200 is complete and not published yet" in judge(seen, NOW).sentence


@pytest.mark.parametrize(
    ("stage", "words"),
    [(Stage.RETIRED, "was published, and its release pruned since"), (Stage.MERGING, "a run is at work")],
)
def test_what_was_published_and_pruned_does_not_wait(stage: Stage, words: str) -> None:
    older = version(100, Stage.PUBLISHED, age_s=3000, published_s=2900)
    seen = pipeline(older, version(200, stage, age_s=2000, published_s=1900))
    assert seen.newest_published is not None
    assert seen.newest_published.step == 100
    assert seen.waits_seconds(NOW) is None
    assert words in judge(seen, NOW).sentence


def test_a_version_that_was_saved_again_does_not_say_how_long_publishing_took() -> None:
    again = replace(version(100, Stage.COMPLETE, age_s=500, published_s=400), is_saved_again=True)
    assert pipeline(again).took_seconds is None


@pytest.mark.parametrize(
    ("state", "quiet_s", "stage"),
    [
        (StateKind.COMPLETE, 0.0, Stage.COMPLETE),
        (StateKind.INCOMPLETE, 59.0, Stage.WRITING),
        (StateKind.INCOMPLETE, 60.0, Stage.INCOMPLETE),
        (StateKind.DAMAGED, 1.0, Stage.WRITING),
        (StateKind.DAMAGED, 3600.0, Stage.DAMAGED),
    ],
)
def test_what_is_not_whole_is_being_written_while_it_changes(state: StateKind, quiet_s: float, stage: Stage) -> None:
    assert stage_of(state, quiet_s) is stage


def releases(*ages_h: float, size: int | None = 1000) -> list[ReleaseSeen]:
    return [ReleaseSeen(f"r{age}", None, 0, NOW - age * 3600, size) for age in sorted(ages_h)]


def test_growth_is_the_slope_of_sizes_over_times() -> None:
    assert growth(releases(0, 1, 2, 3), 0) == pytest.approx(1000 / 3600)
    assert growth(releases(0, 1, 2, 3), 2) == pytest.approx(1000 / 3600 * 4 / 6)


@pytest.mark.parametrize(
    ("found", "retired"),
    [([], 0), (releases(0), 0), (releases(0, 0.5), 0), (releases(0, 1, 2, size=None), 0), (releases(0, 1, 2), 3)],
)
def test_no_growth_is_claimed_where_too_little_is_known_or_as_much_goes(found: list[ReleaseSeen], retired: int) -> None:
    assert growth(found, retired) == 0.0


def test_a_disk_fills_by_all_that_is_published_on_it() -> None:
    one = replace(pipeline(), grows_bytes_a_second=10.0)
    assert on_shared_disks([one, one, one], [1, 1, None]) == {1: 20.0}
    assert DiskSeen(1000, 100, 20.0).fills_up_at(NOW) == NOW + 5
    assert DiskSeen(1000, 100, 0.0).fills_up_at(NOW) is None


FINE = version(100, Stage.PUBLISHED, published_s=50)


@pytest.mark.parametrize(
    ("seen", "level", "words"),
    [
        (pipeline(FINE), Level.FINE, "the newest version is published"),
        (pipeline(FINE, troubles=("no such disk",)), Level.WRONG, "no such disk"),
        (pipeline(FINE, aliases=(AliasSeen("latest", "r", exists=False),)), Level.WRONG, "latest names a release"),
        (pipeline(FINE, version(200, Stage.DAMAGED)), Level.WRONG, "step 200 is damaged: rank 1 is missing"),
        (pipeline(version(100, Stage.PUBLISHED, age_s=4000, published_s=50)), Level.WRONG, "longer than allowed"),
        (pipeline(FINE, disk=DiskSeen(9, 3, 3 / DAY)), Level.WRONG, "fills up within a week"),
        (pipeline(FINE, version(200, Stage.INCOMPLETE)), Level.WAITING, "step 200 was left incomplete"),
        (pipeline(FINE, version(200, Stage.COMPLETE, age_s=1000)), Level.WAITING, "not published yet"),
        (pipeline(FINE, version(200, Stage.COMPLETE, age_s=60)), Level.BUSY, "not published yet"),
        (pipeline(FINE, version(200, Stage.WRITING, age_s=1)), Level.BUSY, "is being written"),
        (pipeline(is_read=False), Level.EMPTY, "it is being looked at"),
        (pipeline(), Level.EMPTY, "there is no version yet"),
    ],
)
def test_the_worst_is_said_first(seen: PipelineSeen, level: Level, words: str) -> None:
    judgement = judge(seen, NOW)
    assert (judgement.level, words in judgement.sentence) == (level, True), judgement


def test_runs_count() -> None:
    waiting = pipeline(FINE, version(200, Stage.COMPLETE, age_s=1000))
    assert judge(waiting, NOW, is_running=True).level is Level.BUSY
    assert judge(pipeline(FINE), NOW, failure="merge failed").sentence == "merge failed"
