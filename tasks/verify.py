"""Verify: whether every file, piece, shape and dtype of a version is what it must be."""

from __future__ import annotations

from collections.abc import Iterator

from prefect.logging import get_run_logger

from ckptcore.rules.pictures import cells_of, rank_map
from ckptcore.rules.verification import VerificationReport
from ckptcore.rules.versions import Version
from ckptcore.verifying import require_sound
from ckptcore.verifying import verify as verify_version
from tasks.artifacts import Row, artifact_key, issue_rows, show_picture, show_table
from tasks.lifecycle_task import lifecycle_task


@lifecycle_task
def verify(version: Version, deep: bool = False) -> VerificationReport:
    """The report of a sound version, shown as a table and as a map of its ranks.

    An unsound one is shown too, then refused with every issue.

    Headers only, unless ``deep``.
    """
    verified = verify_version(version, deep=deep)
    report = verified.report
    get_run_logger().info(
        "%s is %s: %d files, %d tensors, %d issues, %d notes",
        version.label,
        report.state.kind,
        len(report.files),
        report.tensor_count,
        len(report.issues),
        len(report.notes),
    )
    headline = next(iter(report.lines()))
    show_table(artifact_key("verification", version.source), report_rows(report), headline)
    show_picture(artifact_key("ranks", version.source), rank_map(headline, cells_of(report)), headline)
    require_sound(verified)
    return report


def report_rows(report: VerificationReport) -> Iterator[Row]:
    """What refuses the version first, then what is worth knowing, then every file."""
    yield from issue_rows("issue", report.issues)
    yield from issue_rows("note", report.notes)
    for found in report.files:
        size = "" if found.size_bytes is None else f", {found.size_bytes:,} bytes"
        digest = f", SHA-256 {found.sha256}" if found.sha256 else ""
        yield {"kind": "file", "where": found.name, "finding": f"{found.state.value}{size}{digest}"}
