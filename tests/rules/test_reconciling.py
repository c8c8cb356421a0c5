"""Which versions without a release are tried, and how often."""

from __future__ import annotations

import pytest

from ckptcore.rules.reconciling import (
    LONGEST_PAUSE_S,
    MOST_ATTEMPTS,
    Attempt,
    Outcome,
    is_given_up,
    last_publication,
    made_from,
    named_ever,
    next_attempt,
    published_under,
)
from ckptcore.rules.release import Act

BROKEN = Attempt(Outcome.BROKEN, 1000.0)


@pytest.mark.parametrize(
    ("attempts", "now", "expected"),
    [
        ([], 0.0, 1),
        ([Attempt(Outcome.UNDERWAY)], 1e9, None),
        ([Attempt(Outcome.REFUSED, 0.0)], 1e9, None),
        ([BROKEN], 1059.0, None),
        ([BROKEN], 1060.0, 2),
        ([BROKEN, BROKEN], 1239.0, None),
        ([BROKEN, BROKEN], 1240.0, 3),
        ([BROKEN, Attempt(Outcome.UNDERWAY)], 1e9, None),
        ([BROKEN] * MOST_ATTEMPTS, 1000.0 + LONGEST_PAUSE_S - 1, None),
        ([BROKEN] * MOST_ATTEMPTS, 1000.0 + LONGEST_PAUSE_S, MOST_ATTEMPTS + 1),
        ([BROKEN] * 2000, 1000.0 + LONGEST_PAUSE_S, 2001),
        ([Attempt(Outcome.DONE, 0.0)] * MOST_ATTEMPTS, 1e9, None),
        ([Attempt(Outcome.DONE, 0.0)], 1e9, 2),  # and its release is gone without a prune
    ],
)
def test_the_next_attempt(attempts: list[Attempt], now: float, expected: int | None) -> None:
    assert next_attempt(attempts, now) == expected


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([], False),
        ([BROKEN], False),
        ([BROKEN] * MOST_ATTEMPTS, True),
        ([BROKEN, Attempt(Outcome.REFUSED, 0.0)], True),
        ([Attempt(Outcome.REFUSED, 0.0), Attempt(Outcome.UNDERWAY)], False),  # by hand, again
        ([Attempt(Outcome.DONE, 0.0)], False),
    ],
)
def test_what_is_given_up(attempts: list[Attempt], expected: bool) -> None:
    assert is_given_up(attempts) is expected


def test_the_last_publication() -> None:
    name = "step-1_id-0_0123456789ab"
    acts = [Act("2026-01-02T00:00:00Z", "publish", name), Act("2026-01-03T00:00:00Z", "promote", name)]
    assert last_publication(acts) == "2026-01-02T00:00:00Z"
    assert last_publication([]) is None


def test_what_the_history_tells_a_release_was_made_from() -> None:
    history = [
        Act("t", "publish", "step-1_id-0_0123456789ab", source="f1"),
        Act("t", "prune", "step-1_id-0_0123456789ab"),
        Act("t", "publish", "id-2_0123456789ab", source="f2"),
        Act("t", "publish", "step-3_id-0_0123456789ab"),  # by a version that did not record it
        Act("t", "promote", "step-4_id-0_0123456789ab", source="f4"),
    ]
    made = {"step-1_id-0_0123456789ab": (1, 0, "f1"), "id-2_0123456789ab": (None, 2, "f2")}
    assert made_from(history) == made


def test_what_is_published_under_an_alias() -> None:
    history = [
        Act("t", "publish", "a", alias="latest", previous="before"),
        Act("t", "publish", "b", alias="candidate"),
        Act("t", "publish", "c"),  # which stayed behind the alias
        Act("t", "publish", "d", alias="candidate"),
        Act("t", "prune", "d"),
        Act("t", "publish", "e", alias="candidate"),
        Act("t", "prune", "e"),  # and is there again
        Act("t", "promote", "f", alias="latest"),
        Act("t", "rollback", "a", alias="latest", previous="f"),
    ]
    named = named_ever(history, "latest", "now")
    assert named == {"a", "before", "f", "now"}
    assert named_ever([], "latest", "") == frozenset()
    assert published_under(history, named, ["a", "b", "e"]) == named | {"c", "d"}
