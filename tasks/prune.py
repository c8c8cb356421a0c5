"""Prune: remove the releases of a name that no rule keeps."""

from __future__ import annotations

from collections.abc import Sequence

from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from ckptcore.errors import PlanChanged
from ckptcore.retaining import Pruned
from ckptcore.retaining import prune as prune_releases
from ckptcore.rules.retention import RetentionPlan, Rule
from tasks.artifacts import artifact_key, show_table
from tasks.lifecycle_task import lifecycle_task


@lifecycle_task
def prune(
    registry: str, name: str, rules: Sequence[Rule], dry_run: bool = False, reason: str = "", expect: str | None = None
) -> Pruned:
    """What was planned and done; with ``dry_run`` nothing is.

    ``expect`` is the digest of what is to be removed: :class:`PlanChanged` where it is something else by now, and
    nothing is removed.
    """

    def check(plan: RetentionPlan) -> None:
        if expect is not None and plan.digest != expect:
            raise PlanChanged(
                f"{name}: what is to be removed changed since it was shown, {len(plan.dropped)} release(s) by now; "
                f"none is removed; expected the digest {expect[:12]}…, found {plan.digest[:12]}…"
            )

    id_ = str(flow_run.id or "")
    pruned = prune_releases(registry, name, rules, dry_run=dry_run, reason=reason, flow_run=id_, on_plan=check)
    get_run_logger().info("%s: %d release(s) removed, %d spared", name, len(pruned.removed), len(pruned.spared))
    _show(name, pruned)
    return pruned


def _show(name: str, pruned: Pruned) -> None:
    """What goes comes first, since the table is cut; the whole counts, and what binds an order, are a table apart."""
    verdicts = sorted(pruned.plan.verdicts, key=lambda verdict: verdict.is_kept)
    rows = [
        {"kind": "keep" if verdict.is_kept else "drop", "where": verdict.release, "finding": ", ".join(verdict.reasons)}
        for verdict in verdicts
    ]
    show_table(artifact_key("retention", name), rows, f"{name}: {len(pruned.removed)} release(s) removed")
    dropped = pruned.plan.dropped
    whole = {
        "kind": "plan",
        "where": name,
        "drop": str(len(dropped)),
        "keep": str(len(verdicts) - len(dropped)),
        "digest": pruned.plan.digest,
    }
    show_table(artifact_key("retention-plan", name), [whole], f"{name}: {len(dropped)} to drop")
