"""Which release an alias named from when to when."""

from __future__ import annotations

from ckptcore.clock import seconds_of
from ckptcore.rules.alias_spans import alias_spans
from ckptcore.rules.release import Act


def act(minute: int, what: str, release: str, alias: str = "") -> Act:
    return Act(f"2027-01-01T00:{minute:02}:00Z", what, release, alias, user="ops")


def test_each_move_ends_the_span_before_it() -> None:
    acts = [
        act(0, "publish", "one", "latest"),
        act(1, "publish", "two", "latest"),
        act(2, "promote", "one", "production"),
        act(3, "pin", "one"),
        act(4, "rollback", "one", "latest"),
    ]
    zero = seconds_of(acts[0].at)
    assert zero is not None
    found = [
        (span.alias, span.release, span.since - zero, span.until and span.until - zero)
        for span in alias_spans(acts, seconds_of)
    ]
    assert found == [
        ("latest", "one", 0, 60),
        ("latest", "two", 60, 240),
        ("latest", "one", 240, None),
        ("production", "one", 120, None),
    ]


def test_what_leaves_an_alias_where_it_was_begins_nothing_and_a_bad_time_is_left_out() -> None:
    acts = [
        act(0, "publish", "one", "latest"),
        act(1, "promote", "one", "latest"),
        Act("never", "promote", "two", "latest"),
    ]
    (span,) = alias_spans(acts, seconds_of)
    assert (span.release, span.until, span.act) == ("one", None, "publish")
