"""Prometheus' own checker, of Debian's package ``prometheus``."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def promtool(*arguments: object, given: bytes = b"", cwd: Path | None = None) -> str:
    """What ``promtool ARGUMENTS`` says, all of it; fails the test where it finds anything wrong.

    Skips the test where there is no promtool, except in CI, which installs it.
    """
    program = shutil.which("promtool")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no promtool")
        pytest.skip("needs promtool: apt-get install prometheus")
    done = subprocess.run([program, *map(str, arguments)], input=given, capture_output=True, cwd=cwd, timeout=60)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said
