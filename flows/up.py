"""Up: a whole pipeline from one process: Prefect's server if none is configured, deployments, a worker, the watcher.

The process itself supervises: what dies is started again, and Ctrl-C or SIGTERM stops all of it. State and logs lie in
one directory. Prefect is told to send nothing anywhere before it is imported.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ckptcore.dashboard.auth import require_safe
from ckptcore.dashboard.starting import TOKEN_VARIABLE, credentials_of, is_installed
from ckptcore.errors import Busy, StorageError
from ckptcore.pipeline import Pipeline
from ckptcore.pipeline_watching import watch_pipeline
from ckptcore.rules.addresses import public_address
from ckptcore.storage.commit import locked
from ckptcore.storage.refusals import reported
from flows.configuring import be_quiet, configured_url
from flows.processes import is_healthy

START_SECONDS = 300.0
"""A first start makes a database, on a busy machine."""
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 0.5
_STOP_SECONDS = 10.0
_RESTART_SECONDS = 1.0
_OTHER_FLOWS = 1
"""Beside the merges a worker has room for one of the flows that look after them."""

SERVER = {
    # In memory, slots that are leased when a server stops are never given back.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # SQLite has one writer; on a busy machine it is waited for rather than an event lost.
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    # Runs stay for good otherwise, 40 MB a day with a reconcile every five minutes.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": "2592000",  # 30 days in seconds
}
_WORKER = {
    "PREFECT_WORKER_QUERY_SECONDS": "1",
    # What the server answers while its database cannot be reached. A worker that gives up ends the runs that it has.
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
}

Tell = Callable[[str], None]


@dataclass(slots=True)
class Child:
    """A process that is to run as long as we do."""

    role: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = field(default=0.0)

    def start(self) -> None:
        with reported("cannot write", self.log), self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "flows.processes", self.role, *self.arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for us alone: we stop them in order. The runs of a worker are in its group.
                start_new_session=True,
            )
        self.started_at = time.monotonic()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def revive(self, tell: Tell) -> None:
        """Start it again where it died, but not more often than once a second."""
        if self.is_running or time.monotonic() - self.started_at < _RESTART_SECONDS:
            return
        status = None if self.process is None else self.process.returncode
        self._end_group()
        tell(f"the {self.role} ended with status {status} and is started again; see {self.log}")
        self.start()

    def _end_group(self) -> None:
        """The runs of a worker that died would go on beside those of the next one, and outlive us."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)

    def stop(self) -> None:
        """End it and what it started: asked first, killed after ten seconds."""
        if self.process is None:
            return
        for number, patience_s in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, _STOP_SECONDS)):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()


def up(pipeline: Pipeline, config: Path, tell: Tell) -> None:
    """Run the pipeline until SIGINT, SIGTERM or SIGHUP.

    Raises :class:`Busy` where it runs already or its port is taken, and :class:`StorageError` where the server does
    not come up or the watcher broke.
    """
    be_quiet()
    stop, began = threading.Event(), time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda *_: stop.set())
    configured = configured_url(pipeline)
    with ExitStack() as running:
        state = running.enter_context(_state_of(pipeline))
        tell(f"state and logs: {state}")
        url = (configured or f"http://{pipeline.server.host}:{pipeline.server.port}/api").rstrip("/")
        # Runs are started as `python`, which must be this one.
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        os.environ.update({"PREFECT_HOME": str(state), "PREFECT_API_URL": url, "PATH": path})
        whole = dict(os.environ)
        environment = {key: value for key, value in whole.items() if key != TOKEN_VARIABLE}
        children: list[Child] = []
        if not configured:
            _require_free(pipeline.server.host, pipeline.server.port, "server.port, or the server.url of one that runs")
            place = (pipeline.server.host, str(pipeline.server.port))
            children.append(_started(running, Child("server", place, environment | SERVER, state / "server.log")))
        children += [_started(running, page) for page in _page_of(pipeline, config, whole, state, tell)]
        room = str(pipeline.limits.merges + _OTHER_FLOWS)
        work = (url, pipeline.work_pool, room)
        children.append(_started(running, Child("worker", work, environment | _WORKER, state / "worker.log")))
        # Importing Prefect takes seconds, which the server needs as well.
        from flows.deploying import deploy
        from flows.unavailable import told_of_server

        if not _wait_for(url, children, stop):
            return
        tell(f"server: {public_address(url).removesuffix('/api')}")
        with told_of_server(url):
            deployed = deploy(pipeline, str(config.resolve().parent))
        changes = len(deployed.made) + len(deployed.changed) + len(deployed.removed)
        tell(f"deployed: {pipeline.name}, {changes} change(s)")
        if pipeline.gpu_work_pool is not None:
            tell(f"what needs a GPU waits for: prefect worker start --pool {shlex.quote(pipeline.gpu_work_pool)}")
        broken: list[BaseException] = []
        watcher = threading.Thread(target=_watch, args=(pipeline, stop, tell, url, broken), name="watcher")
        watcher.start()
        running.callback(watcher.join)
        running.callback(stop.set)  # before the join, whatever ends this
        tell(f"ready after {time.monotonic() - began:.1f} s; Ctrl-C stops it")
        while not stop.wait(_LOOK_SECONDS):
            for child in children:
                child.revive(tell)
        if broken:
            # Whoever supervises us starts all of it again, which takes a status that is not 0.
            raise StorageError(f"the watcher failed: {broken[0]!r}") from broken[0]
        tell("stopping")


def _page_of(
    pipeline: Pipeline, config: Path, environment: Mapping[str, str], state: Path, tell: Tell
) -> Iterator[Child]:
    """The process of the page for operators, where the file asks for one. Raises :class:`InvalidConfig` for one that
    would be open to strangers, and :class:`Busy` where its port is taken."""
    settings = pipeline.dashboard
    if settings is None:
        return
    if not is_installed():
        tell("the dashboard is left out: pip install 'ckptcore[dashboard]'")
        return
    require_safe(settings.host, credentials_of(settings))
    _require_free(settings.host, settings.port, "dashboard.port")
    tell(f"dashboard: http://{settings.host}:{settings.port}")
    yield Child("dashboard", (str(config.resolve()),), environment, state / "dashboard.log")


def _watch(pipeline: Pipeline, stop: threading.Event, tell: Tell, url: str, broken: list[BaseException]) -> None:
    try:
        watch_pipeline(pipeline, stop, tell=tell, url=url)
    except BaseException as error:  # noqa: BLE001 - better down than half alive
        broken.append(error)
        stop.set()


def _started(running: ExitStack, child: Child) -> Child:
    running.callback(child.stop)
    child.start()
    return child


@contextmanager
def _state_of(pipeline: Pipeline) -> Iterator[Path]:
    """The directory of state and logs, held so that no other process uses it."""
    state = Path(pipeline.server.state)
    with reported("cannot make", state):
        state.mkdir(parents=True, exist_ok=True)
    try:
        held = ExitStack()
        held.enter_context(locked(state / "up.lock", wait=False))
    except Busy as error:
        raise Busy(f"{state}: another ckpt up runs on this state") from error
    with held:
        yield state


def _require_free(host: str, port: int, setting: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Busy(f"{host}:{port} cannot be listened on: {error.strerror}; name another {setting}") from error


def _wait_for(url: str, children: Sequence[Child], stop: threading.Event) -> bool:
    """Whether the API answers by now; False where we are to stop."""
    end = time.monotonic() + START_SECONDS
    while not stop.wait(_POLL_SECONDS):
        if is_healthy(url):
            return True
        for child in children:
            if child.role == "server" and not child.is_running:
                raise StorageError(f"the server does not start; see {child.log}")
        if time.monotonic() > end:
            raise StorageError(f"{public_address(url)} does not answer after {START_SECONDS:.0f} s")
    return False
