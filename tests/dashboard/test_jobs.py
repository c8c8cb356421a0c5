"""Readings by processes of their own: what they tell is what the library says, and they end when they are told to."""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore import Choice, run, verify
from ckptcore.dashboard import jobs as jobs_module
from ckptcore.dashboard.job_line import job_line
from ckptcore.dashboard.jobs import Job, Jobs, JobState
from ckptcore.dashboard.reading import _telling_of_work
from ckptcore.dashboard.results import (
    ChangesRead,
    HealthRead,
    HistoryRead,
    PiecesRead,
    PlanRead,
    ReleaseRead,
    VersionRead,
)
from ckptcore.detecting import list_versions
from ckptcore.differing import diff
from ckptcore.health import health
from ckptcore.registry import history_of, shelf_of
from ckptcore.validating import read_manifest
from tests.builders import Part, SavedCheckpoint, write_trainer_run
from tests.e2e.running import eventually
from tests.registries import NAME, publish_steps

PATIENCE = 120


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs()
    yield made
    made.close()


def ended(job: Job[Any]) -> Job[Any]:
    eventually(lambda: not job.is_open, within_s=PATIENCE, what="a reading")
    return job


def version_request(source: Path, step: int | None, what: str = "version", **more: object) -> dict[str, object]:
    return {"what": what, "source": str(source), "component": None, "step": step, "unique_id": 0, "stamp": 1, **more}


def release_request(registry: Path, release: str, what: str = "release") -> dict[str, object]:
    return {"what": what, "registry": str(registry), "name": NAME, "release": release}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sound step and one without a rank, of tensors cut every way."""
    grid = np.arange(64, dtype=np.float32).reshape(8, 8)
    saved = (
        SavedCheckpoint()
        .tensor("layers.10.w", grid, grid=(2, 2))
        .tensor("layers.9.w", grid, flat_parts=3)
        .tensor("norm", grid[0], parts=[Part(rank, (0,), (8,), replica=rank) for rank in range(3)])
    )
    return write_trainer_run(tmp_path / "run", {1: saved, 2: saved.without_rank(3)})


def test_a_version_is_read_as_verify_says(jobs: Jobs, source: Path) -> None:
    job = ended(jobs.ask(version_request(source, 1), VersionRead))
    assert job.state is JobState.DONE, job.message
    read = job.result
    table = read.tensors
    assert [table.value("key", row) for row in range(len(table))] == ["layers.9.w", "layers.10.w", "norm"]
    rows = [(table.value("pieces", row), table.value("ranks", row), table.value("replicas", row)) for row in range(3)]
    assert rows == [(3, 3, 0), (4, 4, 0), (1, 3, 2)]
    assert [table.value("size", row) for row in range(3)] == [256, 256, 32]
    version = next(each for each in list_versions(source) if each.step == 1)
    assert read.head["state"] == verify(version).report.state.kind.value == "complete"
    assert [cell.rank for cell in read.cells] == [0, 1, 2, 3]
    assert read.absent == frozenset()


def test_an_incomplete_version_tells_what_is_missing_and_names_its_tensors(jobs: Jobs, source: Path) -> None:
    read = ended(jobs.ask(version_request(source, 2), VersionRead)).result
    assert read.head["state"] == "incomplete"
    assert read.absent == {"3_0.distcp"}
    assert len(read.tensors) == 3
    assert read.head["issue_count"] == len(read.head["issues"]) > 0


def test_the_pieces_of_one_tensor(jobs: Jobs, source: Path) -> None:
    job = ended(jobs.ask(version_request(source, 1, "pieces", key="layers.9.w"), PiecesRead))
    assert job.result.shape == (8, 8)
    assert [piece.flat for piece in job.result.pieces] == [(0, 21), (21, 42), (42, 64)]
    gone = ended(jobs.ask(version_request(source, 1, "pieces", key="no such"), PiecesRead))
    assert (gone.state, gone.message) == (JobState.REFUSED, "the metadata names no such tensor any more")


def test_the_plan_is_the_one_that_a_merge_follows(jobs: Jobs, source: Path, tmp_path: Path) -> None:
    made = Choice(str(source), step=1).planned()
    read = ended(jobs.ask(version_request(source, 1, "plan", config="", name=NAME), PlanRead)).result
    assert read.head["digest"] == made.digest
    assert [row[0] for row in read.shards] == [shard.name for shard in made.shards]
    config = tmp_path / "ckpt.yaml"
    config.write_text(
        f"name: {NAME}\nregistry: registry\nsources:\n- {{path: run, prefixes: [layers], dtype: bfloat16}}\n"
    )
    asked = version_request(source, 1, "plan", config=str(config), name=NAME)
    by_config = ended(jobs.ask(asked, PlanRead)).result
    assert by_config.head["tensors"] == 2
    assert by_config.head["digest"] != made.digest
    refused = ended(jobs.ask(version_request(source, 2, "plan", config="", name=NAME), PlanRead))
    assert refused.state is JobState.REFUSED
    assert any("3_0.distcp is missing" in str(issue) for issue in refused.issues)


def test_a_release_its_history_and_what_changed(jobs: Jobs, tmp_path: Path) -> None:
    registry, (first, second) = publish_steps(tmp_path, [1, 2])
    shelf = shelf_of(registry, NAME)
    read = ended(jobs.ask(release_request(registry, first), ReleaseRead)).result
    manifest = read_manifest(shelf.release(first))
    assert read.head["plan_digest"] == manifest.plan_digest
    assert read.tensors.value("sha256", 0).hex() == manifest.tensors[0].sha256
    history = ended(jobs.ask({"what": "history", "registry": str(registry), "name": NAME}, HistoryRead)).result
    assert tuple(history.acts) == history_of(shelf)
    sides = {"registry": str(registry), "name": NAME, "a": first, "b": second}
    compared = ended(jobs.ask({"what": "comparison", **sides}, ChangesRead)).result
    assert (compared.counts, compared.head["to_read"]) == ({"changed": 1}, 1)
    assert math.isnan(compared.tensors.value("relative", 0))
    measured = ended(jobs.ask({"what": "diff", **sides}, ChangesRead, reads_values=True)).result
    (change,) = diff(shelf.release(first), shelf.release(second)).changes
    assert change.values is not None
    assert measured.tensors.value("relative", 0) == change.values.relative
    assert measured.head["is_measured"]
    values = ended(jobs.ask(release_request(registry, first, "health"), HealthRead, reads_values=True)).result
    report = health(shelf.release(first))
    assert (values.norm, values.norm_of("w"), values.sick_count) == (report.norm, report.tensors[0].norm, 0)
    assert values.norm_of("no such") is None


def test_what_is_gone_is_refused_in_words_and_asked_anew_once_forgotten(jobs: Jobs, tmp_path: Path) -> None:
    request = version_request(tmp_path / "nothing", 1)
    refused = ended(jobs.ask(request, VersionRead))
    assert refused.state is JobState.REFUSED
    assert "no such directory" in refused.message
    assert jobs.ask(request, VersionRead) is refused
    jobs.forget(request)
    write_trainer_run(tmp_path / "nothing", {1: SavedCheckpoint().tensor("w", [1.0])})
    assert ended(jobs.ask(request, VersionRead)).state is JobState.DONE


def test_the_same_is_read_once(jobs: Jobs, source: Path) -> None:
    first = jobs.ask(version_request(source, 1), VersionRead)
    assert jobs.ask(version_request(source, 1), VersionRead) is first
    assert jobs.known(version_request(source, 1)) is first
    assert jobs.known(version_request(source, 7)) is None
    ended(first)


def endless(registry: Path) -> str:
    """A release of 64 GB that takes no space on the disk, which nobody reads within a test."""
    release = "step-1_id-0_000000000000"
    directory = shelf_of(registry, NAME).release(release)
    directory.mkdir(parents=True)
    count = 16 << 30
    header = json.dumps({"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    header += b" " * (-len(header) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 4 * count)
    return release


def test_a_reading_of_values_tells_how_far_it_is_and_can_be_stopped(jobs: Jobs, tmp_path: Path) -> None:
    request = release_request(tmp_path, endless(tmp_path), "health")
    job = jobs.ask(request, HealthRead, reads_values=True)
    eventually(lambda: job.done_bytes, within_s=PATIENCE, what="progress")
    assert job.total_bytes == 64 << 30
    second = jobs.ask({**request, "stamp": 2}, HealthRead, reads_values=True)
    process = job.process
    assert process is not None
    assert second.state is JobState.WAITING  # one reading of values at a time
    jobs.stop(second)
    jobs.stop(job)
    assert job.state is JobState.STOPPED
    eventually(lambda: process.poll() is not None, within_s=PATIENCE, what="the end of the process")
    assert second.process is None
    jobs.forget(request)
    again = jobs.ask(request, HealthRead, reads_values=True)
    assert again is not job
    assert again.is_open


def test_a_process_that_dies_is_told_of_and_tried_again_when_somebody_says_so(jobs: Jobs, tmp_path: Path) -> None:
    request = release_request(tmp_path, endless(tmp_path), "health")
    job = jobs.ask(request, HealthRead, reads_values=True)
    eventually(lambda: job.done_bytes, within_s=PATIENCE, what="progress")
    assert job.process is not None
    os.kill(job.process.pid, 9)
    assert ended(job).state is JobState.FAILED
    assert "ended with status -9" in job.message
    assert jobs.ask(request, HealthRead, reads_values=True) is job, "a page that looks again begins nothing"
    jobs.forget(request)
    assert jobs.ask(request, HealthRead, reads_values=True) is not job


def test_two_readings_that_hang_hold_nobody_up_who_reads_from_elsewhere(
    jobs: Jobs, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is halted says as little as one that waits for a file system."""
    monkeypatch.setattr(jobs_module, "QUIET_SECONDS", 2.5)
    request = release_request(tmp_path, endless(tmp_path), "health")
    hung = [jobs.ask({**request, "stamp": stamp}, HealthRead) for stamp in (1, 2)]
    for job in hung:
        eventually(lambda job=job: job.done_bytes, within_s=PATIENCE, what="progress")  # type: ignore[misc]
        assert job.process is not None
        os.kill(job.process.pid, signal.SIGSTOP)
    waits = jobs.ask({**request, "stamp": 3}, HealthRead)
    other = ended(jobs.ask(version_request(source, 1), VersionRead))
    assert other.state is JobState.DONE
    assert waits.state is JobState.WAITING, "of one place there are no more at a time"
    assert "Still waiting for the file system" in job_line(hung[0], "the values")
    for job in (waits, *hung):
        jobs.stop(job)


def test_a_reading_that_works_without_a_word_is_not_taken_for_one_that_hangs() -> None:
    said = list[str]()
    with _telling_of_work(lambda kind, _: said.append(kind)):
        begin = time.process_time()
        while time.process_time() - begin < 0.2 or not said:
            pass
    heard = len(said)
    with _telling_of_work(lambda kind, _: said.append(kind)):
        time.sleep(1.5)
    assert heard == len(said) > 0


def test_what_cannot_be_shown_ends_a_reading(jobs: Jobs, source: Path) -> None:
    class Narrow(VersionRead):
        def take_row(self, row: list[Any]) -> None:
            raise OverflowError("it does not fit")

    job = ended(jobs.ask(version_request(source, 1), Narrow))
    assert (job.state, job.message) == (JobState.FAILED, "what was read cannot be shown: it does not fit")


def test_closing_ends_every_reading_and_begins_none(jobs: Jobs, tmp_path: Path) -> None:
    request = release_request(tmp_path, endless(tmp_path), "health")
    job = jobs.ask(request, HealthRead, reads_values=True)
    eventually(lambda: job.process, within_s=PATIENCE, what="a process")
    jobs.close()
    assert job.state is JobState.STOPPED
    assert jobs.ask({**request, "stamp": 2}, HealthRead).state is JobState.FAILED


def test_only_so_much_is_remembered(jobs: Jobs, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MOST_ROWS", 4)
    first = version_request(source, 1)
    ended(jobs.ask(first, VersionRead))
    second = {**first, "stamp": 2}
    ended(jobs.ask(second, VersionRead))
    eventually(lambda: jobs.known(first) is None, within_s=PATIENCE, what="forgetting")
    assert jobs.known(second) is not None


def test_keys_of_every_kind_come_through(jobs: Jobs, tmp_path: Path) -> None:
    names = ["line\nbreak", 'quote"', "\N{RIGHT-TO-LEFT OVERRIDE}x", "<b>", "ünï", ""]
    saved = SavedCheckpoint()
    for name in names:
        saved = saved.tensor(name, [1.0])
    write_trainer_run(tmp_path / "run", {1: saved})
    read = ended(jobs.ask(version_request(tmp_path / "run", 1), VersionRead)).result
    assert sorted(read.tensors.columns["key"].values) == sorted(names)
    registry = tmp_path / "registry"
    release = run(Choice(str(tmp_path / "run")), registry, NAME).release
    kept = ended(jobs.ask(release_request(registry, release), ReleaseRead)).result
    assert sorted(kept.tensors.columns["key"].values) == sorted(names)
