"""What may happen to a running pipeline: flows that are stopped in a step, and a database that can be killed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ckptcore.registry import is_release, releases_on, resolve, shelf_of
from ckptcore.validating import validate
from tests.command import REPOSITORY
from tests.e2e.running import eventually, free_port

_BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
_USER, _GROUP = ("nobody", "nogroup") if os.geteuid() == 0 else (None, None)


@dataclass
class Stops:
    """Each step stops the first flow that gets there, until it is let go on."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        hook = REPOSITORY / "tests" / "e2e" / "stopping"
        return {"CKPT_TEST_STOPS": str(self.directory), "PYTHONPATH": f"{hook}{os.pathsep}{REPOSITORY}"}

    def ask_for(self, *steps: str, after_calls: int = 0) -> None:
        self.directory.mkdir(exist_ok=True)
        for step in steps:
            staged = self.directory / f".{step}"
            staged.write_text(str(after_calls))
            staged.rename(self.directory / step)

    def stopped(self) -> dict[str, int]:
        """The process that is stopped in each step."""
        taken = (path.name.partition(".") for path in self.directory.glob("[a-z]*.*"))
        return {step: int(process) for step, _, process in taken}

    def wait_for(self, *steps: str) -> dict[str, int]:
        eventually(lambda: set(self.stopped()) >= set(steps), within_s=600, what=f"stops in {steps}")
        return self.stopped()

    def let_go(self) -> None:
        for path in self.directory.glob("[a-z]*.*"):
            path.unlink()


@dataclass
class Reader:
    """Looks at the registry as serving does, all the time: what it sees must be whole, and never go back."""

    registry: Path
    name: str
    seen: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    _newest: int = -1

    def look(self) -> None:
        shelf = shelf_of(self.registry, self.name)
        for release in releases_on(shelf):
            if release not in self.seen:
                self.seen.add(release)
                report = validate(shelf.release(release))
                self.problems += [str(issue) for issue in report.issues]
        if os.path.lexists(shelf.root / "latest"):
            current = resolve(self.registry, self.name)
            step = int(current.name.split("_")[0].removeprefix("step-"))
            if not is_release(current) or step < self._newest:
                self.problems.append(f"latest went from step {self._newest} to {current}")
            self._newest = max(step, self._newest)


@contextmanager
def reading(registry: Path, name: str) -> Iterator[Reader]:
    reader, stop = Reader(registry, name), threading.Event()

    def read() -> None:
        while not stop.wait(0.05):
            try:
                reader.look()
            except Exception as error:  # noqa: BLE001 - whatever a reader meets is a finding
                reader.problems.append(repr(error))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield reader
    finally:
        stop.set()
        thread.join()


@dataclass
class Database:
    """A PostgreSQL of its own, as the user nobody where this is root, which it refuses to be."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql+asyncpg://ckpt@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        self.directory.mkdir(mode=0o700)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
        options = ["-D", str(self.directory / "data"), "-U", "ckpt", "--auth=trust", "-E", "UTF8", "--no-sync"]
        command = [str(_BINARIES[-1] / "initdb"), *options]
        subprocess.run(command, check=True, capture_output=True, cwd="/", user=_USER, group=_GROUP)

    def start(self) -> None:
        command = [str(_BINARIES[-1] / "postgres"), "-D", str(self.directory / "data"), "-p", str(self.port)]
        command += ["-c", f"unix_socket_directories={self.directory}", "-c", "listen_addresses=127.0.0.1"]
        self.process = subprocess.Popen(command, cwd="/", stderr=subprocess.DEVNULL, user=_USER, group=_GROUP)
        eventually(self._is_ready, within_s=60, what="PostgreSQL")

    def kill(self) -> None:
        """kill -9 of the server process; its children see that it is gone and end."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()

    def _is_ready(self) -> bool:
        ask = [str(_BINARIES[-1] / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ask, check=False).returncode == 0


def has_postgresql() -> bool:
    return bool(_BINARIES)


@contextmanager
def database() -> Iterator[Database]:
    # Where nobody may go, which is not so for pytest's directories.
    place = Path("/tmp") / f"ckpt-postgresql-{os.getpid()}"
    made = Database(place, free_port())
    try:
        made.make()
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(place, ignore_errors=True)
