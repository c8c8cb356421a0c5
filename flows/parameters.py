"""What a pipeline's file says, as the parameters of the flow that publishes one of its sources."""

from __future__ import annotations

from typing import Any

from ckptcore.pipeline import Pipeline, SourceSettings
from flows.names import gates_deployment

PATIENCE_SECONDS = 120.0
"""An announcement says that one rank is done; the others are rarely later than this. Reconcile has more patience."""


def merge_parameters(pipeline: Pipeline, source: SourceSettings) -> dict[str, Any]:
    """The parameters of ``merge_and_publish`` for the newest version of the source, as JSON has them."""
    return {
        "source": source.choice.model_dump(mode="json"),
        "registry": pipeline.registry,
        "name": pipeline.name_of(source),
        "alias": pipeline.alias_of(source),
        "checks": pipeline.checks.model_dump(mode="json"),
        "runner": pipeline.runner.model_dump(mode="json"),
        "gates_deployment": None if pipeline.gpu_work_pool is None else gates_deployment(pipeline.name),
        "gpu_devices": None if pipeline.gpu_devices is None else list(pipeline.gpu_devices),
        "only_forward": True,
    }
