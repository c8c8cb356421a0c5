"""What a dry run says a prune would remove, read from the tables it left, and what binds the order to just that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ckptcore.dashboard.markup import Markup, joined, shown, tag


@dataclass(frozen=True, slots=True)
class Planned:
    """``rows`` are releases, what goes first, maybe not all; the counts and ``expect``, a digest a name, are whole."""

    rows: tuple[Mapping[str, str], ...]
    drop_count: int
    keep_count: int
    names: tuple[str, ...]
    """Those that lose releases."""
    expect: Mapping[str, str]


def planned_of(rows: Sequence[Mapping[str, str]]) -> Planned:
    """From the rows of all tables of the run; without any, no name has releases."""
    plans = [row for row in rows if row.get("kind") == "plan"]
    listed = sorted((row for row in rows if row.get("kind") != "plan"), key=lambda row: row.get("kind") != "drop")
    return Planned(
        tuple(listed),
        sum(int(plan["drop"]) for plan in plans),
        sum(int(plan["keep"]) for plan in plans),
        tuple(sorted(plan["where"] for plan in plans if int(plan["drop"]))),
        {plan["where"]: plan["digest"] for plan in plans},
    )


def drawn(planned: Planned) -> Markup:
    """The counts, and what would go and stay."""
    if not planned.rows:
        return tag("p", "There is nothing to remove.", role="status")
    lines = [
        tag(
            "tr",
            tag("td", shown(row.get("kind", "")), class_="level-wrong" if row.get("kind") == "drop" else "muted"),
            tag("td", shown(row.get("where", "")), class_="mono"),
            tag("td", shown(row.get("finding", "")), class_="muted"),
        )
        for row in planned.rows
    ]
    table = tag("div", tag("table", tag("tbody", *lines), class_="grid"), class_="scroll plan")
    counts = f"{planned.drop_count:,} to remove, {planned.keep_count:,} to keep."
    return joined([tag("p", counts, role="status"), table])
