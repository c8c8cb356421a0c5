"""Watching: each version is announced when it is whole and settled, however it comes about, and at little cost."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ckptcore import announcing
from ckptcore.announcing import current_event
from ckptcore.errors import StorageError
from ckptcore.pipeline import Pipeline
from ckptcore.pipeline_watching import watch_pipeline
from ckptcore.rules.versions import StateKind
from ckptcore.watching import OLD_STEPS_A_LOOK, Found, SourceWatch, Watcher
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import ckpt
from tests.receiver import receiving

SAVED = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(2, 1))


def looks(watch: SourceWatch, count: int) -> list[Found]:
    return [found for _ in range(count) for found in watch.look()]


def told(found: list[Found]) -> list[tuple[int | None, int, StateKind]]:
    return [(each.version.step, each.version.unique_id, each.state.kind) for each in found]


def model_state(run: Path, step: int) -> Path:
    return run / f"checkpoint-{step}" / "model_state"


def test_new_versions_are_found_once_and_old_ones_left_alone(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", dict.fromkeys(range(1, 6), SAVED))
    watch = SourceWatch(str(run))
    assert told(looks(watch, 5)) == [(4, 0, StateKind.COMPLETE), (5, 0, StateKind.COMPLETE)]
    write_trainer_run(run, dict.fromkeys(range(6, 11), SAVED))
    assert told(looks(watch, 3)) == [(step, 0, StateKind.COMPLETE) for step in (9, 10, 6, 7, 8)]
    assert looks(watch, 3) == []
    assert not watch.is_busy


def test_without_marks_a_version_must_settle(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED}, signals=False)
    watch = SourceWatch(str(run), settle_looks=3)
    assert (looks(watch, 2), watch.is_busy) == ([], True)
    os.utime(model_state(run, 1) / "0_0.distcp", ns=(1, 1))
    assert looks(watch, 2) == []
    assert told(looks(watch, 1)) == [(1, 0, StateKind.COMPLETE)]


def test_what_is_missing_is_waited_for(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED.without_rank(1)}, signals=False)
    watch = SourceWatch(str(run), settle_looks=2)
    assert told(looks(watch, 5)) == [(1, 0, StateKind.INCOMPLETE)]
    write_trainer_run(run, {2: SAVED, 3: SAVED, 4: SAVED}, signals=False)
    looks(watch, 2)
    SAVED.write(model_state(run, 1))
    assert told(looks(watch, 2)) == [(1, 0, StateKind.COMPLETE)]


def test_a_damaged_version_is_found_once_for_its_bytes(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED.truncated("1_0.distcp", at=100)})
    watch = SourceWatch(str(run))
    assert told(looks(watch, 4)) == [(1, 0, StateKind.DAMAGED)]


def test_a_save_over_an_old_version_is_a_new_version(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", dict.fromkeys(range(1, OLD_STEPS_A_LOOK + 10), SAVED))
    watch = SourceWatch(str(run), settle_looks=2)
    looks(watch, 4)
    SAVED.tensor("v", [1.0]).write(model_state(run, 3))
    assert told(looks(watch, 4)) == [(3, 0, StateKind.COMPLETE)]


def test_another_id_in_a_plain_directory(tmp_path: Path) -> None:
    SAVED.write(tmp_path / "plain")
    watch = SourceWatch(str(tmp_path / "plain"), settle_looks=1)
    assert told(looks(watch, 2)) == [(None, 0, StateKind.COMPLETE)]
    SavedCheckpoint(unique_id=1).tensor("w", [1.0]).write(tmp_path / "plain")
    assert told(looks(watch, 2)) == [(None, 1, StateKind.COMPLETE)]


def test_one_component_of_several(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED})
    write_trainer_run(run, {1: SAVED}, component="optimizer_state")
    assert [found.version.component for found in looks(SourceWatch(str(run)), 2)] == ["model_state"]
    assert [f.version.component for f in looks(SourceWatch(str(run), "optimizer_state"), 2)] == ["optimizer_state"]


def test_a_source_that_vanishes_and_comes_back_is_told_of_once_each(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED})
    said: list[str] = []
    watcher = Watcher([SourceWatch(str(run))], None, said.append)
    watcher.look()
    shutil.move(run, tmp_path / "away")
    watcher.look()
    watcher.look()
    write_trainer_run(tmp_path / "away", {2: SAVED})
    shutil.move(tmp_path / "away", run)
    watcher.look()
    assert [line.removeprefix(f"{run}") for line in said] == [
        "/checkpoint-1/model_state: version 0 of step 1 is written and whole",
        ": No such file or directory",
        "/checkpoint-2/model_state: version 0 of step 2 is written and whole",
        ": is there again",
    ]


def test_a_step_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED})
    # No component that is taken unasked: the weights may be yet to come.
    write_trainer_run(run, {2: SAVED}, component="ema_state")
    write_trainer_run(run, {2: SAVED}, component="optimizer_state")
    said: list[str] = []
    watcher = Watcher([SourceWatch(str(run))], None, said.append)
    for _ in range(3):
        watcher.look()
    assert [line for line in said if "name a component" in line] == said[1:]
    assert len(said) == 2
    write_trainer_run(run, {2: SAVED})
    watcher.look()
    assert said[-1] == f"{run / 'checkpoint-2'}: is there again"


def test_trainer_and_watcher_send_one_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED, 2: SAVED})
    with receiving() as receiver:
        announced = announcing.write_mark(str(model_state(run, 1)), 0, rank=0).event
        for _ in range(2):  # a watcher that is started again
            Watcher([SourceWatch(str(run))], receiver.url, lambda _: None).look()
        second = current_event(str(model_state(run, 2)), 0)
        assert second is not None
        assert sorted(receiver.event_ids) == sorted([announced["id"], second["id"]] * 2)


def test_events_wait_for_a_server_that_is_away(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED, 2: SAVED.truncated("1_0.distcp", at=100)})
    said: list[str] = []
    with receiving([503, 503]) as receiver:
        watcher = Watcher([SourceWatch(str(run))], receiver.url, said.append)
        assert watcher.look()
        assert watcher.look()
        receiver.requests.clear()
        receiver.statuses = ()
        watcher.look()
        assert not watcher.look()
        sent = receiver.events
    assert [event["event"] for event in sent] == ["ckpt.version.written", "ckpt.version.damaged"]
    assert (sent[1]["payload"]["step"], sent[1]["payload"]["issue_count"] > 0) == (2, True)
    assert len([line for line in said if "HTTP 503" in line]) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_event_that_is_never_taken_does_not_stand_before_the_others(tmp_path: Path, status: int) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED, 2: SAVED})
    said: list[str] = []
    with receiving([status]) as receiver:
        watcher = Watcher([SourceWatch(str(run))], receiver.url, said.append)
        for _ in range(3):
            watcher.look()
        assert not watcher.look()
        assert len(receiver.event_ids) == len(set(receiver.event_ids)) == 2
    [line] = [line for line in said if f"HTTP {status}" in line]
    assert f"{model_state(run, 1)}/0: dropped" in line


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_event_is_kept_for_a_server_that_does_not_know_its_sender(tmp_path: Path, status: int) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED})
    said: list[str] = []
    with receiving([status, status]) as receiver:
        watcher = Watcher([SourceWatch(str(run))], receiver.url, said.append)
        assert [watcher.look() for _ in range(4)] == [True, True, False, False]
        assert (len(receiver.event_ids), len(set(receiver.event_ids))) == (3, 1)
    assert len([line for line in said if f"HTTP {status}" in line]) == 1


def test_a_source_that_may_only_be_read_is_announced_by_the_event_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED})
    (model_state(run, 1) / ".0.announced.lock").mkdir()  # what root cannot write either
    with receiving() as receiver:
        watcher = Watcher([SourceWatch(str(run))], receiver.url, lambda _: None)
        watcher.look()
        assert len(receiver.event_ids) == 1


def test_ten_thousand_steps_are_watched_without_noticeable_load(tmp_path: Path) -> None:
    run = write_trainer_run(tmp_path / "run", {0: SAVED})
    first = model_state(run, 0)
    for step in range(1, 10_000):
        directory = model_state(run, step)
        directory.mkdir(parents=True)
        for name in os.listdir(first):
            os.link(first / name, directory / name)
    watch = SourceWatch(str(run))
    looks(watch, 3)
    begin = time.process_time()
    looks(watch, 10)
    # 0.01 to 0.1 s a look on one machine, busy or not; listing every step anew would take a second or more.
    assert time.process_time() - begin < 10
    write_trainer_run(run, {10_000: SAVED})
    assert (10_000, 0, StateKind.COMPLETE) in told(looks(watch, 3))


def test_watch_once_as_a_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = write_trainer_run(tmp_path / "run", {1: SAVED})
    with receiving() as receiver:
        config = tmp_path / "ckpt.yaml"
        config.write_text(
            f"name: a\nregistry: r\nsources: [{{path: run}}]\nserver: {{url: '{receiver.url}'}}\nwatch: {{every: 1s}}\n"
        )
        outcome = ckpt(capfd, "watch", config, "--once")
        assert (outcome.status, len(receiver.event_ids)) == (0, 1), outcome
    assert (model_state(run, 1) / "0.announced").exists()


def test_a_step_that_vanishes_while_it_is_told_of_does_not_end_the_watch(tmp_path: Path) -> None:
    class Vanishing(SourceWatch):
        def look(self) -> Iterator[Found]:
            for found in super().look():
                shutil.rmtree(found.version.directory)
                yield found

    gone = write_trainer_run(tmp_path / "gone", {1: SAVED})
    kept = write_trainer_run(tmp_path / "kept", {1: SAVED})
    lines: list[str] = []
    Watcher([Vanishing(str(gone)), SourceWatch(str(kept))], None, lines.append).look()
    assert [line for line in lines if "No such file" in line], lines
    assert (model_state(kept, 1) / "0.announced").exists()


def test_a_call_that_is_to_end_ends_where_the_server_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptcore.pipeline_watching.ONCE_SECONDS", 1.0)
    write_trainer_run(tmp_path / "run", {1: SavedCheckpoint().tensor("w", np.zeros(4, dtype=np.float32))})
    document = {"name": "a", "registry": "r", "sources": [{"path": str(tmp_path / "run")}], "watch": {"every": "1s"}}
    pipeline = Pipeline.model_validate(document)
    with pytest.raises(StorageError, match="took no event") as refusal:
        watch_pipeline(pipeline, threading.Event(), tell=print, url="http://me:secret@127.0.0.1:9/api", once=True)
    assert "http://127.0.0.1:9/api" in refusal.value.message
    assert "secret" not in refusal.value.message
