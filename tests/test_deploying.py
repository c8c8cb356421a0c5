"""What a file says is on the server after one call, a second changes nothing, and what is no longer said goes."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, State
from prefect.events.actions import CallWebhook, RunDeployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed, Crashed, Failed, Pending, Running, Scheduled

from ckptcore.blocks import CheckpointRegistry, CheckpointSource
from ckptcore.dashboard.prefect_api import PrefectApi
from ckptcore.dashboard.pruning import planned_of
from ckptcore.errors import InvalidConfig, ReleaseInvalid, SelectionError
from ckptcore.pipeline import Pipeline, SourceChoice
from ckptcore.registry import resolve
from ckptcore.rules.pipeline import merge_limit, pipeline_tag
from ckptcore.rules.retention import digest_of_dropped
from flows import deploying
from flows.audit import audit
from flows.deploying import deploy, undeploy
from flows.merge_and_publish import merge_and_publish
from flows.parameters import merge_parameters
from flows.post_training import post_training
from flows.prune import prune
from flows.reconcile import reconcile
from tasks.catch_up import drop_missed
from tests.builders import SavedCheckpoint, write_trainer_run

pytestmark = pytest.mark.prefect_server

TIMES = (datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1))
SAVED = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(2, 1))


@pytest.fixture(autouse=True)
def no_event_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reconcile need not wait for the events of versions that were written just now."""
    monkeypatch.setattr("tasks.catch_up.EVENT_SECONDS", 0.0)


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


def test_deploying_twice_changes_nothing_and_what_is_not_said_any_more_goes(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploying, "_PAGE", 2)  # as on a server with hundreds of automations
    sources = [{"path": str(tmp_path / "run")}, {"path": str(tmp_path / "run"), "name": "second"}]
    hook = {"webhook": "http://127.0.0.1:9/hook"}
    whole = pipeline_in(
        tmp_path,
        "whole",
        sources=sources,
        stall="2h",
        retention={"last": 3},
        notifications=[hook, hook],
        gpu_work_pool="gpus",
        gpu_devices=2,
    )
    first = deploy(whole, str(tmp_path))
    assert {"merge-and-publish/whole", "merge-and-publish/second", "reconcile/whole", "prune/whole"} <= set(first.made)
    assert {"work pool gpus", "pass-gates/whole"} <= set(first.made)
    assert {"ckpt whole: publish second", "ckpt whole: stalled whole", "ckpt whole: crashed"} <= set(first.made)
    assert (first.changed, first.removed) == ([], [])
    assert deploy(whole, str(tmp_path)).is_unchanged

    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("reconcile/whole")
        assert [str(schedule.schedule.interval) for schedule in deployment.schedules] == ["0:05:00"]  # type: ignore[union-attr]
        publishing = client.read_deployment_by_name("merge-and-publish/second")
        assert publishing.parameters["only_forward"] is True
        assert publishing.parameters["gates_deployment"] == "pass-gates/whole"
        gates = client.read_deployment_by_name("pass-gates/whole")
        assert (gates.work_pool_name, gates.parameters) == ("gpus", {"gpu_devices": [0, 1]})
        [automation] = client.read_automations_by_name("ckpt whole: publish second")
        [action] = automation.actions
        assert isinstance(action, RunDeployment)
        assert action.deployment_id == publishing.id
        [damaged] = client.read_automations_by_name("ckpt whole: damaged second")
        assert [type(each) for each in damaged.actions] == [CallWebhook, CallWebhook]

    other = pipeline_in(tmp_path, "other")
    deploy(other, str(tmp_path))
    less = pipeline_in(tmp_path, "whole", notifications=[hook])
    again = deploy(less, str(tmp_path))
    assert again.made == []
    assert {"merge-and-publish/second", "prune/whole", "ckpt whole: stalled whole"} <= set(again.removed)
    assert "pass-gates/whole" in again.removed
    assert len([name for name in again.removed if name.startswith("block webhook/")]) == 1
    assert deploy(less, str(tmp_path)).is_unchanged
    assert {"merge-and-publish/whole", "ckpt whole: crashed"} <= set(undeploy("whole").removed)
    assert undeploy("whole").is_unchanged
    assert deploy(other, str(tmp_path)).is_unchanged


def test_a_name_that_another_pipeline_has_is_not_taken_from_it(server: str, tmp_path: Path) -> None:
    first = pipeline_in(tmp_path / "a", "first", sources=[{"path": str(tmp_path / "a" / "run"), "name": "ema-of-both"}])
    second = pipeline_in(
        tmp_path / "b", "second", sources=[{"path": str(tmp_path / "b" / "run"), "name": "ema-of-both"}]
    )
    deploy(first, str(tmp_path))
    with pytest.raises(InvalidConfig, match="another pipeline's") as refusal:
        deploy(second, str(tmp_path))
    assert [(issue.where, issue.found) for issue in refusal.value.issues] == [
        ("merge-and-publish/ema-of-both", pipeline_tag("first"))
    ]
    with get_client(sync_client=True) as client, pytest.raises(ObjectNotFound):
        client.read_deployment_by_name("reconcile/second")
    assert deploy(first, str(tmp_path)).is_unchanged


def test_a_notification_block_that_is_not_there(server: str, tmp_path: Path) -> None:
    told = pipeline_in(tmp_path, "told", notifications=[{"block": "slack-webhook/nobody"}])
    with pytest.raises(InvalidConfig, match="slack-webhook/nobody"):
        deploy(told, str(tmp_path))


def test_blocks_are_a_registry_and_a_source_by_name(server: str, tmp_path: Path) -> None:
    write_trainer_run(tmp_path / "run", {1: SAVED})
    CheckpointSource(path=str(tmp_path / "run")).save("my-run")
    CheckpointRegistry(path=str(tmp_path / "registry")).save("my-models")
    source, registry = CheckpointSource.load("my-run"), CheckpointRegistry.load("my-models")
    assert isinstance(source, CheckpointSource)
    assert isinstance(registry, CheckpointRegistry)
    assert [source.newest_complete()] == list(source.versions())
    merge_and_publish(SourceChoice(path=source.path), registry.path, "tiny")
    assert registry.names() == ("tiny",)
    assert registry.resolve("tiny") == resolve(tmp_path / "registry", "tiny")


def test_reconcile_starts_the_oldest_first_as_far_as_there_is_room(server: str, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, "back", limits={"queued": 2})
    deploy(pipeline, str(tmp_path))
    assert reconcile(pipeline)["back"].started == ("version 0 of step 1", "version 0 of step 2")
    assert reconcile(pipeline)["back"].started == ()  # both wait: there is no room
    runs = merges_of("back")
    assert [run.parameters["directory"] for run in runs] == [
        str(tmp_path / "run" / f"checkpoint-{step}" / "model_state") for step in (1, 2)
    ]
    merge_and_publish(**runs[0].parameters)
    set_state(runs[0], Completed())
    set_state(runs[1], Failed(name="Refused"))
    caught_up = reconcile(pipeline)["back"]
    # The first has its release now, and what was refused would be refused again.
    assert (caught_up.started, caught_up.held_back) == (("version 0 of step 3",), ("version 0 of step 2",))


def test_what_was_written_just_now_is_left_to_its_event(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.catch_up.EVENT_SECONDS", 3600.0)
    pipeline = pipeline_in(tmp_path, "young")
    deploy(pipeline, str(tmp_path))
    for path in (tmp_path / "run" / "checkpoint-1").rglob("*"):
        os.utime(path, (1e9, 1e9))
    caught_up = reconcile(pipeline)["young"]
    assert caught_up.started == ("version 0 of step 1",)
    assert caught_up.held_back == ("version 0 of step 2", "version 0 of step 3")


def test_what_broke_is_tried_again_later(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = pipeline_in(tmp_path, "broke", limits={"queued": 9})
    deploy(pipeline, str(tmp_path))
    assert len(reconcile(pipeline)["broke"].started) == 3
    first, second, third = merges_of("broke")
    set_state(first, Crashed())
    set_state(second, Pending())  # by a worker that died
    set_state(third, Running())
    assert reconcile(pipeline)["broke"].started == ()  # too early
    monkeypatch.setattr("tasks.catch_up.START_SECONDS", 0.0)
    monkeypatch.setattr("ckptcore.rules.reconciling.FIRST_PAUSE_S", 0.0)
    assert reconcile(pipeline)["broke"].started == ("version 0 of step 1", "version 0 of step 2")
    assert [run.state_name for run in merges_of("broke") if run.id in (first.id, second.id)] == ["Crashed", "Crashed"]


def test_a_source_that_is_away_does_not_stop_the_others(server: str, tmp_path: Path) -> None:
    sources = [{"path": str(tmp_path / "nowhere"), "name": "gone"}, {"path": str(tmp_path / "run")}]
    pipeline = pipeline_in(tmp_path, "half", sources=sources)
    deploy(pipeline, str(tmp_path))
    assert list(reconcile(pipeline)) == ["half"]


def test_runs_that_were_missed_are_dropped(server: str, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, "missed")
    deploy(pipeline, str(tmp_path))
    with get_client(sync_client=True) as client:
        deployment_id = client.read_deployment_by_name("reconcile/missed").id
        late, due = (
            client.create_flow_run_from_deployment(deployment_id, state=Scheduled(scheduled_time=time))
            for time in TIMES
        )
        assert drop_missed.fn(str(deployment_id)) == 1
        assert [client.read_flow_run(run.id).state_name for run in (late, due)] == ["Cancelled", "Scheduled"]


def test_limits_of_versions_are_tidied_up(server: str, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, "tidy")
    deploy(pipeline, str(tmp_path))
    merge_and_publish(SourceChoice(path=str(tmp_path / "run")), pipeline.registry, "tidy")
    name = merge_limit("tidy", str(tmp_path / "run" / "checkpoint-3" / "model_state"), 0)
    with get_client(sync_client=True) as client:
        assert client.read_global_concurrency_limit_by_name(name).active_slots == 0
        reconcile(pipeline)
        assert name not in [limit.name for limit in client.read_global_concurrency_limits(limit=200)]


def test_a_version_that_is_not_whole_ends_a_patient_run_well(server: str, tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED.without_rank(1)}, signals=False)
    directory = str(run / "checkpoint-1" / "model_state")
    state = merge_and_publish(
        SourceChoice(path=directory),
        str(tmp_path / "registry"),
        "w",
        unique_id=0,
        patience_seconds=0.1,
        return_state=True,
    )
    assert (state.name, state.is_completed()) == ("NotYet", True)


def test_a_refusal_has_a_name_of_its_own(server: str, tmp_path: Path) -> None:
    write_trainer_run(tmp_path / "run", {1: SAVED})
    state = merge_and_publish(
        SourceChoice(path=str(tmp_path / "run"), include=("no",)), str(tmp_path / "r"), "w", return_state=True
    )
    assert (state.name, state.is_failed()) == ("Refused", True)
    with pytest.raises(SelectionError):
        state.result()


def test_post_training_publishes_candidates_prunes_and_does_not_move_latest(server: str, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, "end", retention={"last": 1})
    merge_and_publish(SourceChoice(path=str(tmp_path / "run")), pipeline.registry, "end", step=1)
    merge_and_publish(SourceChoice(path=str(tmp_path / "run")), pipeline.registry, "end", step=2)
    [published] = post_training(pipeline)
    assert resolve(pipeline.registry, "end@candidate") == Path(published.path)
    assert resolve(pipeline.registry, "end").name.startswith("step-2_")
    assert published.release.startswith("step-3_")
    assert len(list((Path(pipeline.registry) / "end" / "releases").iterdir())) == 2  # what latest names is kept


def test_a_prune_removes_only_what_was_shown(server: str, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, "bound", retention={"last": 1})
    for step in (1, 2):
        merge_and_publish(SourceChoice(path=str(tmp_path / "run")), pipeline.registry, "bound", step=step)
    state = prune(pipeline, dry_run=True, return_state=True)
    api = PrefectApi(server)
    planned = planned_of(api.table_of(str(state.state_details.flow_run_id)))
    api.close()
    [first] = [row["where"] for row in planned.rows if row["kind"] == "drop"]
    assert (planned.drop_count, planned.keep_count) == (1, 1)
    merge_and_publish(SourceChoice(path=str(tmp_path / "run")), pipeline.registry, "bound", step=3)
    for expect in (planned.expect, {}):
        refused = prune(pipeline, expect=expect, return_state=True)
        assert refused.name == "Refused"
        assert "changed since it was shown" in (refused.message or "")
    releases = Path(pipeline.registry) / "bound" / "releases"
    assert len(list(releases.iterdir())) == 3
    again = prune(pipeline, dry_run=True)["bound"].plan.dropped
    assert first in again
    assert prune(pipeline, expect={"bound": digest_of_dropped(again)})["bound"].removed == again


def test_prune_and_audit_of_a_pipeline(server: str, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, "kept", retention={"last": 1})
    assert (prune(pipeline), audit(pipeline)) == ({}, {})  # nothing is published yet
    for step in (1, 2, 3):
        merge_and_publish(SourceChoice(path=str(tmp_path / "run")), pipeline.registry, "kept", step=step)
    assert len(prune(pipeline, dry_run=True)["kept"].plan.dropped) == 2
    assert len(prune(pipeline)["kept"].removed) == 2
    assert audit(pipeline)["kept"].releases == 1
    shard = next((Path(resolve(pipeline.registry, "kept"))).glob("*.safetensors"))
    shard.chmod(0o644)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    state = audit(pipeline, return_state=True)
    assert state.name == "Refused"
    with pytest.raises(ReleaseInvalid):
        state.result()


def test_a_candidate_is_returned_to_until_the_alias_of_the_pipeline_has_come_to_it(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptcore.rules.reconciling.FIRST_PAUSE_S", 0.0)
    pipeline = pipeline_in(tmp_path, "lags")
    deploy(pipeline, str(tmp_path))
    merge_and_publish(SourceChoice(path=str(tmp_path / "run")), pipeline.registry, "lags", step=2)
    [candidate] = post_training(pipeline)
    assert reconcile(pipeline)["lags"].started == ("version 0 of step 1", "version 0 of step 3")
    for run in merges_of("lags"):
        published = merge_and_publish(**merge_parameters(pipeline, pipeline.sources[0]) | run.parameters)
        set_state(run, Completed())
    assert (published.release, published.did_work) == (candidate.release, True)
    assert resolve(pipeline.registry, "lags") == Path(candidate.path)
    assert reconcile(pipeline)["lags"].started == ()
