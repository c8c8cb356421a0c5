"""Which releases to keep: any rule keeps, what somebody needs is always kept, and the clock reorders nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import InvalidRetention
from ckptcore.rules.release import Act
from ckptcore.rules.retention import (
    KeepEvery,
    KeepLast,
    KeepNewerThan,
    ListedRelease,
    Rule,
    format_age,
    last_published,
    parse_age,
    plan_retention,
)

DAY = 86_400.0


def published(*steps: int) -> tuple[ListedRelease, ...]:
    """One release a day, at the end of day 0, 1, 2, …"""
    return tuple(ListedRelease(f"step-{step}", day * DAY, step, 0) for day, step in enumerate(steps))


rules = st.lists(
    st.one_of(
        st.integers(1, 9).map(KeepLast),
        st.integers(1, 900).map(KeepEvery),
        st.floats(0.1, 1e6).map(KeepNewerThan),
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def shelves(draw: st.DrawFn) -> tuple[ListedRelease, ...]:
    count = draw(st.integers(0, 12))
    return tuple(
        ListedRelease(
            name=f"r{number}",
            published_at=draw(st.floats(-1e6, 1e6)),
            step=draw(st.none() | st.integers(0, 3000)),
            unique_id=draw(st.integers(0, 3)),
            aliases=tuple(draw(st.sets(st.sampled_from(["latest", "production"])))),
            is_pinned=draw(st.booleans()),
            is_leased=draw(st.booleans()),
            is_recognised=draw(st.booleans()),
        )
        for number in range(count)
    )


@given(shelves(), rules, st.floats(-1e7, 1e7))
def test_what_somebody_needs_is_never_dropped(
    releases: tuple[ListedRelease, ...], rules: list[Rule], now: float
) -> None:
    dropped = set(plan_retention(releases, rules, now).dropped)
    needed = {r.name for r in releases if r.aliases or r.is_pinned or r.is_leased or not r.is_recognised}
    assert not dropped & needed


@given(shelves(), rules, st.floats(-1e7, 1e7))
def test_every_release_has_one_verdict_and_the_newest_is_first(
    releases: tuple[ListedRelease, ...], rules: list[Rule], now: float
) -> None:
    plan = plan_retention(releases, rules, now)
    assert [verdict.release for verdict in plan.verdicts] == [release.name for release in reversed(releases)]


@given(shelves(), rules, st.floats(-1e7, 1e7), st.integers(1, 5).map(KeepLast))
def test_another_rule_never_drops_more(
    releases: tuple[ListedRelease, ...], rules: list[Rule], now: float, another: KeepLast
) -> None:
    fewer = set(plan_retention(releases, [*rules, another], now).dropped)
    assert fewer <= set(plan_retention(releases, rules, now).dropped)


@given(st.integers(0, 12), st.integers(1, 15))
def test_the_last_are_exactly_that_many(count: int, last: int) -> None:
    releases = published(*range(count))
    kept = [verdict.release for verdict in plan_retention(releases, [KeepLast(last)], 0).verdicts if verdict.is_kept]
    assert kept == [release.name for release in releases[::-1]][:last]


@given(st.lists(st.floats(0, 1e6), max_size=10), st.floats(0.1, 1e6), st.floats(0, 2e6))
def test_nothing_newer_is_dropped_by_age_whatever_the_clocks_said(times: list[float], age: float, now: float) -> None:
    releases = tuple(ListedRelease(f"r{number:02}", time, number) for number, time in enumerate(times))
    kept = [verdict.is_kept for verdict in plan_retention(releases, [KeepNewerThan(age)], now).verdicts]
    assert kept == sorted(kept, reverse=True)


def test_a_clock_that_was_set_back_does_not_drop_the_newer_one() -> None:
    before, after = published(10, 20)
    releases = (replace(before, published_at=9 * DAY), replace(after, published_at=2 * DAY))
    assert plan_retention(releases, [KeepNewerThan(3 * DAY)], 10 * DAY).dropped == ()
    assert plan_retention(releases, [KeepNewerThan(3 * DAY)], 1 * DAY).dropped == ()
    assert plan_retention(releases, [KeepNewerThan(3 * DAY)], 12.5 * DAY).dropped == ("step-10", "step-20")


def test_last_means_published_last_not_the_highest_step() -> None:
    releases = published(1000, 2000, 50)
    assert plan_retention(releases, [KeepLast(1)], 0).dropped == ("step-1000", "step-2000")


def test_every_so_many_steps() -> None:
    releases = (*published(0, 500, 1000, 1500, 2000), ListedRelease("id-0", 9 * DAY, None, 0))
    assert plan_retention(releases, [KeepEvery(1000)], 0).dropped == ("step-500", "step-1500", "id-0")


def test_by_age_the_limit_itself_is_too_old() -> None:
    releases = published(1, 2, 3)
    assert plan_retention(releases, [KeepNewerThan(DAY)], 2 * DAY).dropped == ("step-1", "step-2")


def test_what_is_not_recognised_takes_no_place_of_the_last() -> None:
    releases = (*published(1, 2), ListedRelease("notes", 9 * DAY, is_recognised=False))
    assert plan_retention(releases, [KeepLast(1)], 0).dropped == ("step-1",)


def test_a_plan_says_what_keeps_each_release() -> None:
    first, second, third = published(500, 1000, 1500)
    releases = (first, replace(second, is_pinned=True), replace(third, aliases=("latest",)))
    plan = plan_retention(releases, [KeepLast(1), KeepEvery(1000), KeepNewerThan(7 * DAY)], 30 * DAY)
    assert plan.lines() == (
        "keep  step-1500  alias latest, one of the last 1",
        "keep  step-1000  pinned, every 1000 steps",
        "drop  step-500",
        "2 to keep, 1 to drop",
    )
    assert plan.verdicts[2].to_json() == {"release": "step-500", "keep": False, "reasons": []}


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("rule", [KeepLast, KeepEvery, KeepNewerThan])
def test_zero_and_less_are_refused(rule: type[KeepLast] | type[KeepEvery] | type[KeepNewerThan], number: int) -> None:
    with pytest.raises(InvalidRetention, match="must be more than 0"):
        rule(number)


def test_an_age_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidRetention):
        KeepNewerThan(float("nan"))


def test_no_rule_is_refused() -> None:
    with pytest.raises(InvalidRetention, match="no rule"):
        plan_retention(published(1, 2), [], 0)


def test_a_release_is_as_new_as_its_last_publication() -> None:
    acts = [Act("t1", "publish", "A", "latest"), Act("t2", "publish", "B", "latest"), Act("t3", "publish", "A", "x")]
    assert [(name, act.at) for name, act in last_published(acts).items()] == [("B", "t2"), ("A", "t3")]
    assert list(last_published([*acts, Act("t4", "promote", "B", "x"), Act("t5", "prune", "A")])) == ["B"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600)]
)
def test_an_age_is_read(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "0d", "-1d", "1.5d", "7 days", "7D", "1e3s", "٣d"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an age"):
        parse_age(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(604_800, "7d"), (1_209_600, "14d"), (43_200, "12h"), (1800, "30m"), (90, "90s")],
)
def test_an_age_is_shown(seconds: float, text: str) -> None:
    assert format_age(seconds) == text
