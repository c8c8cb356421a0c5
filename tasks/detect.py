"""Detect: which version of the source to take."""

from __future__ import annotations

import time

from prefect.logging import get_run_logger

from ckptcore.detecting import newest_complete
from ckptcore.errors import SourceChanged, VersionDamaged, VersionIncomplete
from ckptcore.rules.versions import Version
from tasks.artifacts import artifact_key, refusals_shown, show_table
from tasks.lifecycle_task import lifecycle_task

_LOOK_SECONDS = 2.0


@lifecycle_task
def detect(
    source: str,
    component: str | None = None,
    step: int | None = None,
    unique_id: int | None = None,
    patience_seconds: float = 0.0,
) -> Version:
    """The newest complete version of the source; ``step`` and ``unique_id`` narrow it. Refuses where there is none.

    One that is not whole is waited for as long as ``patience_seconds``: an announcement says that one rank is done, and
    a file that another rank still writes looks like one that is cut off.
    """
    key, end = artifact_key("detected", source), time.monotonic() + patience_seconds
    with refusals_shown(key):
        while True:
            try:
                version = newest_complete(source, component, step, unique_id)
                break
            except (VersionIncomplete, VersionDamaged, SourceChanged):
                if time.monotonic() >= end:
                    raise
                time.sleep(_LOOK_SECONDS)
    get_run_logger().info("%s: %s in %s", source, version.label, version.directory)
    rows = [{"kind": "version", "where": version.directory, "finding": version.label}]
    show_table(key, rows, f"{version.label}, the newest complete that was asked for")
    return version
