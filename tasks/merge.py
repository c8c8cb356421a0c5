"""Merge: write the planned release into the registry, where nobody sees it yet."""

from __future__ import annotations

import os
from collections.abc import Sequence

from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from ckptcore.mappings import companions_of
from ckptcore.pipeline import RunnerSettings
from ckptcore.publishing import Staged, staging
from ckptcore.writing import write_rest
from tasks.artifacts import artifact_key
from tasks.fan_out import fan_out
from tasks.lifecycle_task import lifecycle_task
from tasks.plan import PlannedMerge
from tasks.progress import MergeProgress
from tasks.superseding import GoOn, go_on, interrupted_by


@lifecycle_task
def merge(
    planned: PlannedMerge,
    registry: str,
    name: str,
    attach: Sequence[str] = (),
    runner: RunnerSettings = RunnerSettings(),
    go_on: GoOn = go_on,
) -> Staged:
    """The staged release of ``name``, with the files to ``attach`` and those found beside the source.

    Nothing is written where that release is published already. Refuses a source that is not what was planned. Its
    shards are written by this process, or by those of the ``runner``; this one holds the staging all the while. Where
    this process writes, it asks ``go_on`` now and then, and throws away what it has written where that raises.
    """
    made = planned.again()
    companions: list[str | os.PathLike[str]] = [*companions_of(made.directory, planned.layout, attach), *attach]
    key = artifact_key("merge", name)
    with staging(made, registry, name, attach=companions, flow_run=str(flow_run.id or "")) as release:
        if release.writing is not None and runner.is_threads:
            with MergeProgress(made, key) as told, interrupted_by(go_on, told) as progress:
                write_rest(release.writing, progress)
        elif release.writing is not None:
            fan_out(release.writing, runner, key)
        staged = release.finish()
    done = "is published already" if staged.already_published else f"is staged at {staged.path}"
    get_run_logger().info("%s@%s %s", name, staged.release, done)
    return staged
