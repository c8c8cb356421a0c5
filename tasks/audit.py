"""Audit: re-read a name of a registry, every byte, against its manifests."""

from __future__ import annotations

from prefect.logging import get_run_logger

from ckptcore.auditing import audit as audit_registry
from ckptcore.errors import ReleaseInvalid
from ckptcore.rules.audit import AuditReport
from tasks.artifacts import artifact_key, issue_rows, show_table
from tasks.lifecycle_task import lifecycle_task


@lifecycle_task
def audit(registry: str, name: str) -> AuditReport:
    """The report of a name that is clean; any other is shown, and refused with every issue."""
    report = audit_registry(registry, name)
    found = f"{report.releases:,} release(s), {report.files:,} files, {report.size_bytes:,} bytes"
    get_run_logger().info("%s: %s, %d issue(s)", name, found, len(report.issues))
    rows = [*issue_rows("issue", report.issues), *issue_rows("note", report.notes)]
    show_table(
        artifact_key("audit", name), [{"kind": "read", "where": name, "finding": found}, *rows], f"{name}: {found}"
    )
    if report.issues:
        raise ReleaseInvalid(f"{registry}: {name}: {len(report.issues)} issue(s)", report.issues)
    return report
