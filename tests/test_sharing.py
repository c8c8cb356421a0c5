"""One release written by several processes: the same bytes, whoever dies, is late, or does what was done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ckptcore import Choice
from ckptcore.errors import Busy, SourceChanged, StorageError, WorkerUnfit
from ckptcore.publishing import Staging, publish_staged, stage, staging
from ckptcore.rules.merge_plan import MergePlan
from ckptcore.sharing import SharedPlan, finished_bytes, merge_shared, share, shares
from ckptcore.validating import read_manifest, validate
from ckptcore.writing import Writing
from tests.builders import SavedCheckpoint
from tests.command import REPOSITORY

SHARDS = 6
SHARD_BYTES = 16 << 10
NAME = "tiny"
# On one CPU the copier has two threads, and a shard here has four blocks: while both wait, none can be finished.
_WORKER = r"""
import os
import sys
from ckptcore.errors import CheckpointError
from ckptcore.storage import copier
from ckptcore.sharing import SharedPlan, merge_shared

def in_the_middle(size):
    print("writing\n", end="", flush=True)
    sys.stdin.readline()

os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
copier.MAX_BLOCK_BYTES = 4 << 10
parts, digest, waits, *names = sys.argv[1:]
try:
    merge_shared(SharedPlan(parts, digest), names, **({"on_progress": in_the_middle} if waits == "waits" else {}))
except CheckpointError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def planned(tmp_path: Path) -> MergePlan:
    saved = SavedCheckpoint()
    for number in range(SHARDS):
        saved = saved.tensor(f"layers.{number}.w", np.arange(4096, dtype="f4").reshape(64, 64) + number, grid=(2, 2))
    return Choice(str(saved.write(tmp_path / "source")), max_shard_bytes=SHARD_BYTES).planned()


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return tmp_path / "registry"


def worker(shared: SharedPlan, names: Sequence[str], *, waits: bool = False) -> subprocess.Popen[str]:
    """A process that writes the shards; with ``waits`` it stops within each, until a line comes."""
    command = [sys.executable, "-c", _WORKER, shared.parts, shared.digest, "waits" if waits else "goes", *names]
    return subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def is_in_the_middle(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "writing\n"


def done(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Let it go on to its end: its status, and what it complained of."""
    complaint = process.communicate("\n" * SHARDS, timeout=60)[1]
    return process.returncode, complaint.strip()


def written(release: Staging) -> Writing:
    assert release.writing is not None
    return release.writing


@contextmanager
def shared_out(planned: MergePlan, registry: Path) -> Iterator[tuple[Staging, SharedPlan]]:
    with staging(planned, registry, NAME) as release:
        yield release, share(written(release))


def bytes_of(directory: Path) -> dict[str, bytes]:
    """Every file, hidden ones too, without the time that the manifest records."""
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    manifest = json.loads(files["manifest.json"])
    del manifest["created_at"]
    return files | {"manifest.json": json.dumps(manifest).encode()}


def require_as_by_one_process(planned: MergePlan, registry: Path) -> None:
    """Publish what is staged, which must be finished, and compare it with what one process makes."""
    published = publish_staged(stage(planned, registry, NAME))
    alone = publish_staged(stage(planned, registry.with_name("alone"), NAME))
    assert not validate(published.path).issues
    assert bytes_of(Path(published.path)) == bytes_of(Path(alone.path))
    assert os.listdir(registry / NAME / ".staging") == []


def test_shards_that_other_processes_write_are_the_same(planned: MergePlan, registry: Path) -> None:
    with shared_out(planned, registry) as (release, shared):
        dealt = shares(written(release), most=2)
        assert [len(names) for names in dealt] == [3, 3]
        assert [done(process) for process in [worker(shared, names) for names in dealt]] == [(0, ""), (0, "")]
        assert finished_bytes(written(release)) == SHARDS * SHARD_BYTES
        release.finish()
    require_as_by_one_process(planned, registry)


def test_the_digests_that_a_worker_gives_are_those_of_the_release(planned: MergePlan, registry: Path) -> None:
    with shared_out(planned, registry) as (release, shared):
        given = merge_shared(shared, written(release).rest)
        staged = release.finish()
    recorded = {record.name: record.sha256 for record in read_manifest(Path(staged.path)).files}
    assert given.items() <= recorded.items()
    assert len(given) == SHARDS


def test_a_shard_done_twice_is_not_written_again(planned: MergePlan, registry: Path) -> None:
    with shared_out(planned, registry) as (release, shared):
        first = merge_shared(shared, written(release).rest)
        before = {path: path.stat().st_mtime_ns for path in Path(shared.parts).iterdir()}
        assert merge_shared(shared, written(release).rest) == first
        assert {path: path.stat().st_mtime_ns for path in Path(shared.parts).iterdir()} == before
        release.finish()
    require_as_by_one_process(planned, registry)


def test_two_workers_at_one_shard_at_once(planned: MergePlan, registry: Path) -> None:
    with shared_out(planned, registry) as (release, shared):
        late = worker(shared, written(release).rest, waits=True)
        assert is_in_the_middle(late)
        merge_shared(shared, written(release).rest)
        assert done(late) == (0, "")
        release.finish()
    require_as_by_one_process(planned, registry)


def test_a_worker_killed_within_a_shard(planned: MergePlan, registry: Path) -> None:
    with shared_out(planned, registry) as (release, shared):
        victim = worker(shared, written(release).rest, waits=True)
        assert is_in_the_middle(victim)
        victim.send_signal(signal.SIGKILL)
        assert done(victim)[0] == -signal.SIGKILL
        assert [path for path in Path(shared.parts).iterdir() if path.name.startswith(".")]
        assert finished_bytes(written(release)) == 0
        assert done(worker(shared, written(release).rest)) == (0, "")
        release.finish()
    require_as_by_one_process(planned, registry)


def test_a_worker_of_an_owner_that_is_gone_reaches_nothing(planned: MergePlan, registry: Path) -> None:
    with shared_out(planned, registry) as (release, shared):
        first, *rest = written(release).rest
        merge_shared(shared, [first])
        zombie = worker(shared, rest, waits=True)
        assert is_in_the_middle(zombie)
    with shared_out(planned, registry) as (release, again):
        assert list(written(release).rest) == rest  # what was finished is gone on with
        before = sorted(os.listdir(again.parts))
        status, complaint = done(zombie)
        assert status == 1
        assert complaint.startswith("Busy: ")
        assert "another process has taken this over" in complaint
        assert sorted(os.listdir(again.parts)) == before
        merge_shared(again, rest)
        release.finish()
    require_as_by_one_process(planned, registry)


def test_a_worker_that_is_late_does_not_touch_what_is_published(planned: MergePlan, registry: Path) -> None:
    with shared_out(planned, registry) as (release, shared):
        zombie = worker(shared, written(release).rest, waits=True)
        assert is_in_the_middle(zombie)
        merge_shared(shared, written(release).rest)
        release.finish()
    require_as_by_one_process(planned, registry)
    [path] = (registry / NAME / "releases").iterdir()
    before = bytes_of(path)
    assert done(zombie)[1].startswith("Busy: ")
    with pytest.raises(Busy):
        merge_shared(shared, [planned.shards[0].name])
    assert bytes_of(path) == before


def test_an_owner_that_was_taken_over_cannot_finish(planned: MergePlan, registry: Path) -> None:
    """Where a file system's locks do not reach another machine, the name of the parts still tells owners apart."""
    with shared_out(planned, registry) as (release, shared):
        merge_shared(shared, written(release).rest)
        parts = Path(shared.parts)
        parts.rename(parts.with_name(".parts-of-another"))
        with pytest.raises(Busy):
            release.finish()


def test_what_is_not_finished_is_named_and_gone_on_with(planned: MergePlan, registry: Path) -> None:
    with shared_out(planned, registry) as (release, shared):
        *most, last = written(release).rest
        merge_shared(shared, most)
        with pytest.raises(StorageError, match=last) as refusal:
            release.finish()
        assert len(refusal.value.issues) == 1
    with staging(planned, registry, NAME) as release:
        assert written(release).rest == (last,)
    require_as_by_one_process(planned, registry)


def test_what_was_cut_short_in_the_end_is_not_written_again(planned: MergePlan, registry: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    with staging(planned, registry, NAME, attach=[config]) as release:
        merge_shared(share(written(release)), written(release).rest)
        config.unlink()
        with pytest.raises(StorageError):
            release.finish()
    config.write_text("{}")
    with staging(planned, registry, NAME, attach=[config]) as release:
        assert written(release).rest == ()
        staged = release.finish()
    assert not validate(publish_staged(staged).path).issues


@pytest.mark.parametrize("change", [os.utime, os.unlink])
def test_a_worker_refuses_a_source_that_changed(
    planned: MergePlan, registry: Path, change: Callable[[Path], None]
) -> None:
    def changed_under_a_worker() -> None:
        with shared_out(planned, registry) as (release, shared):
            change(Path(planned.directory) / "1_0.distcp")
            merge_shared(shared, written(release).rest)

    with pytest.raises(SourceChanged, match=r"1_0\.distcp"):
        changed_under_a_worker()
    assert os.listdir(registry / NAME / ".staging") == []


@pytest.mark.parametrize("name", ["plan.json", "model-00001-of-00006.safetensors.plan"])
def test_a_worker_takes_no_plan_that_was_changed(planned: MergePlan, registry: Path, name: str) -> None:
    with shared_out(planned, registry) as (release, shared):
        document = Path(shared.parts) / name
        document.write_bytes(document.read_bytes().replace(b"1024", b"1025", 1) + b" ")
        with pytest.raises(StorageError, match=r"is not what was written"):
            merge_shared(shared, written(release).rest)
        assert finished_bytes(written(release)) == 0


def test_a_worker_of_another_version_is_unfit(
    planned: MergePlan, registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site" / "ckptcore-99.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: ckptcore\nVersion: 99.0\n")
    with shared_out(planned, registry) as (release, shared):
        monkeypatch.syspath_prepend(str(installed.parent))
        with pytest.raises(WorkerUnfit, match=r"has ckptcore 99\.0: expected"):
            merge_shared(shared, written(release).rest)


def test_a_worker_that_does_not_see_the_registry_is_unfit(planned: MergePlan, registry: Path, tmp_path: Path) -> None:
    with shared_out(planned, registry) as (release, shared):
        elsewhere = shared.parts.replace(str(registry), str(tmp_path / "not-mounted"))
        with pytest.raises(WorkerUnfit, match="does not see"):
            merge_shared(SharedPlan(elsewhere, shared.digest), written(release).rest)
