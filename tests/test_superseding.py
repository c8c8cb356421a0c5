"""A run stops for a newer version where the pipeline says so, leaves nothing behind, and never for ever."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.flow_engine import run_flow_sync
from prefect.logging import disable_run_logger

from ckptcore.detecting import list_versions, newest_complete
from ckptcore.errors import Superseded
from ckptcore.pipeline import Pipeline
from ckptcore.publishing import Staged, publish_staged, stage
from ckptcore.reconciling import outstanding
from ckptcore.registry import releases_on, resolve, shelf_of
from ckptcore.rules.pipeline import merge_limit, version_parameters
from ckptcore.superseding import Lookout
from flows.deploying import deploy
from flows.merge_and_publish import merge_and_publish
from flows.reconcile import reconcile
from tasks import superseding
from tasks.merge import merge
from tasks.plan import plan
from tests.builders import SavedCheckpoint, write_trainer_run

SAVED = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(2, 1))


def newer_steps(source: Path, step: int) -> list[int | None]:
    [version] = [found for found in list_versions(source) if found.step == step]
    return [found.step for found, _ in Lookout(str(source), version).newer()]


def test_newer_versions_that_are_whole(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED, 2: SAVED, 3: SAVED.without_rank(1)}, signals=False)
    write_trainer_run(run, {4: SAVED.truncated("1_0.distcp", at=99)}, signals=False)
    write_trainer_run(run, {5: SAVED}, component="optimizer_state", signals=False)
    assert newer_steps(run, 1) == [2]
    assert newer_steps(run, 2) == []
    # A source that is one step takes no other.
    assert newer_steps(run / "checkpoint-1", 1) == []


def test_a_version_that_becomes_whole_and_one_that_is_overwritten(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED, 2: SAVED.without_rank(1)}, signals=False)
    lookout = Lookout(str(run), list_versions(run)[-1])
    assert list(lookout.newer()) == []
    write_trainer_run(run, {2: SAVED}, signals=False)
    assert list(lookout.newer()) == []  # it may be changing still
    [(first, digest)] = lookout.newer()
    SAVED.tensor("v", [1.0]).write(run / "checkpoint-2" / "model_state")
    assert list(lookout.newer()) == []
    [(again, other)] = lookout.newer()
    assert first == again
    assert digest != other


def test_a_newer_id_in_a_plain_directory(tmp_path: Path) -> None:
    SAVED.write(tmp_path / "plain")
    version = newest_complete(tmp_path / "plain")
    lookout = Lookout(str(tmp_path / "plain"), version)
    assert list(lookout.newer()) == []
    replace(SAVED, unique_id=3).write(tmp_path / "plain")
    assert [found.unique_id for found, _ in lookout.newer()] == [3]


def test_reconcile_looks_only_at_what_is_newer_than_what_was_published(tmp_path: Path) -> None:
    run, registry = write_trainer_run(tmp_path / "run", dict.fromkeys((1, 2, 3, 4), SAVED)), tmp_path / "registry"
    with disable_run_logger():
        left = [found.version.step for found in outstanding(str(run), None, registry, "w", only_newer=True)]
        assert left == [4, 3, 2, 1]
        merged = merge.fn(plan.fn(newest_complete(run, step=2)), str(registry), "w")
        assert not merged.already_published
        publish_staged(merged)
    assert [found.version.step for found in outstanding(str(run), None, registry, "w", only_newer=True)] == [4, 3]


def test_a_merge_that_is_stopped_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superseding, "LOOK_SECONDS", 0.01)
    saved = SavedCheckpoint()
    for number in range(200):
        saved = saved.tensor(f"w{number}", np.zeros(64, dtype=np.float32))
    run, asked = write_trainer_run(tmp_path / "run", {1: saved}), list[object]()

    def stop(staged: Staged | None = None) -> None:
        asked.append(staged)
        if len(asked) == 3:
            raise Superseded("version 0 of step 2 is whole")

    def slowly(size_bytes: int) -> None:
        time.sleep(0.02)

    with disable_run_logger():
        planned = plan.fn(newest_complete(run), max_shard_bytes=512).again()
    with pytest.raises(Superseded), superseding.interrupted_by(stop, slowly) as progress:
        stage(planned, tmp_path / "registry", "w", on_progress=progress)
    assert asked == [None] * 3
    assert list((tmp_path / "registry" / "w" / ".staging").iterdir()) == []


@pytest.fixture
def stopping(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A deployed pipeline that stops what is superseded, with three versions to publish."""
    monkeypatch.setattr("tasks.catch_up.EVENT_SECONDS", 0.0)
    write_trainer_run(tmp_path / "run", dict.fromkeys((1, 2, 3), SAVED), signals=False)
    pipeline = Pipeline.model_validate(
        {
            "name": tmp_path.name,
            "registry": str(tmp_path / "registry"),
            "sources": [{"path": str(tmp_path / "run")}],
            "limits": {"superseded": "stop"},
        }
    )
    deploy(pipeline, str(tmp_path))
    return pipeline


def run_of(pipeline: Pipeline, step: int, **more: Any) -> FlowRun:
    """A run of the deployment for that step, as the event of the version starts it."""
    directory = str(Path(pipeline.sources[0].path) / f"checkpoint-{step}" / "model_state")
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(f"merge-and-publish/{pipeline.name}")
        return client.create_flow_run_from_deployment(
            deployment.id, parameters=version_parameters(directory, 0) | {"superseded": "stop"} | more
        )


def outcome_of(run: FlowRun) -> State[Any]:
    """Do what a worker does with the run."""
    publishing: Flow[Any, Any] = merge_and_publish
    state = run_flow_sync(publishing, flow_run=run, parameters=run.parameters, return_type="state")
    assert isinstance(state, State)
    return state


@pytest.mark.prefect_server
def test_an_older_run_stops_and_reconcile_takes_the_newest_alone(stopping: Pipeline, tmp_path: Path) -> None:
    run = run_of(stopping, 1)
    state = outcome_of(run)
    assert (state.name, state.is_completed()) == ("Superseded", True)
    assert "version 0 of step 3 is whole" in str(state.message)
    shelf = shelf_of(stopping.registry, stopping.name)
    assert releases_on(shelf) == ()
    assert not (shelf.root / "latest").exists()
    limit = merge_limit(stopping.name, str(tmp_path / "run" / "checkpoint-1" / "model_state"), 0)
    with get_client(sync_client=True) as client:
        assert client.read_global_concurrency_limit_by_name(limit).active_slots == 0
    assert reconcile(stopping)[stopping.name].started == ("version 0 of step 3",)
    assert reconcile(stopping)[stopping.name].started == ()
    assert outcome_of(run_of(stopping, 3)).name == "Completed"
    assert resolve(stopping.registry, stopping.name).name.startswith("step-3_")
    caught_up = reconcile(stopping)[stopping.name]
    assert (caught_up.started, caught_up.held_back) == ((), ())


@pytest.mark.prefect_server
def test_of_three_runs_one_finishes(stopping: Pipeline) -> None:
    states = [outcome_of(run_of(stopping, 1)).name, outcome_of(run_of(stopping, 2)).name]
    assert states == ["Superseded", "Superseded"]
    write_trainer_run(Path(stopping.sources[0].path), {4: SAVED}, signals=False)
    assert outcome_of(run_of(stopping, 3)).name == "Completed"
    assert resolve(stopping.registry, stopping.name).name.startswith("step-3_")


@pytest.mark.prefect_server
def test_what_will_not_be_published_stops_nobody(stopping: Pipeline, tmp_path: Path) -> None:
    write_trainer_run(tmp_path / "run", {3: SAVED.truncated("1_0.distcp", at=99)}, signals=False)
    refused = outcome_of(run_of(stopping, 2, checks={"smoke": "tests.smoke_functions:says_no"}))
    assert refused.name == "Refused"
    assert outcome_of(run_of(stopping, 1)).name == "Completed"
    # What is older than a release is superseded by it, and what was refused is left alone.
    assert reconcile(stopping)[stopping.name].started == ()


@pytest.mark.prefect_server
def test_a_run_by_hand_is_never_stopped(stopping: Pipeline, tmp_path: Path) -> None:
    by_hand = merge_and_publish(stopping.sources[0].choice, stopping.registry, stopping.name, step=1, superseded="stop")
    assert by_hand.release.startswith("step-1_")
