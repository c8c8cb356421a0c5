"""Run ``ckpt`` as its installed script does, inside this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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
