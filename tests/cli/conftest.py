"""Each test runs ``ckpt`` in a directory of its own, beside a trainer's run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import write_trainer_run
from tests.cli.commands import SAVED, Run
from tests.command import Outcome, ckpt


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``ckpt`` in a directory of its own, with a trainer's run in ``out``: step 11 is half written."""
    write_trainer_run(tmp_path / "out", {9: SAVED, 10: SAVED, 11: SAVED.without_rank(1)})
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Outcome:
        return ckpt(capfd, *arguments)

    return call


@pytest.fixture
def merged(run: Run, tmp_path: Path) -> Path:
    assert run("merge", "out", "merged").status == 0
    return tmp_path / "merged"
