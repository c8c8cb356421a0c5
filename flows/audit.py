"""Audit: re-read what the pipeline has published, every byte."""

from __future__ import annotations

from prefect import flow

from ckptcore.errors import ReleaseInvalid, ReleaseNotFound
from ckptcore.pipeline import Pipeline
from ckptcore.rules.audit import AuditReport
from ckptcore.rules.issues import Issue
from tasks.audit import audit as audit_name
from tasks.ending import ended_by


@flow(name="audit", flow_run_name="{pipeline.name}: audit")
def audit(pipeline: Pipeline) -> dict[str, AuditReport]:
    """Read every release of each name of the pipeline; what is wrong with any fails the run, with every issue.

    Args:
        pipeline: The pipeline as its file describes it.
    """
    reports, issues = dict[str, AuditReport](), list[Issue]()
    for name in pipeline.names:
        try:
            reports[name] = audit_name(pipeline.registry, name)
        except ReleaseNotFound:
            continue  # nothing is published yet
        except ReleaseInvalid as refusal:
            issues += refusal.issues
    if issues:
        refused: dict[str, AuditReport] = ended_by(
            ReleaseInvalid(f"{pipeline.registry}: {len(issues)} issue(s)", issues)
        )
        return refused
    return reports
