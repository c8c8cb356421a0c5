"""What a dry run showed: whole counts and a digest a name, though its table is cut."""

from __future__ import annotations

from ckptcore.dashboard.pruning import drawn, planned_of


def rows(name: str, drop: int, keep: int) -> list[dict[str, str]]:
    """As a prune leaves them, of which only the first are listed."""
    return [
        {"kind": "keep", "where": f"{name}-kept", "finding": "pinned"},
        {"kind": "drop", "where": f"{name}-old", "finding": ""},
        {"kind": "… and more", "where": "", "finding": ""},
        {"kind": "plan", "where": name, "drop": str(drop), "keep": str(keep), "digest": f"digest of {name}"},
    ]


def test_counts_are_of_the_whole_plan_and_each_name_is_bound() -> None:
    planned = planned_of([*rows("b", 700, 3), *rows("a", 0, 9)])
    assert (planned.drop_count, planned.keep_count, planned.names) == (700, 12, ("b",))
    assert planned.expect == {"a": "digest of a", "b": "digest of b"}
    text = drawn(planned)
    assert "700 to remove, 12 to keep." in text
    assert text.index("b-old") < text.index("b-kept")


def test_without_releases_there_is_nothing_to_remove() -> None:
    planned = planned_of([])
    assert (planned.drop_count, planned.expect) == (0, {})
    assert "nothing to remove" in drawn(planned)
