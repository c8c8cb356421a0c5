"""Smoke test: call the user's own function on a release, in a process of its own, within a time.

Owns the process: its environment, its end, and what of its output is told. ``python -m ckptcore.smoke module:function
DIRECTORY`` is that process. What the function does is the user's.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from ckptcore.errors import SmokeFailed
from ckptcore.rules.fingerprint import Fingerprint
from ckptcore.rules.issues import Issue
from ckptcore.storage.local import fingerprint
from ckptcore.storage.refusals import reported

RELEASE_VARIABLE = "CKPT_RELEASE_PATH"
TOLD_LINES = 20
TOLD_CHARACTERS = 500
"""Of each line."""
_TAIL_BYTES = 64 << 10
# After the process group is dead, only somebody who left it can still hold the pipe.
_DRAIN_SECONDS = 5.0


def run_smoke_test(function: str, release: Path, *, timeout_seconds: float) -> float:
    """Call ``function`` (``module:function``) with the directory ``release``; the seconds that it took.

    Modules are found as ``python -m`` finds them: in the working directory, ``PYTHONPATH`` and what is installed.
    Raises :class:`SmokeFailed`, with the last lines of output as issues, where the function raises, returns False, ends
    the process with another status than 0, takes longer, or writes into the release. All that it started is killed.
    """
    before = _stamps(release)
    command = [sys.executable, "-m", "ckptcore.smoke", function, str(release)]
    environment = os.environ | {RELEASE_VARIABLE: str(release), "PYTHONUNBUFFERED": "1"}
    started = time.monotonic()
    with reported("cannot run", sys.executable):
        process = subprocess.Popen(  # noqa: S603 - running what the user names is the point
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert process.stdout is not None
    tail = bytearray()
    reader = threading.Thread(target=_keep_tail, args=(process.stdout, tail), daemon=True)
    reader.start()
    try:
        how = _how_it_failed(process.wait(timeout_seconds))
    except subprocess.TimeoutExpired:
        how = f"took longer than {timeout_seconds:g} s"
    finally:
        _kill_group(process)
    seconds = time.monotonic() - started
    reader.join(_DRAIN_SECONDS)
    if not reader.is_alive():
        process.stdout.close()
    if how:
        raise SmokeFailed(f"smoke test {function} on {release} {how}", _told(bytes(tail)))
    written = set(before.files) ^ set(_stamps(release).files)
    if written:
        issues = [Issue(stamp.name, "was written, added or removed", code="smoke-wrote") for stamp in written]
        raise SmokeFailed(f"smoke test {function} wrote into {release}, which must stay as it was validated", issues)
    return seconds


def _stamps(release: Path) -> Fingerprint:
    with reported("cannot list", release):
        names = os.listdir(release)
    return fingerprint(release, names)


def _how_it_failed(status: int) -> str:
    if status < 0:
        return f"was killed by signal {-status}"
    return f"failed with exit status {status}" if status else ""


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the function left nobody behind
    process.wait()


def _keep_tail(pipe: IO[bytes], tail: bytearray) -> None:
    while chunk := os.read(pipe.fileno(), _TAIL_BYTES):
        tail += chunk
        del tail[:-_TAIL_BYTES]


def _told(output: bytes) -> list[Issue]:
    """The last lines of the output. Numbered, because issues are sorted."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()][-TOLD_LINES:]
    told = enumerate((line[:TOLD_CHARACTERS] for line in lines), start=1)
    return [Issue(f"output {number:02}", line, code="smoke-output") for number, line in told]


def _call(function: str, release: str) -> None:
    result = pkgutil.resolve_name(function)(release)
    # numpy's bool of that name included; None, or a list of nothing wrong, is no refusal.
    if type(result).__name__ in ("bool", "bool_") and not result:
        sys.exit(f"{function} returned False")


if __name__ == "__main__":
    _call(*sys.argv[1:])
