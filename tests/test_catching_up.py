"""What events did not lead to is published all the same: as many runs as there is room for, once each."""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.events.filters import EventFilter, EventIDFilter, EventOccurredFilter
from prefect.flow_engine import run_flow_sync
from prefect.states import Completed, Crashed, Failed, Pending, Running, Scheduled

from ckptcore.errors import StorageError
from ckptcore.events import send
from ckptcore.pipeline import SourceChoice
from ckptcore.registry import resolve
from ckptcore.rules.pipeline import merge_limit
from ckptcore.watching import SourceWatch, Watcher
from flows.deploying import deploy
from flows.merge_and_publish import merge_and_publish
from flows.parameters import merge_parameters
from flows.post_training import post_training
from flows.reconcile import reconcile
from tasks.catch_up import catch_up, drop_missed
from tests.builders import write_trainer_run
from tests.deployed import SAVED, merges_of, pipeline_in, set_state

pytestmark = pytest.mark.prefect_server

TIMES = (datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1))


@pytest.fixture(autouse=True)
def no_event_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reconcile need not wait for the events of versions that were written just now."""
    monkeypatch.setattr("tasks.catch_up.EVENT_SECONDS", 0.0)


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


def test_a_damaged_version_is_told_once_for_as_long_as_the_server_knows_of_it(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipeline_in(tmp_path, "hurt")
    SAVED.truncated("1_0.distcp", at=99).write(tmp_path / "run" / "checkpoint-2" / "model_state")
    deploy(pipeline, str(tmp_path))
    sent: list[str] = []

    def counted(event: dict[str, Any], url: str) -> None:
        # As from a machine whose clock is a day ahead of the server's.
        event["occurred"] = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        sent.append(event["id"])
        send(event, url)

    monkeypatch.setattr("ckptcore.events.send", counted)
    assert reconcile(pipeline)["hurt"].damaged == ("version 0 of step 2",)
    asked = EventFilter(
        id=EventIDFilter(id=[UUID(sent[0])]),
        occurred=EventOccurredFilter.model_validate({"until": datetime.now(UTC) + timedelta(days=2)}),
    )
    with get_client(sync_client=True) as client:
        end = time.monotonic() + 60
        while not client.read_events(asked, limit=1).events and time.monotonic() < end:
            time.sleep(0.2)  # the server records in batches
    assert reconcile(pipeline)["hurt"].damaged == ("version 0 of step 2",)
    watch = SourceWatch(str(tmp_path / "run"), settle_looks=1)
    watcher = Watcher([watch], server, lambda _: None)  # one that is started now, and has told of nothing
    while watcher.look():
        pass
    assert len(sent) == 1
    with (tmp_path / "run" / "checkpoint-2" / "model_state" / "1_0.distcp").open("ab") as file:
        file.write(b"other bytes")
    reconcile(pipeline)
    assert len(set(sent)) == 2


def test_an_event_that_cannot_be_sent_holds_up_no_other_version(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipeline_in(tmp_path, "mute")
    SAVED.truncated("1_0.distcp", at=99).write(tmp_path / "run" / "checkpoint-1" / "model_state")
    deploy(pipeline, str(tmp_path))

    def away(event: dict[str, Any], url: str) -> None:
        sent.append(event["id"])
        raise StorageError(f"{url}: the event is not sent")

    sent: list[str] = []
    monkeypatch.setattr("ckptcore.events.send", away)
    assert reconcile(pipeline)["mute"].started == ("version 0 of step 2", "version 0 of step 3")
    assert reconcile(pipeline)["mute"].damaged == ("version 0 of step 1",)
    assert len(sent) == 2  # it is tried again


def test_what_cannot_be_read_fails_the_run_and_is_told_once(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.reconcile.catch_up", catch_up.with_options(retries=0))
    paths = {name: tmp_path / name for name in ("lost", "unread")}
    sources = [{"path": str(path), "name": name} for name, path in paths.items()]
    sources += [{"path": str(tmp_path / "unborn"), "name": "unborn"}, {"path": str(tmp_path / "run")}]
    pipeline = pipeline_in(tmp_path, "told", sources=sources)
    for name, path in paths.items():
        write_trainer_run(path, {1: SAVED})
        merge_and_publish(SourceChoice(path=str(path)), pipeline.registry, name)
    deploy(pipeline, str(tmp_path))
    assert reconcile(pipeline)["lost"].started == ()

    shutil.rmtree(paths["lost"])
    history = tmp_path / "registry" / "unread" / "history.jsonl"
    history.rename(tmp_path / "kept.jsonl")
    history.mkdir()
    with get_client(sync_client=True) as client:
        deployed = client.read_deployment_by_name("reconcile/told")

        def ended() -> State[Any]:
            """The end of one run of the deployment, as its worker would have it."""
            run = client.create_flow_run_from_deployment(deployed.id)
            flow: Any = reconcile
            state = run_flow_sync(flow=flow, flow_run=run, parameters={"pipeline": pipeline}, return_type="state")
            assert state is not None
            return state

        first, second = ended(), ended()
        assert [state.name for state in (first, second)] == ["Failed", "StillFailing"]
        assert first.message is not None
        assert str(paths["lost"]) in first.message
        assert str(history) in first.message
        assert "unborn" not in first.message
        assert len(merges_of("told")) > 2  # the source that can be read was looked at
        history.rmdir()
        (tmp_path / "kept.jsonl").rename(history)
        assert [ended().name, ended().name] == ["Failed", "StillFailing"]  # one fault less is news
        write_trainer_run(paths["lost"], {1: SAVED})
        assert ended().is_completed()
        shutil.rmtree(paths["lost"])
        assert ended().name == "Failed"
