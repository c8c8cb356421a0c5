"""The user's own function on a release, in a process of its own: what it accepts, refuses, breaks and leaves behind."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from ckptcore.apart import TOLD_CHARACTERS, TOLD_LINES
from ckptcore.errors import SmokeFailed
from ckptcore.smoke import run_smoke_test
from tests.command import REPOSITORY

FUNCTIONS = "tests.smoke_functions"


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(REPOSITORY)
    directory = tmp_path / "release"
    directory.mkdir()
    (directory / "manifest.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"tensors")
    return directory


def refused(function: str, release: Path, *, timeout_seconds: float = 60) -> SmokeFailed:
    with pytest.raises(SmokeFailed) as refusal:
        run_smoke_test(f"{FUNCTIONS}:{function}", release, timeout_seconds=timeout_seconds)
    assert function in refusal.value.message
    return refusal.value


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # killed, and waiting for init to notice


def wait_until_dead(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


@pytest.mark.parametrize("function", ["good", "says_yes"])
def test_what_is_accepted(release: Path, function: str) -> None:
    assert 0 < run_smoke_test(f"{FUNCTIONS}:{function}", release, timeout_seconds=60) < 60


@pytest.mark.parametrize(
    ("function", "how", "told"),
    [
        ("says_no", "exit status 1", "returned False"),
        ("says_no_as_numpy_does", "exit status 1", "returned False"),
        ("raises", "exit status 1", "ValueError: the logits are not finite"),
        ("leaves", "exit status 7", ""),
        ("crashes", "killed by signal 6", ""),
        ("missing", "exit status 1", "has no attribute 'missing'"),
    ],
)
def test_what_is_refused(release: Path, function: str, how: str, told: str) -> None:
    refusal = refused(function, release)
    assert how in refusal.message
    assert told in str(refusal)


def test_the_last_lines_are_told_in_their_order(release: Path) -> None:
    lines = [issue.what for issue in refused("raises", release).issues]
    assert len(lines) == TOLD_LINES
    assert lines[-1] == "ValueError: the logits are not finite"
    layers = [int(line.split()[-1]) for line in lines if line.startswith("looked at layer")]
    assert layers == list(range(100))[-len(layers) :]


def test_a_function_that_hangs_is_killed_with_its_children(release: Path) -> None:
    refusal = refused("hangs", release, timeout_seconds=5)
    assert "took longer than 5 s" in refusal.message
    pids = re.search(r"pids (\d+) (\d+)", str(refusal))
    assert pids is not None
    assert all(wait_until_dead(int(pid)) for pid in pids.groups())


def test_what_a_function_leaves_behind_is_killed(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHILD_PID", str(tmp_path / "pid"))
    run_smoke_test(f"{FUNCTIONS}:leaves_a_child_behind", release, timeout_seconds=60)
    assert wait_until_dead(int((tmp_path / "pid").read_text()))


def test_a_flood_of_output_is_not_kept(release: Path) -> None:
    [issue] = refused("floods", release).issues
    assert issue.what == "x" * TOLD_CHARACTERS  # of 32 MiB


def test_output_that_is_no_text(release: Path) -> None:
    assert "no text" in str(refused("prints_bytes", release))


@pytest.mark.parametrize(("function", "name"), [("writes", "cache.bin"), ("changes", "model.safetensors")])
def test_a_function_that_writes_into_the_release_is_refused(release: Path, function: str, name: str) -> None:
    assert [issue.where for issue in refused(function, release).issues] == [name]


def test_a_module_of_the_working_directory_is_found(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def check(path): print(path); return False\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SmokeFailed) as refusal:
        run_smoke_test("mine:check", release, timeout_seconds=60)
    assert os.fspath(release) in refusal.value.issues[0].what
