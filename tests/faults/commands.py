"""Start ``ckpt`` as a process of its own, under ``strace`` where calls are counted or made to fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.faults.tracing import Injection

REPOSITORY = Path(__file__).parents[2]
HANGS_AFTER_SECONDS = 60.0
"""A tiny checkpoint takes a tenth of a second; whatever takes this long has hung, and is killed and reported."""


def can_trace() -> bool:
    """Whether this user may attach ``strace`` here."""
    return shutil.which("strace") is not None and os.geteuid() == 0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended; ``status`` is negative for a signal. ``trace`` is what strace wrote, if it watched."""

    arguments: tuple[str, ...]
    status: int
    output: str
    trace: str = ""

    def __str__(self) -> str:
        return f"ckpt {' '.join(self.arguments)} ended with {self.status}: {self.output.strip()}"


class Running:
    """A command that was begun."""

    def __init__(self, server: Commands, arguments: tuple[str, ...], output: Path, pid: int) -> None:
        self._server, self.arguments, self._output, self.pid = server, arguments, output, pid
        self.tracer: subprocess.Popen[str] | None = None
        self.trace = output.with_suffix(".trace")

    def attach(self, injections: Sequence[Injection], *, calls: Sequence[str] = (), paths: Sequence[str] = ()) -> None:
        """Put strace on it, before it begins; with ``paths``, only calls on one of them count."""
        traced = ",".join(sorted({*calls, *(injection.call for injection in injections)}))
        options = ["-e", f"trace={traced}", *(text for one in injections for text in ("-e", one.option))]
        options += [text for path in paths for text in ("-P", path)]
        command = ["strace", "-f", "-y", "-s", "8", "-o", str(self.trace), *options, "-p", str(self.pid)]
        self.tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.tracer.stderr is not None
        for line in self.tracer.stderr:
            if "attached" in line:
                return
        raise RuntimeError(f"strace did not attach: {' '.join(command)}")

    def begin(self) -> Running:
        self._server.ask(do="begin", pid=self.pid)
        return self

    def stops(self) -> bool:
        """Wait until an injected SIGSTOP has stopped it; False where it ends without coming there."""
        assert self.tracer is not None
        return _becomes(lambda: "stopped by SIGSTOP" in self._trace_so_far(), lambda: self.has_ended)

    def rests(self) -> bool:
        """Wait until it has ended, or waits for a lock that another process holds; gives whether it has ended."""
        return _becomes(lambda: self.has_ended, self._waits_for_lock)

    def go_on(self) -> Running:
        """Let it run to its end. Each thread that comes to the call for the first time stops it once more."""

        def ended() -> bool:
            os.kill(self.pid, signal.SIGCONT)
            return self.has_ended

        _becomes(ended, lambda: False)
        return self

    @property
    def has_ended(self) -> bool:
        """Whether it is dead; its server has yet to be asked for its status."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    def _waits_for_lock(self) -> bool:
        waiting = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line)
        return any(str(self.pid) in fields for fields in waiting)

    def _trace_so_far(self) -> str:
        return self.trace.read_text(errors="replace") if self.trace.exists() else ""

    def wait(self) -> Ended:
        limit = threading.Timer(HANGS_AFTER_SECONDS, os.kill, (self.pid, 9))
        limit.start()
        status = self._server.ask(do="wait", pid=self.pid)
        limit.cancel()
        trace = ""
        if self.tracer is not None:
            self.tracer.communicate()
            trace = self.trace.read_text(errors="replace")
            self.trace.unlink()
        output = self._output.read_text(errors="replace")
        self._output.unlink()
        return Ended(self.arguments, status, output, trace)


class Commands:
    """A fork server of ``ckpt``, with a scratch directory for what its children print. Not for several threads."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._count = scratch, 0
        scratch.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forked"],
            cwd=REPOSITORY, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._reply()

    def ask(self, **request: Any) -> int:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return int(self._reply())

    def _reply(self) -> Any:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            raise RuntimeError("the fork server of ckpt ended")
        return json.loads(line)

    def forked(self, *arguments: object, umask: int = 0o022, uid: int = 0, file_size: int = 0) -> Running:
        """A command that waits to begin; writes beyond ``file_size`` are cut short and then refused, if it is given."""
        self._count += 1
        output = self._scratch / f"{self._count}.output"
        texts = tuple(map(str, arguments))
        pid = self.ask(do="fork", arguments=texts, output=str(output), umask=umask, uid=uid, file_size=file_size)
        return Running(self, texts, output, pid)

    def run(self, *arguments: object, umask: int = 0o022, uid: int = 0, file_size: int = 0) -> Ended:
        """The command, undisturbed."""
        return self.forked(*arguments, umask=umask, uid=uid, file_size=file_size).begin().wait()

    def watched(
        self,
        *arguments: object,
        injections: Sequence[Injection] = (),
        calls: Sequence[str] = (),
        paths: Sequence[str] = (),
    ) -> Ended:
        """The command under strace: each of ``injections`` made, those and ``calls`` in its trace."""
        running = self.forked(*arguments)
        running.attach(injections, calls=calls, paths=paths)
        return running.begin().wait()

    def __enter__(self) -> Commands:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()


def _becomes(wanted: Callable[[], bool], instead: Callable[[], bool]) -> bool:
    """Wait until one of both holds; whether it is ``wanted``."""
    deadline = time.monotonic() + HANGS_AFTER_SECONDS
    while not wanted():
        if instead():
            return wanted()
        if time.monotonic() > deadline:
            raise RuntimeError("neither came in time")
        time.sleep(0.002)
    return True
