"""Detect: which version of the source to take."""

from __future__ import annotations

from prefect.logging import get_run_logger

from ckptcore.detecting import newest_complete
from ckptcore.rules.versions import Version
from tasks.artifacts import artifact_key, refusals_shown, show_table
from tasks.lifecycle_task import lifecycle_task


@lifecycle_task
def detect(source: str, component: str | None = None, step: int | None = None, unique_id: int | None = None) -> Version:
    """The newest complete version of the source; ``step`` and ``unique_id`` narrow it. Refuses where there is none."""
    key = artifact_key("detected", source)
    with refusals_shown(key):
        version = newest_complete(source, component, step, unique_id)
    get_run_logger().info("%s: %s in %s", source, version.label, version.directory)
    rows = [{"kind": "version", "where": version.directory, "finding": version.label}]
    show_table(key, rows, f"{version.label}, the newest complete that was asked for")
    return version
