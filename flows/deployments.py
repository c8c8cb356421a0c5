"""Which deployments a pipeline has: one for each source, and those that look after all of them. Pure data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ckptcore.pipeline import Pipeline, as_document
from ckptcore.rules.pipeline import AUDIT, GATES, MERGE, POST_TRAINING, PRUNE, RECONCILE
from flows.names import OPERATIONS
from flows.parameters import merge_parameters


@dataclass(frozen=True, slots=True)
class Wanted:
    """A deployment as it should be. ``when`` is the text of its schedule, ``pool`` a pool other than the pipeline's;
    both None for none."""

    flow: str
    name: str
    parameters: Mapping[str, Any]
    when: str | None = None
    pool: str | None = None

    @property
    def full_name(self) -> str:
        return f"{self.flow}/{self.name}"


def deployments_of(pipeline: Pipeline) -> Iterator[Wanted]:
    """One for each source, and one for each flow that looks after all of them; without a schedule to be run by hand."""
    for source in pipeline.sources:
        yield Wanted(MERGE, pipeline.name_of(source), merge_parameters(pipeline, source))
    document, schedule = {"pipeline": as_document(pipeline)}, pipeline.schedule
    yield Wanted(RECONCILE, pipeline.name, document, schedule.reconcile)
    yield Wanted(POST_TRAINING, pipeline.name, document, schedule.post_training)
    yield Wanted(AUDIT, pipeline.name, document, schedule.audit)
    for operation in OPERATIONS:
        yield Wanted(operation, pipeline.name, {"registry": pipeline.registry})
    if pipeline.retention.rules():
        yield Wanted(PRUNE, pipeline.name, document, schedule.prune)
    if pipeline.gpu_work_pool is not None:
        yield Wanted(
            GATES, pipeline.name, {"gpu_devices": document["pipeline"]["gpu_devices"]}, pool=pipeline.gpu_work_pool
        )
