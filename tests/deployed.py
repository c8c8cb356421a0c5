"""A pipeline on a training run of three steps, and its runs on the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, State

from ckptcore.pipeline import Pipeline
from ckptcore.rules.pipeline import pipeline_tag
from tests.builders import SavedCheckpoint, write_trainer_run

SAVED = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(2, 1))


def pipeline_in(directory: Path, name: str, **settings: Any) -> Pipeline:
    write_trainer_run(directory / "run", dict.fromkeys((1, 2, 3), SAVED))
    document = {"name": name, "registry": str(directory / "registry"), "sources": [{"path": str(directory / "run")}]}
    return Pipeline.model_validate(document | settings)


def merges_of(name: str) -> list[FlowRun]:
    tagged = FlowRunFilter(tags=FlowRunFilterTags(all_=[pipeline_tag(name)]))
    with get_client(sync_client=True) as client:
        return sorted(client.read_flow_runs(flow_run_filter=tagged), key=lambda run: run.name)


def set_state(run: FlowRun, state: State[Any]) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, state, force=True)
