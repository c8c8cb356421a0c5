"""Leases: whoever reads a release or a source holds it, and a dead holder holds nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptcore import Choice, is_leased, lease, merge, promote, run
from ckptcore.errors import InvalidName, ReleaseNotFound, StorageError
from ckptcore.storage.leases import alone, hold
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY, ckpt_process
from tests.registries import NAME, lease_holder, publish_steps

CKPT = [sys.executable, "-c", "import sys; from ckptcore.cli import main; sys.argv[0] = 'ckpt'; main()"]
# Says that it is there, then waits to be told to end.
WAITING = ["sh", "-c", "echo $$ {path}; read line; exit 3"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    return publish_steps(tmp_path_factory.mktemp("published"), [10, 20])


@pytest.fixture
def shelf(published: tuple[Path, list[str]], tmp_path: Path) -> tuple[Path, list[str]]:
    return shutil.copytree(published[0], tmp_path / "registry", symlinks=True), published[1]


def path_of(shelf: tuple[Path, list[str]], position: int) -> Path:
    return shelf[0] / NAME / "releases" / shelf[1][position]


@contextmanager
def leased_by_a_command(registry: Path, reference: str, *command: str) -> Iterator[subprocess.Popen[str]]:
    """``ckpt lease REGISTRY REFERENCE -- COMMAND``, killed at the end if it is still there."""
    process = subprocess.Popen(
        [*CKPT, "lease", str(registry), reference, "--", *command],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_lease_holds_for_its_block(shelf: tuple[Path, list[str]]) -> None:
    registry, (_, second) = shelf
    before = {path: path.lstat().st_mtime_ns for path in registry.rglob("*")}
    with lease(registry, f"{NAME}@latest") as path:
        assert path == path_of(shelf, 1)
        assert path.name == second
        assert is_leased(path)
        assert not is_leased(path_of(shelf, 0))
    assert not is_leased(path)
    assert {path: path.lstat().st_mtime_ns for path in registry.rglob("*")} == before


def test_a_lease_of_a_path_follows_the_alias_once(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, _) = shelf
    with lease(registry / NAME / "latest") as path:
        promote(registry, f"{NAME}@{first}", "latest")
        assert path == path_of(shelf, 1)
        assert is_leased(path_of(shelf, 1))
        assert not is_leased(path_of(shelf, 0))


def test_many_hold_one_release(shelf: tuple[Path, list[str]]) -> None:
    path = path_of(shelf, 1)
    with lease(path):
        with lease(path):
            assert is_leased(path)
        assert is_leased(path)
    assert not is_leased(path)


def test_a_merged_output_is_held_too(tmp_path: Path) -> None:
    source = SavedCheckpoint().tensor("w", [1.0]).write(tmp_path / "source")
    merge(Choice(str(source)).planned(), tmp_path / "out")
    with lease(tmp_path / "out") as path:
        assert is_leased(path)


@pytest.mark.parametrize("reference", ["other", f"{NAME}@nothing"])
def test_what_is_not_there_is_not_held(shelf: tuple[Path, list[str]], reference: str) -> None:
    with pytest.raises(ReleaseNotFound), lease(shelf[0], reference):
        pass
    with pytest.raises(ReleaseNotFound), lease(shelf[0]):
        pass
    with pytest.raises(InvalidName), lease(shelf[0], "../x"):
        pass


def test_a_release_that_goes_while_one_waits_for_it_is_not_held(shelf: tuple[Path, list[str]]) -> None:
    """The holder of the lock alone is a prune in the instant of its rename."""
    path = path_of(shelf, 0)
    code = "import sys; from ckptcore import lease\nwith lease(sys.argv[1]): pass"
    with alone(path / "manifest.json") as is_free:
        assert is_free
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stderr=subprocess.PIPE,
            text=True,
        )
        while not _waits_for_a_lock(process.pid):
            assert process.poll() is None
        path.rename(shelf[0] / "gone")
    assert "ReleaseNotFound" in process.communicate()[1]


def _waits_for_a_lock(pid: int) -> bool:
    """Whether ``/proc/locks`` has a line such as ``1: -> FLOCK ADVISORY READ 4711 …``."""
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(fields[1] == "->" and fields[5] == str(pid) for fields in lines)


def test_a_new_file_in_the_place_of_the_held_one_is_the_one_that_counts(tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    file.write_text("old")
    with alone(file):
        with pytest.raises(BlockingIOError):
            hold(file, wait=False)
        file.rename(tmp_path / "aside")
        file.write_text("new")
        os.close(hold(file, wait=False))


def test_a_command_runs_on_the_real_path_and_gives_its_exit_status(shelf: tuple[Path, list[str]]) -> None:
    with leased_by_a_command(shelf[0], f"{NAME}@latest", *WAITING) as process:
        assert process.stdout is not None
        pid, path = process.stdout.readline().split()
        assert path == str(path_of(shelf, 1))
        assert is_leased(path)
        assert int(pid) == process.pid
        process.communicate("go\n")
    assert process.returncode == 3
    assert not is_leased(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGPIPE])
def test_signals_reach_the_command_and_a_dead_holder_frees(shelf: tuple[Path, list[str]], number: int) -> None:
    with leased_by_a_command(shelf[0], f"{NAME}@latest", *WAITING) as process:
        assert process.stdout is not None
        path = process.stdout.readline().split()[1]
        assert is_leased(path)
        process.send_signal(number)
        process.wait()
    assert process.returncode == -number
    assert not is_leased(path)


def test_a_child_that_outlives_the_command_holds_on(shelf: tuple[Path, list[str]]) -> None:
    """A server's workers may live on when its first process is killed."""
    # Descriptor 3, and the other low ones, are the scripts' own.
    worker = "sh -c 'echo $$ {path}; read line' <&3 &"
    with leased_by_a_command(shelf[0], f"{NAME}@latest", "sh", "-c", f"exec 3<&0; {worker} wait") as process:
        assert process.stdout is not None
        pid, path = process.stdout.readline().split()
        process.kill()
        process.wait()
        assert is_leased(path)
        os.kill(int(pid), signal.SIGKILL)
        process.stdout.read()  # ends with the last writer
    assert not is_leased(path)


def test_a_process_that_dies_in_a_lease_frees_it(shelf: tuple[Path, list[str]]) -> None:
    with lease_holder(shelf[0], NAME) as process:
        assert is_leased(path_of(shelf, 1))
        process.kill()
        process.wait()
    assert not is_leased(path_of(shelf, 1))


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([f"{NAME}@nothing", "--", "true"], 1),
        ([NAME, "--", "no-such-command"], 1),
        ([NAME, "--", ""], 2),
        ([NAME, "--"], 2),
        ([NAME], 2),
    ],
)
def test_what_cannot_be_run_is_refused(shelf: tuple[Path, list[str]], arguments: list[str], status: int) -> None:
    refused = ckpt_process("lease", shelf[0], *arguments, cwd=shelf[0])
    assert (refused.status, refused.stdout) == (status, "")
    assert refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_source_is_held_while_it_is_merged(tmp_path: Path) -> None:
    saved = SavedCheckpoint().tensor("w", [[1.0], [2.0]], grid=(2, 1))
    source = write_trainer_run(tmp_path / "output", {9: saved, 10: saved})
    before = {path: path.lstat().st_mtime_ns for path in source.rglob("*")}
    held = []

    def on_progress(size_bytes: int) -> None:
        if size_bytes:
            held.append([is_leased(source / f"checkpoint-{step}") for step in (9, 10)])

    run(Choice(str(source)), tmp_path / "registry", NAME, on_plan=lambda plan: on_progress)
    assert held[0] == [False, True]
    assert not is_leased(source / "checkpoint-10")
    assert {path: path.lstat().st_mtime_ns for path in source.rglob("*")} == before


def test_flock_of_a_shell_leaves_a_held_source_alone(tmp_path: Path) -> None:
    """What the documentation gives to who rotates a trainer's steps."""
    source = SavedCheckpoint().tensor("w", [1.0]).write(tmp_path / "source")
    rotate = ["flock", "--nonblock", str(source / "0.metadata"), "rm", "-r", str(source)]
    statuses = []

    def on_progress(size_bytes: int) -> None:
        if size_bytes:
            statuses.append(subprocess.run(rotate, check=False).returncode)

    merge(Choice(str(source)).planned(), tmp_path / "out", on_progress=on_progress)
    assert statuses[0] == 1
    assert subprocess.run(rotate, check=False).returncode == 0
    assert not source.exists()


def test_a_source_whose_lock_another_has_is_merged_all_the_same(tmp_path: Path) -> None:
    source = SavedCheckpoint().tensor("w", [1.0]).write(tmp_path / "source")
    with alone(source / "0.metadata"):
        assert merge(Choice(str(source)).planned(), tmp_path / "out").tensors


def test_what_cannot_be_listed_is_no_lease(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        is_leased(tmp_path / "missing")
