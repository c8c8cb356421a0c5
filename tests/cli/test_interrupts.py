"""Ctrl-C, a scheduler's SIGTERM, a terminal that closes: one line, the status of the signal, and nothing left over."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.builders import SavedCheckpoint
from tests.cli.commands import Run
from tests.command import REPOSITORY

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def _as_a_shell_starts_it() -> None:
    """Whatever runs these tests: nohup ignores SIGHUP, and a shell's background jobs ignore SIGINT."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def start(*arguments: str, cwd: Path, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"{before}\nfrom ckptcore.cli import main; main()", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_as_a_shell_starts_it,
    )


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not happened():
        assert process.poll() is None
        time.sleep(0.001)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_publication_that_waits(run: Run, merged: Path, tmp_path: Path, number: signal.Signals) -> None:
    shelf = tmp_path / "registry" / "tiny"
    shelf.mkdir(parents=True)
    with open(shelf / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start("publish", "merged", "registry", "--name", "tiny", cwd=tmp_path)
        wait_until(lambda: any(shelf.glob(".staging/*/manifest.json")), process)
        process.send_signal(number)
        stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    assert stderr == f"ckpt: interrupted by {number.name}; what was not finished is not visible\n"
    assert os.listdir(shelf / "releases") == []


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_merge_leaves_nothing_beside_its_output(tmp_path: Path, number: signal.Signals) -> None:
    SavedCheckpoint().tensor("w", np.zeros(48 << 20, "f4")).write(tmp_path / "source")
    process = start("merge", "source", "merged", cwd=tmp_path)
    wait_until((tmp_path / ".merged.staging").exists, process)
    process.send_signal(number)
    assert process.communicate(timeout=60)[1].startswith("ckpt: interrupted")
    assert process.returncode == 128 + number
    assert os.listdir(tmp_path) == ["source"]


def test_what_the_shell_ignores_stays_ignored(run: Run, merged: Path, tmp_path: Path) -> None:
    """As under ``nohup``."""
    shelf = tmp_path / "registry" / "tiny"
    shelf.mkdir(parents=True)
    ignore = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    with open(shelf / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start("publish", "merged", "registry", "--name", "tiny", cwd=tmp_path, before=ignore)
        wait_until(lambda: any(shelf.glob(".staging/*/manifest.json")), process)
        process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0
