"""Reconcile: publish every complete version that is not published, the oldest first.

What the event path lost, because the server or a worker was down, comes back here. Running it twice, or beside events
for the same versions, does no harm: each version is merged once.
"""

from __future__ import annotations

from prefect import flow
from prefect.logging import get_run_logger
from prefect.runtime import deployment

from ckptcore.errors import CheckpointError
from ckptcore.pipeline import Pipeline
from flows.names import merge_deployment
from tasks.catch_up import CaughtUp, catch_up, drop_missed, tidy_limits


@flow(name="reconcile", flow_run_name="{pipeline.name}: reconcile")
def reconcile(pipeline: Pipeline) -> dict[str, CaughtUp]:
    """Start a run for each complete version that is not published, by name, as far as the pipeline's limits allow.

    Args:
        pipeline: The pipeline as its file describes it.
    """
    caught_up: dict[str, CaughtUp] = {}
    if deployment.id is not None:
        drop_missed(str(deployment.id))
    for source in pipeline.sources:
        name = pipeline.name_of(source)
        try:
            caught_up[name] = catch_up(pipeline, source, merge_deployment(name))
        except CheckpointError as refusal:
            # The other sources are not at fault; a source that stays away is what the alert `stalled` is for.
            get_run_logger().warning("%s", refusal)
    tidy_limits()
    return caught_up
