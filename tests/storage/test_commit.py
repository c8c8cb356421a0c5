"""Directories appear whole, symlinks move at once, lines are appended whole, staging is held by one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcore.errors import Busy, OutputExists, StorageError
from ckptcore.storage.commit import (
    appear,
    append_line,
    displaced,
    locked,
    make_directory,
    point_symlink,
    write_file,
)
from ckptcore.storage.staging import OWN_MARK, clear, commit, drop, forget, held


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


def test_a_file_that_a_crash_left_aside_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".f.new").write_bytes(b"half")
    write_file(tmp_path / "f", b"data")
    assert (tmp_path / "f").read_bytes() == b"data"
    assert os.listdir(tmp_path) == ["f"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(StorageError):
        write_file(tmp_path / "f", b"data")
    assert os.listdir(tmp_path) == ["f"]


def test_a_directory_is_made_with_those_above_it(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot make"):
        make_directory(tmp_path / "file" / "c")


def test_the_lock_is_held_until_what_was_replaced_is_gone(tmp_path: Path) -> None:
    """Nobody may take the staging directory's place while it is moved; the lock's file goes with its holder."""
    staged = tmp_path / ".out.staging"
    directory(tmp_path / "out", "old")
    with held(staged):
        (staged / "file").write_text("new")
        commit(staged, tmp_path / "out", overwrite=True)
        with pytest.raises(Busy), held(staged):
            pass
    assert os.listdir(tmp_path) == ["out"]


def test_what_was_killed_inside_a_move_is_forgotten(tmp_path: Path) -> None:
    staged = tmp_path / ".out.staging"
    directory(displaced(staged), "old")
    (directory(staged, "new") / OWN_MARK).touch()
    (tmp_path / ".out.staging.lock").touch()
    forget(staged)
    forget(staged)
    assert os.listdir(tmp_path) == []


def test_a_staging_directory_is_dropped_at_once(tmp_path: Path) -> None:
    staged = directory(tmp_path / ".out.staging", "finished")
    (staged / OWN_MARK).touch()
    directory(displaced(staged), "left by a crash")
    with held(staged):
        drop(staged)
        drop(staged)
    assert os.listdir(tmp_path) == []


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


def test_the_directory_of_somebody_else_is_never_taken_for_a_staging(tmp_path: Path) -> None:
    victim = directory(tmp_path / "victim", "precious")
    (tmp_path / ".a.staging").symlink_to(victim)
    directory(tmp_path / ".b.staging", "precious")
    (tmp_path / ".c.staging").write_text("precious")
    for name in (".a.staging", ".b.staging", ".c.staging"):
        with pytest.raises((OutputExists, StorageError)), held(tmp_path / name):
            pass
    assert (victim / "file").read_text() == (tmp_path / ".b.staging" / "file").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == [".a.staging", ".b.staging", ".c.staging", "victim"]


def test_what_a_killed_process_left_is_cleared_and_the_lock_does_not_travel(tmp_path: Path) -> None:
    staged = tmp_path / ".out.staging"
    (staged / "sub").mkdir(parents=True)
    (staged / "half.safetensors").write_bytes(b"half")
    (staged / OWN_MARK).touch()
    with held(staged):
        clear(staged)
        (staged / "whole").write_bytes(b"whole")
        commit(staged, tmp_path / "out", overwrite=False)
    assert os.listdir(tmp_path / "out") == ["whole"]
    assert os.listdir(tmp_path) == ["out"]


def test_a_lock_is_waited_for_or_refused(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", wait=False), pytest.raises(Busy), locked(tmp_path / "lock", wait=False):
        pass
