"""What an alias named before, from the history, and where a rollback goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.aliases import Earlier, earlier, is_recorded, trail_of
from ckptcore.rules.release import Act


def moves(*steps: tuple[str, str], alias: str = "production") -> tuple[Act, ...]:
    """A history of ``(act, release)`` in which nothing was lost."""
    acts, previous = list[Act](), ""
    for act, release in steps:
        acts.append(Act("t", act, release, alias, previous))
        previous = release
    return tuple(acts)


ABC = moves(("publish", "A"), ("publish", "B"), ("promote", "C"))
EVERYTHING = frozenset("ABCD")


def test_rollbacks_go_further_and_further_back() -> None:
    assert earlier(trail_of(ABC, "production", "C"), EVERYTHING) == Earlier("B", ())
    once = (*ABC, Act("t", "rollback", "B", "production", "C"))
    assert earlier(trail_of(once, "production", "B"), EVERYTHING) == Earlier("A", ())
    twice = (*once, Act("t", "rollback", "A", "production", "B"))
    assert earlier(trail_of(twice, "production", "A"), EVERYTHING) is None


def test_a_move_after_a_rollback_is_undone_first() -> None:
    history = moves(
        ("publish", "A"), ("publish", "B"), ("publish", "C"), ("rollback", "B"), ("promote", "D"), ("rollback", "B")
    )
    assert trail_of(history[:-1], "production", "D") == ("A", "B", "D")
    assert earlier(trail_of(history, "production", "B"), EVERYTHING) == Earlier("A", ())


def test_a_release_that_is_gone_is_passed_over_and_named() -> None:
    assert earlier(trail_of(ABC, "production", "C"), {"A", "C"}) == Earlier("A", ("B",))
    assert earlier(trail_of(ABC, "production", "C"), {"C"}) is None
    history = (*ABC, Act("t", "rollback", "A", "production", "C"))
    assert trail_of(history, "production", "A") == ("A",)


def test_a_rollback_never_goes_to_the_release_that_is_there() -> None:
    there_and_back = moves(("publish", "A"), ("publish", "B"), ("promote", "A"))
    assert earlier(trail_of(there_and_back, "production", "A"), EVERYTHING) == Earlier("B", ())
    assert earlier(trail_of(there_and_back, "production", "A"), {"A"}) is None


def test_other_aliases_and_other_acts_do_not_count() -> None:
    others = (Act("t", "pin", "D"), *moves(("publish", "D"), alias="latest"), Act("t", "prune", "D"))
    assert trail_of((*others, *ABC, *others), "production", "C") == ("A", "B", "C")


def test_a_move_that_was_never_recorded_is_part_of_the_trail() -> None:
    assert trail_of(ABC, "production", "D") == ("A", "B", "C", "D")
    assert trail_of((), "production", "A") == ("A",)
    # The next act tells where the alias was by then.
    assert trail_of((*ABC, Act("t", "promote", "A", "production", "D")), "production", "A") == ("A", "B", "C", "D", "A")


def test_a_rollback_that_was_never_recorded_is_taken_as_one() -> None:
    assert earlier(trail_of(ABC, "production", "B"), EVERYTHING) == Earlier("A", ())


def test_the_last_move_is_recorded_or_not() -> None:
    assert is_recorded(ABC, "production", "C")
    assert not is_recorded(ABC, "production", "B")
    assert not is_recorded(ABC, "latest", "C")


@given(st.lists(st.sampled_from("ABCD"), min_size=1, max_size=8))
def test_rolling_back_walks_every_earlier_release_and_ends(promoted: list[str]) -> None:
    history = moves(*(("promote", release) for release in promoted))
    current, visited = promoted[-1], [promoted[-1]]
    while (target := earlier(trail_of(history, "production", current), EVERYTHING)) is not None:
        history = (*history, Act("t", "rollback", target.release, "production", current))
        current = target.release
        visited.append(current)
    changes = [release for at, release in enumerate(promoted) if at == 0 or promoted[at - 1] != release]
    assert visited == changes[::-1]
