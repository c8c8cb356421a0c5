"""Prune: remove the releases of a name that no rule keeps."""

from __future__ import annotations

from collections.abc import Sequence

from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from ckptcore.retaining import Pruned
from ckptcore.retaining import prune as prune_releases
from ckptcore.rules.retention import Rule
from tasks.artifacts import artifact_key, show_table
from tasks.lifecycle_task import lifecycle_task


@lifecycle_task
def prune(registry: str, name: str, rules: Sequence[Rule], dry_run: bool = False, reason: str = "") -> Pruned:
    """What was planned and done; with ``dry_run`` nothing is."""
    pruned = prune_releases(registry, name, rules, dry_run=dry_run, reason=reason, flow_run=str(flow_run.id or ""))
    get_run_logger().info("%s: %d release(s) removed, %d spared", name, len(pruned.removed), len(pruned.spared))
    rows = [
        {"kind": "keep" if verdict.is_kept else "drop", "where": verdict.release, "finding": ", ".join(verdict.reasons)}
        for verdict in pruned.plan.verdicts
    ]
    show_table(artifact_key("retention", name), rows, f"{name}: {len(pruned.removed)} release(s) removed")
    return pruned
