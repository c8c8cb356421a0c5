"""The table of docs/reliability.md: each fault, how often it happened, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.faults.sweep import Tally

BEGIN = "<!-- made by `make faults` -->"
END = "<!-- end -->"


def table(tallies: Sequence[Tally]) -> str:
    """One row a fault, the scenarios in which it happened named beside it, and a last one for all."""
    rows = [("fault", "in", "times", "result"), ("---", "---", "--:", "---")]
    for fault in dict.fromkeys(tally.fault for tally in tallies):
        of_fault = [tally for tally in tallies if tally.fault == fault]
        rows.append((fault, "; ".join(one.scenario for one in of_fault), _times(of_fault), _result(of_fault)))
    rows.append(("**all**", "", _times(tallies), _result(tallies)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write(page: Path, tallies: Sequence[Tally]) -> None:
    """Put the table between the marks of the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{table(tallies)}\n\n{END}{after}")


def _times(tallies: Iterable[Tally]) -> str:
    return f"{sum(tally.injected for tally in tallies):,}"


def _result(tallies: Iterable[Tally]) -> str:
    failures = sum(len(tally.failures) for tally in tallies)
    return f"**{failures} failures**" if failures else "held"
