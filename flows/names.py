"""What the flows are called on a server, and where their code is."""

from __future__ import annotations

from ckptcore.rules.pipeline import AUDIT, MERGE, POST_TRAINING, PRUNE, RECONCILE

__all__ = ["AUDIT", "ENTRYPOINTS", "MERGE", "POST_TRAINING", "PRUNE", "RECONCILE", "merge_deployment"]

ENTRYPOINTS = {
    MERGE: "flows.merge_and_publish.merge_and_publish",
    RECONCILE: "flows.reconcile.reconcile",
    POST_TRAINING: "flows.post_training.post_training",
    PRUNE: "flows.prune.prune",
    AUDIT: "flows.audit.audit",
}
"""Where the package is installed, a worker needs nothing else to run a flow."""


def merge_deployment(name: str) -> str:
    """The deployment that publishes under ``name``."""
    return f"{MERGE}/{name}"
