"""What the flows are called on a server, and where their code is."""

from __future__ import annotations

from ckptcore.rules.pipeline import AUDIT, MERGE, PIN, POST_TRAINING, PROMOTE, PRUNE, RECONCILE, ROLLBACK

__all__ = [
    "AUDIT",
    "ENTRYPOINTS",
    "MERGE",
    "OPERATIONS",
    "PIN",
    "POST_TRAINING",
    "PROMOTE",
    "PRUNE",
    "RECONCILE",
    "ROLLBACK",
    "merge_deployment",
]

ENTRYPOINTS = {
    MERGE: "flows.merge_and_publish.merge_and_publish",
    RECONCILE: "flows.reconcile.reconcile",
    POST_TRAINING: "flows.post_training.post_training",
    PRUNE: "flows.prune.prune",
    AUDIT: "flows.audit.audit",
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
