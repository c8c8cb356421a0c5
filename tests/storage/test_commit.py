"""Directories appear whole, symlinks move at once, lines are appended whole, staging is held by one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcore.errors import Busy, OutputExists, StorageError
from ckptcore.storage.commit import appear, append_line, locked, point_symlink, write_file
from ckptcore.storage.staging import clear, commit, held


def directory(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "file").write_text(content)
    return path


def test_an_output_appears_in_one_step(tmp_path: Path) -> None:
    appear(directory(tmp_path / "staged", "new"), tmp_path / "out", overwrite=False)
    assert (tmp_path / "out" / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]


def test_an_existing_output_is_kept_or_exchanged(tmp_path: Path) -> None:
    directory(tmp_path / "out", "old")
    staged = directory(tmp_path / "staged", "new")
    with pytest.raises(OutputExists, match="exists already"):
        appear(staged, tmp_path / "out", overwrite=False)
    assert (tmp_path / "out" / "file").read_text() == "old"
    appear(staged, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]


def test_an_empty_directory_is_an_existing_output(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputExists):
        appear(directory(tmp_path / "staged", "new"), tmp_path / "out", overwrite=False)


def test_a_symlink_moves(tmp_path: Path) -> None:
    point_symlink(tmp_path / "latest", "releases/a")
    point_symlink(tmp_path / "latest", "releases/b")
    assert os.readlink(tmp_path / "latest") == "releases/b"
    assert os.listdir(tmp_path) == ["latest"]


def test_a_symlink_moves_over_what_a_crash_left(tmp_path: Path) -> None:
    (tmp_path / ".latest.new").symlink_to("releases/half")
    point_symlink(tmp_path / "latest", "releases/a")
    assert os.listdir(tmp_path) == ["latest"]


def test_a_line_is_added_after_a_torn_one(tmp_path: Path) -> None:
    log = tmp_path / "history.jsonl"
    append_line(log, b"one\n")
    with log.open("ab") as file:
        file.write(b"tw")
    append_line(log, b"three\n")
    assert log.read_bytes() == b"one\ntw\nthree\n"


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    write_file(tmp_path / "f", b"data")
    with pytest.raises(StorageError, match=r"cannot write .*: File exists"):
        write_file(tmp_path / "f", b"other")
    assert (tmp_path / "f").read_bytes() == b"data"


def test_staging_is_held_by_one_process(tmp_path: Path) -> None:
    staged = tmp_path / ".out.staging"
    script = (
        f"from pathlib import Path; from ckptcore.storage.staging import held\nwith held(Path({str(staged)!r})): pass"
    )
    with held(staged):
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "Busy" in other.stderr
        assert "another process is writing the same output" in other.stderr
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_what_a_killed_process_left_is_cleared_and_the_lock_does_not_travel(tmp_path: Path) -> None:
    staged = tmp_path / ".out.staging"
    (staged / "sub").mkdir(parents=True)
    (staged / "half.safetensors").write_bytes(b"half")
    with held(staged):
        clear(staged)
        (staged / "whole").write_bytes(b"whole")
        commit(staged, tmp_path / "out", overwrite=False)
    assert os.listdir(tmp_path / "out") == ["whole"]
    assert os.listdir(tmp_path) == ["out"]


def test_a_lock_is_waited_for_or_refused(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", wait=False), pytest.raises(Busy), locked(tmp_path / "lock", wait=False):
        pass
