"""What the flows are called on a server, and where their code is."""

from __future__ import annotations

MERGE = "merge-and-publish"
RECONCILE = "reconcile"
POST_TRAINING = "post-training"
PRUNE = "prune"
AUDIT = "audit"
GATES = "pass-gates"

ENTRYPOINTS = {
    MERGE: "flows.merge_and_publish.merge_and_publish",
    RECONCILE: "flows.reconcile.reconcile",
    POST_TRAINING: "flows.post_training.post_training",
    PRUNE: "flows.prune.prune",
    AUDIT: "flows.audit.audit",
    GATES: "flows.pass_gates.pass_gates",
}
"""Where the package is installed, a worker needs nothing else to run a flow."""


def merge_deployment(name: str) -> str:
    """The deployment that publishes under ``name``."""
    return f"{MERGE}/{name}"


def gates_deployment(pipeline: str) -> str:
    """The deployment in which the releases of a pipeline pass the gates that need a device."""
    return f"{GATES}/{pipeline}"
