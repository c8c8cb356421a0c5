"""Reconcile: publish every complete version that is not published, the oldest first.

What the event path lost, because the server or a worker was down, comes back here. Running it twice, or beside events
for the same versions, does no harm: each version is merged once.
"""

from __future__ import annotations

from uuid import UUID

from prefect import flow
from prefect.logging import get_run_logger
from prefect.runtime import deployment

from ckptcore.errors import CheckpointError, VersionNotFound
from ckptcore.pipeline import Pipeline
from ckptcore.registry import releases_on, shelf_of
from flows.names import merge_deployment
from tasks.catch_up import CaughtUp, catch_up, drop_missed, tidy_limits
from tasks.ending import failing_by


@flow(name="reconcile", flow_run_name="{pipeline.name}: reconcile")
def reconcile(pipeline: Pipeline) -> dict[str, CaughtUp]:
    """Start a run for each complete version that is not published, by name, as far as the pipeline's limits allow.

    A source or a registry that cannot be read fails the run, after every other source was looked at. A source that is
    not there yet and has no releases is no fault: its training may not have begun.

    Args:
        pipeline: The pipeline as its file describes it.
    """
    caught_up: dict[str, CaughtUp] = {}
    faults: list[Exception] = []
    if deployment.id is not None:
        drop_missed(str(deployment.id))
    for source in pipeline.sources:
        name = pipeline.name_of(source)
        try:
            caught_up[name] = catch_up(pipeline, source, merge_deployment(name))
        except (CheckpointError, OSError) as fault:
            # The other sources are not at fault.
            get_run_logger().warning("%s", fault)
            if not (isinstance(fault, VersionNotFound) and _is_new(pipeline, name)):
                faults.append(fault)
    tidy_limits()
    if faults:
        failing: dict[str, CaughtUp] = failing_by(faults, None if deployment.id is None else UUID(str(deployment.id)))
        return failing
    return caught_up


def _is_new(pipeline: Pipeline, name: str) -> bool:
    return not releases_on(shelf_of(pipeline.registry, name))
