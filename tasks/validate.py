"""Validate: re-read a staged release as a consumer would."""

from __future__ import annotations

from collections.abc import Sequence

from prefect.logging import get_run_logger

from ckptcore.lifecycle import validate_staged
from ckptcore.publishing import Staged
from ckptcore.rules.shapes import Expectation
from ckptcore.rules.validation import ValidationReport
from tasks.artifacts import artifact_key, issue_rows, refusals_shown, show_table
from tasks.lifecycle_task import lifecycle_task


@lifecycle_task
def validate(staged: Staged, expectations: Sequence[Expectation] = ()) -> ValidationReport:
    """The report of a valid release; any other is shown, thrown away, and refused with every mismatch."""
    key = artifact_key("validation", staged.name)
    with refusals_shown(key):
        report = validate_staged(staged, expectations)
    found = f"{report.files:,} files, {report.tensors:,} tensors, {report.size_bytes:,} bytes"
    get_run_logger().info("%s@%s is valid: %s", staged.name, staged.release, found)
    rows = [{"kind": "found", "where": report.path, "finding": found}, *issue_rows("note", report.notes)]
    show_table(key, rows, f"{staged.release} is valid")
    return report
