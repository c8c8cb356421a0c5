"""What a file says is on the server after one call, a second changes nothing, and what is no longer said goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterName,
)
from prefect.events.actions import CallWebhook, RunDeployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Pending, Running

from ckptcore import Choice
from ckptcore.blocks import CheckpointRegistry, CheckpointSource
from ckptcore.dashboard.prefect_api import PrefectApi
from ckptcore.dashboard.pruning import planned_of
from ckptcore.errors import Busy, InvalidConfig, ReleaseInvalid, SelectionError
from ckptcore.pipeline import SourceChoice
from ckptcore.publishing import staging
from ckptcore.registry import resolve
from ckptcore.rules.pipeline import pipeline_tag
from ckptcore.rules.retention import digest_of_dropped
from flows import deploying
from flows.audit import audit
from flows.deploying import deploy, undeploy
from flows.merge_and_publish import merge_and_publish
from flows.post_training import post_training
from flows.prune import prune
from tasks.merge import merge
from tasks.retrying import RETRY_DELAYS_SECONDS
from tests.builders import write_trainer_run
from tests.deployed import SAVED, pipeline_in, set_state

pytestmark = pytest.mark.prefect_server


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


def test_no_more_merges_at_a_time_than_the_file_says(server: str, tmp_path: Path) -> None:
    place = {"work_pool": "narrow"}
    first = deploy(pipeline_in(tmp_path, "narrow", limits={"merges": 1}, **place), str(tmp_path))
    assert {"work queue narrow/merges-narrow", "work queue narrow/operations-narrow"} <= set(first.made)
    beside = pipeline_in(tmp_path, "beside", limits={"merges": 3}, **place)
    deploy(beside, str(tmp_path))
    assert deploy(beside, str(tmp_path)).is_unchanged

    soon = datetime.now(UTC) + timedelta(hours=1)
    with get_client(sync_client=True) as client:

        def to_start() -> list[str]:
            found = client.get_scheduled_flow_runs_for_work_pool("narrow", scheduled_before=soon)
            return [response.flow_run.name for response in found if response.flow_run.name.startswith("of-narrow")]

        for flow_name in ("merge-and-publish", "merge-and-publish", "promote"):
            deployment = client.read_deployment_by_name(f"{flow_name}/narrow")
            parameters = {"name": "x", "release": "y", "alias": "z"} if flow_name == "promote" else {}
            client.create_flow_run_from_deployment(deployment.id, parameters=parameters, name=f"of-narrow-{flow_name}")
        # What an operator asks for comes first, and does not wait for merges.
        assert to_start() == ["of-narrow-promote", "of-narrow-merge-and-publish"]
        [running, _] = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=["of-narrow-merge-and-publish"]))
        )
        set_state(running, Pending())
        set_state(running, Running())
        assert to_start() == ["of-narrow-promote"]
        wider = pipeline_in(tmp_path, "narrow", limits={"merges": 2}, **place)
        assert "work queue narrow/merges-narrow" in deploy(wider, str(tmp_path)).changed
        assert to_start() == ["of-narrow-promote", "of-narrow-merge-and-publish"]

    moved = deploy(pipeline_in(tmp_path, "narrow", limits={"merges": 2}, work_pool="elsewhere"), str(tmp_path))
    assert {"work queue narrow/merges-narrow", "work queue narrow/operations-narrow"} == set(moved.removed)
    assert {"work queue elsewhere/merges-narrow"} <= set(undeploy("narrow").removed)
    with get_client(sync_client=True) as client:
        assert not [queue.name for queue in client.read_work_queues() if queue.name.endswith("-narrow")]
    assert deploy(beside, str(tmp_path)).is_unchanged


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


def test_a_second_run_of_a_version_that_takes_long_is_no_fault(server: str, tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED}, signals=False)
    source, registry = SourceChoice(path=str(run)), str(tmp_path / "registry")
    with staging(Choice(str(run)).planned(), registry, "w"):  # as the first run holds it
        second = merge_and_publish(source, registry, "w", patience_seconds=1, return_state=True)
        with pytest.raises(Busy, match="another process"):  # who asks by hand is told
            merge_and_publish(source, registry, "w")
    assert (second.name, second.is_completed()) == ("NotYet", True)
    assert "another process" in str(second.message)
    assert merge_and_publish(source, registry, "w", patience_seconds=1).alias == "latest"


def test_a_refusal_has_a_name_of_its_own(server: str, tmp_path: Path) -> None:
    write_trainer_run(tmp_path / "run", {1: SAVED})
    state = merge_and_publish(
        SourceChoice(path=str(tmp_path / "run"), include=("no",)), str(tmp_path / "r"), "w", return_state=True
    )
    assert (state.name, state.is_failed()) == ("Refused", True)
    with pytest.raises(SelectionError):
        state.result()


@pytest.mark.parametrize(("damage", "name"), [("empty", "Refused"), ("blocked", "Failed")])
def test_post_training_does_all_that_can_be_done(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, name: str
) -> None:
    """A selection that takes nothing is refused for good; a registry that cannot be written may be mended."""
    monkeypatch.setattr(merge, "retry_delay_seconds", [0.0] * len(RETRY_DELAYS_SECONDS))
    sources: list[dict[str, object]] = [
        {"path": str(tmp_path / "run"), "name": each} for each in ("empty", "blocked", "good")
    ]
    sources[0]["include"] = ["no"]
    pipeline = pipeline_in(
        tmp_path, "most", sources=[sources[["empty", "blocked"].index(damage)], sources[2]], retention={"last": 1}
    )
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / "blocked").write_text("")
    for step in (1, 2):
        merge_and_publish(SourceChoice(path=str(tmp_path / "run")), pipeline.registry, "good", step=step)
    state = post_training(pipeline, return_state=True)
    assert (state.name, state.is_failed()) == (name, True)
    assert resolve(pipeline.registry, "good@candidate").name.startswith("step-3_")
    assert len(list((Path(pipeline.registry) / "good" / "releases").iterdir())) == 2  # it was pruned
    with get_client(sync_client=True) as client:
        page = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["post-training-most"])))
    assert any("good@candidate" in str(each.data) for each in page)


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
