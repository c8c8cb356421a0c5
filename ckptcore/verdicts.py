"""What gates said of a release, as a small JSON document: from a step's process, or from another pool, to its caller.

A refusal comes back as the refusal it was, with every issue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ckptcore import errors
from ckptcore.errors import CheckpointError
from ckptcore.rules.gates import GateReport
from ckptcore.rules.issues import Issue


def verdict_of(passing: Callable[[], tuple[GateReport, ...]], *, most_issues: int | None = None) -> dict[str, object]:
    """The document that says what ``passing`` gives, or what refused it: with at most so many issues, and how many more
    there are."""
    try:
        return {"passed": [report.to_json() for report in passing()]}
    except CheckpointError as refusal:
        told = list(refusal.issues[:most_issues])
        if left_out := len(refusal.issues) - len(told):
            told.append(Issue("…", f"and {left_out:,} more", code="left-out"))
        issues = [[issue.where, issue.what, issue.expected, issue.found, issue.code] for issue in told]
        return {"refused": {"kind": type(refusal).__name__, "message": refusal.message, "issues": issues}}


def passed(verdict: Mapping[str, Any]) -> tuple[GateReport, ...]:
    """The reports of a verdict. Raises the refusal that it tells of."""
    if (refused := verdict.get("refused")) is not None:
        kind = getattr(errors, str(refused["kind"]))
        refusal: CheckpointError = kind(refused["message"], [Issue(*issue) for issue in refused["issues"]])
        raise refusal
    return tuple(GateReport.from_json(report) for report in verdict["passed"])
