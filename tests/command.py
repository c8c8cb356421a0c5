"""Run ``ckpt`` as its installed script does, inside this process or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
_SCRIPT = "import sys; from ckptcore.cli import main; sys.argv[0] = 'ckpt'; main()"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a shell would see of one call."""

    status: int
    stdout: str
    stderr: str


def ckpt(capfd: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """``ckpt ARGUMENTS`` in this process: quick, and an exception that escapes fails the test."""
    from ckptcore.cli import main

    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ckpt", *map(str, arguments)])
        try:
            main()
        except SystemExit as stop:
            status = stop.code
        else:
            status = None
    captured = capfd.readouterr()
    return Outcome(status if isinstance(status, int) else int(status is not None), captured.out, captured.err)


def ckpt_process(*arguments: object, cwd: Path) -> Outcome:
    """``ckpt ARGUMENTS`` in a new process, with ``cwd`` as its working directory."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def everything_below(directory: Path) -> dict[str, int]:
    """Names and times: equal before and after means that nothing was written."""
    return {str(path.relative_to(directory)): path.lstat().st_mtime_ns for path in directory.rglob("*")}


def document_of(outcome: Outcome) -> Any:
    """The JSON document of a command that is done and has nothing to say to people."""
    assert outcome.status == 0, outcome
    assert outcome.stderr == ""
    return json.loads(outcome.stdout)


def assert_refused(outcome: Outcome, *mentioned: str) -> None:
    """Status 1, nothing on stdout, and on stderr the refusal with each issue on its own line."""
    assert (outcome.status, outcome.stdout) == (1, ""), outcome
    first, *issues = outcome.stderr.splitlines()
    assert first.startswith("ckpt: ")
    assert all(issue.startswith("  ") for issue in issues)
    for text in mentioned:
        assert text in outcome.stderr
