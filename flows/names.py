"""Where the code of each flow is, and what the deployments that others ask for are called."""

from __future__ import annotations

from ckptcore.rules.pipeline import AUDIT, GATES, MERGE, PIN, POST_TRAINING, PROMOTE, PRUNE, RECONCILE, ROLLBACK

ENTRYPOINTS = {
    MERGE: "flows.merge_and_publish.merge_and_publish",
    RECONCILE: "flows.reconcile.reconcile",
    POST_TRAINING: "flows.post_training.post_training",
    PRUNE: "flows.prune.prune",
    AUDIT: "flows.audit.audit",
    GATES: "flows.pass_gates.pass_gates",
    PROMOTE: "flows.operate.promote",
    ROLLBACK: "flows.operate.rollback",
    PIN: "flows.operate.pin",
}
"""Where the package is installed, a worker needs nothing else to run a flow."""

OPERATIONS = (PROMOTE, ROLLBACK, PIN)
"""What an operator asks for by hand: a moment's work, which somebody waits for."""


def merge_deployment(name: str) -> str:
    """The deployment that publishes under ``name``."""
    return f"{MERGE}/{name}"


def gates_deployment(pipeline: str) -> str:
    """The deployment in which the releases of a pipeline pass the gates that need a device."""
    return f"{GATES}/{pipeline}"
