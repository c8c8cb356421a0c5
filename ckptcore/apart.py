"""Run a module in a process of its own, within a time, and leave nothing of it behind.

Owns the process: its session, its end, and what of its output is told. ``python -m ckptcore.apart LIFELINE MODULE …``
is that process. All that it started dies with it, and all of it with the caller, also where that is killed.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from ckptcore.rules.issues import Issue
from ckptcore.storage.refusals import reported

TOLD_LINES = 20
TOLD_CHARACTERS = 500
"""Of each line."""
_TAIL_BYTES = 64 << 10
# After the process group is dead, only somebody who left it can still hold the pipe.
_DRAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended. ``failure`` is empty where it ended with status 0, and else reads ``took longer than 3 s``.

    ``output`` are the last lines that it wrote, numbered, because issues are sorted.
    """

    failure: str
    seconds: float
    output: tuple[Issue, ...]


def run_apart(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    descriptors: Sequence[int] = (),
    timeout_seconds: float | None = None,
) -> Ended:
    """Run ``module`` as ``python -m`` does, with ``environment`` added to ours and ``descriptors`` inherited.

    It has no standard input. Raises :class:`StorageError` where no process can be started.
    """
    started = time.monotonic()
    lifeline, our_end = os.pipe()
    try:
        with reported("cannot run", sys.executable):
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "ckptcore.apart", str(lifeline), module, *arguments],
                env=os.environ | environment | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lifeline, *descriptors),
            )
        assert process.stdout is not None
        tail = bytearray()
        reader = threading.Thread(target=_keep_tail, args=(process.stdout, tail), daemon=True)
        reader.start()
        try:
            failure = _failure(process.wait(timeout_seconds))
        except subprocess.TimeoutExpired:
            failure = f"took longer than {timeout_seconds:g} s"
        finally:
            _kill_group(process)
        seconds = time.monotonic() - started
        reader.join(_DRAIN_SECONDS)
        if not reader.is_alive():
            process.stdout.close()
    finally:
        os.close(lifeline)
        os.close(our_end)
    return Ended(failure, seconds, _told(bytes(tail)))


def _failure(status: int) -> str:
    if status < 0:
        return f"was killed by signal {-status}"
    return f"failed with exit status {status}" if status else ""


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it left nobody behind
    process.wait()


def _keep_tail(pipe: IO[bytes], tail: bytearray) -> None:
    while chunk := os.read(pipe.fileno(), _TAIL_BYTES):
        tail += chunk
        del tail[:-_TAIL_BYTES]


def _told(output: bytes) -> tuple[Issue, ...]:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()][-TOLD_LINES:]
    told = enumerate((line[:TOLD_CHARACTERS] for line in lines), start=1)
    return tuple(Issue(f"output {number:02}", line, code="output") for number, line in told)


def _end_with_caller(lifeline: int) -> None:
    """Leave a process in our group that kills the group when the caller is gone, and with it the pipe's other end.

    Linux's death signal would come when the thread ends that started us, would not reach our own children, and would be
    ours alone to act on. The process is nobody's child here, so that who waits for all children does not meet it.
    """
    if child := os.fork():
        os.waitpid(child, 0)
        os.close(lifeline)
        return
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    _, lifeline, module, *arguments = sys.argv
    _end_with_caller(int(lifeline))
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)
