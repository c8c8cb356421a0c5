"""A killed merge goes on with the shards that it had not finished; another plan or source starts over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ckptcore import Choice, merge
from ckptcore.errors import StorageError
from ckptcore.publishing import publish_staged, stage
from ckptcore.rules.finished_shard import FinishedShard
from ckptcore.rules.manifest import FileRecord
from ckptcore.rules.merge_plan import MergePlan
from ckptcore.storage.staging import OWN_MARK
from ckptcore.validating import validate
from tests.builders import SavedCheckpoint
from tests.command import REPOSITORY

SHARDS = 8


@pytest.fixture
def planned(tmp_path: Path) -> MergePlan:
    saved = SavedCheckpoint()
    for number in range(SHARDS):
        saved = saved.tensor(f"layers.{number}.w", np.full((16, 16), number, "f4"), grid=(2, 1))
    return Choice(str(saved.write(tmp_path / "source")), max_shard_bytes=1024).planned()


def fail_after(shards: int) -> object:
    seen = []

    def on_progress(size_bytes: int) -> None:
        seen.append(size_bytes)
        if len([size for size in seen if size]) > shards:
            raise StorageError("the disk went away")

    return on_progress


def stamps(directory: Path) -> dict[str, int]:
    """When each shard was written, by name, wherever below ``directory`` it lies."""
    return {path.name: path.stat().st_mtime_ns for path in directory.rglob("model*.safetensors")}


def finished_in(directory: Path) -> set[str]:
    return {path.stem for path in directory.glob(".parts-*/*.done")}


def test_a_staged_release_goes_on_where_it_was_stopped(planned: MergePlan, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        stage(planned, tmp_path / "registry", "tiny", on_progress=fail_after(5))  # type: ignore[arg-type]
    (staging,) = (tmp_path / "registry" / "tiny" / ".staging").iterdir()
    finished, before = finished_in(staging), stamps(staging)
    assert 0 < len(finished) < SHARDS
    told: list[int] = []
    published = publish_staged(stage(planned, tmp_path / "registry", "tiny", on_progress=told.append))
    after = stamps(Path(published.path))
    assert {name for name in after if after[name] == before.get(name)} == finished
    assert sum(told) == SHARDS * 1024
    assert not validate(published.path).issues
    assert not [name for name in os.listdir(published.path) if name.startswith(".")]


def test_a_finished_shard_that_lost_bytes_is_written_again(planned: MergePlan, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        stage(planned, tmp_path / "registry", "tiny", on_progress=fail_after(5))  # type: ignore[arg-type]
    (staging,) = (tmp_path / "registry" / "tiny" / ".staging").iterdir()
    [victim] = staging.glob(f".parts-*/{min(finished_in(staging))}")
    victim.write_bytes(victim.read_bytes()[:-1])
    published = publish_staged(stage(planned, tmp_path / "registry", "tiny"))
    assert not validate(published.path).issues


def test_a_plan_of_another_source_starts_over(
    planned: MergePlan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    staging = tmp_path / ".out.staging"
    staging.mkdir()
    (staging / OWN_MARK).touch()
    name, parts = planned.shards[0].name, staging / ".parts-of-before"
    parts.mkdir()
    (parts / f"{name}.done").write_bytes(FinishedShard(FileRecord(name, 17, ""), {}).to_bytes("another", "shards"))
    (parts / name).write_bytes(b"of another source")
    (staging / name).write_bytes(b"of another source")
    with caplog.at_level("INFO"):
        merge(planned, out)
    assert "starting over" in caplog.text
    assert not validate(out).issues
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_a_link_under_the_name_of_parts_is_not_followed(planned: MergePlan, tmp_path: Path) -> None:
    staging, elsewhere = tmp_path / ".out.staging", tmp_path / "elsewhere"
    staging.mkdir()
    (staging / OWN_MARK).touch()
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (staging / ".parts-of-nobody").symlink_to(elsewhere)
    merge(planned, tmp_path / "out")
    assert os.listdir(elsewhere) == ["precious"]
    assert not validate(tmp_path / "out").issues


def test_a_merge_killed_by_the_kernel_goes_on(planned: MergePlan, tmp_path: Path) -> None:
    script = (
        "import sys, time; from ckptcore import Choice, merge\n"
        f"planned = Choice({planned.directory!r}, max_shard_bytes=1024).planned()\n"
        "def slowly(size):\n"
        "    print(size, flush=True); time.sleep(0.05)\n"
        f"merge(planned, {str(tmp_path / 'out')!r}, on_progress=slowly)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment)
    staging, deadline = tmp_path / ".out.staging", time.monotonic() + 60
    while time.monotonic() < deadline:
        if len(finished_in(staging)) >= 2:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "out").exists()
    finished, before = finished_in(staging), stamps(staging)
    merge(planned, tmp_path / "out")
    after = stamps(tmp_path / "out")
    assert {name for name in after if after[name] == before.get(name)} == finished
    assert not validate(tmp_path / "out").issues
