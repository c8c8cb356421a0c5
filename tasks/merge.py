"""Merge: write the planned release into the registry, where nobody sees it yet."""

from __future__ import annotations

import os
from collections.abc import Sequence

from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from ckptcore.mappings import companions_of
from ckptcore.publishing import Staged, stage
from tasks.artifacts import artifact_key
from tasks.lifecycle_task import lifecycle_task
from tasks.plan import PlannedMerge
from tasks.progress import MergeProgress
from tasks.superseding import GoOn, go_on, interrupted_by


@lifecycle_task
def merge(planned: PlannedMerge, registry: str, name: str, attach: Sequence[str] = (), go_on: GoOn = go_on) -> Staged:
    """The staged release of ``name``, with the files to ``attach`` and those found beside the source.

    Nothing is written where that release is published already. Refuses a source that is not what was planned, and ends
    as ``go_on`` says, which is asked now and then; what was written is thrown away then.
    """
    made = planned.again()
    companions: list[str | os.PathLike[str]] = [*companions_of(made.directory, planned.layout, attach), *attach]
    run = str(flow_run.id or "")
    with MergeProgress(made, artifact_key("merge", name)) as told, interrupted_by(go_on, told) as progress:
        staged = stage(made, registry, name, attach=companions, flow_run=run, on_progress=progress)
    done = "is published already" if staged.already_published else f"is staged at {staged.path}"
    get_run_logger().info("%s@%s %s", name, staged.release, done)
    return staged
