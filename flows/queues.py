"""The work pools of a pipeline, and its queues in them: how many merges run at a time, and what need not wait for them.

A worker has room for the flows that look after merges too, so that it is the queue of merges that is limited. Queues
are of one pipeline, whose limit is not that of others in the pool, and go with it.
"""

from __future__ import annotations

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectNotFound

from ckptcore.pipeline import Pipeline
from ckptcore.rules.pipeline import MERGE
from flows.names import OPERATIONS

_PAGE = 200


def queue_of(flow: str, pipeline: str) -> str | None:
    """The queue of a pipeline's runs of the flow; None for the pool's own, which comes last.

    What looks after merges must not keep them waiting, and neither what an operator asks for.
    """
    if flow == MERGE:
        return _merges(pipeline)
    return _operations(pipeline) if flow in OPERATIONS else None


def apply_queues(client: SyncPrefectClient, pipeline: Pipeline) -> tuple[list[str], list[str]]:
    """Make the pools and the queues as the file says; what was made, and what was changed."""
    made, changed, pool = list[str](), list[str](), pipeline.work_pool
    for name in filter(None, (pool, pipeline.gpu_work_pool)):
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            client.create_work_pool(WorkPoolCreate(name=name, type="process"))
            made.append(f"work pool {name}")
    # The one that is made last comes first: a server moves the others back.
    for name, limit in ((_merges(pipeline.name), pipeline.limits.merges), (_operations(pipeline.name), None)):
        try:
            found = client.read_work_queue_by_name(name, work_pool_name=pool)
        except ObjectNotFound:
            client.create_work_queue(name, concurrency_limit=limit, priority=1, work_pool_name=pool)
            made.append(f"work queue {pool}/{name}")
            continue
        if found.concurrency_limit != limit:
            client.update_work_queue(found.id, concurrency_limit=limit)
            changed.append(f"work queue {pool}/{name}")
    return made, changed


def remove_queues(client: SyncPrefectClient, pipeline: str, kept_pool: str | None = None) -> list[str]:
    """Remove the queues that the pipeline has in other pools than ``kept_pool``; what was removed."""
    removed, offset = list[str](), 0
    while pools := client.read_work_pools(limit=_PAGE, offset=offset):
        offset += len(pools)
        for pool in pools:
            for name in (_merges(pipeline), _operations(pipeline)) if pool.name != kept_pool else ():
                try:
                    found = client.read_work_queue_by_name(name, work_pool_name=pool.name)
                except ObjectNotFound:
                    continue
                client.delete_work_queue_by_id(found.id)
                removed.append(f"work queue {pool.name}/{name}")
    return removed


def _merges(pipeline: str) -> str:
    return f"merges-{pipeline}"


def _operations(pipeline: str) -> str:
    return f"operations-{pipeline}"
