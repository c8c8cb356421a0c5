"""``deployments/compose.yaml`` as Compose reads it, and its services as processes of this machine, without Docker.

A service runs with its own command, its own environment on top of the image's, and in the order of its ``depends_on``,
by its own health check. Only what a container would have for itself is replaced: host names, ports, and directories.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.command import REPOSITORY

DEPLOYMENTS = REPOSITORY / "deployments"
_HEALTH_SECONDS = 240.0
_CKPT = "import sys; from ckptcore.cli import main; sys.argv[0] = 'ckpt'; main()"

Service = dict[str, Any]


def example_environment() -> dict[str, str]:
    """What ``example.env`` says."""
    lines = (DEPLOYMENTS / "example.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def composed(environment: Mapping[str, str]) -> dict[str, Any]:
    """The document with its variables filled in, and ``$$`` still in place."""
    text = (DEPLOYMENTS / "compose.yaml").read_text()
    filled = re.sub(r"(?<!\$)\$\{(\w+)(?::([-?])([^}]*))?\}", lambda found: _value(found, environment), text)
    document: dict[str, Any] = yaml.safe_load(filled)
    return document


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    name, operator, word = found[1], found[2], found[3]
    if environment.get(name):
        return environment[name]
    if operator != "-":
        raise KeyError(name)
    return word


SERVICES: dict[str, Service] = composed(example_environment())["services"]
"""As ``example.env`` fills them in."""


def image_environment() -> dict[str, str]:
    """What ``ENV`` of the Dockerfile sets."""
    text = (DEPLOYMENTS / "Dockerfile").read_text().replace("\\\n", " ")
    [line] = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    return dict(word.split("=", 1) for word in shlex.split(line))


def postgres_program(name: str) -> str:
    """A program of PostgreSQL, the newest one here; Debian keeps most of them off the path."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(installed[-1]) if installed else name


def script_of(service: Service) -> str:
    """The shell script that is the command of a service of ours, as the shell gets it."""
    shell, options, script = service["command"]
    assert (shell, options) == ("sh", "-euc")
    return str(script).replace("$$", "$")


@dataclass
class Stack:
    """The services as processes. ``directory`` holds logs and what the containers would have in volumes."""

    directory: Path
    services: dict[str, Service]
    ports: dict[str, int]
    """By what is written in the file: ``postgres``, ``server`` and ``worker``."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['server']}/api"

    def here(self, text: str) -> str:
        """The text of a container, for a process of this machine."""
        for inside, outside in {
            "/run/secrets": str(self.directory / "secrets"),
            "server:4200": f"127.0.0.1:{self.ports['server']}",
            "127.0.0.1:4200": f"127.0.0.1:{self.ports['server']}",
            "--host 0.0.0.0 --port 4200": f"--host 127.0.0.1 --port {self.ports['server']}",
            "127.0.0.1:8080": f"127.0.0.1:{self.ports['worker']}",
        }.items():
            text = text.replace(inside, outside)
        return {"postgres": "127.0.0.1", "5432": str(self.ports["postgres"]), "8080": str(self.ports["worker"])}.get(
            text, text
        )

    def environment_of(self, name: str) -> dict[str, str]:
        own = self.directory / name
        own.mkdir(exist_ok=True)
        inside = image_environment() | self.services[name].get("environment", {})
        told = {key: self.here(value).replace("/var/lib/ckpt", str(own)) for key, value in inside.items()}
        path = os.pathsep.join([str(self.directory / "bin"), os.path.dirname(sys.executable), os.environ["PATH"]])
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        return kept | told | {"PATH": path, "PYTHONPATH": str(REPOSITORY)}

    def start(self, name: str) -> None:
        for needed, how in self.services[name].get("depends_on", {}).items():
            if how["condition"] == "service_completed_successfully":
                assert self.processes[needed].wait(_HEALTH_SECONDS) == 0, self.log(needed)
            else:
                self.wait_until_healthy(needed)
        if name == "postgres":
            return self._start_postgres()
        command = ["sh", "-euc", self.here(script_of(self.services[name]))]
        with self._log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self.environment_of(name),
                cwd=self.directory / name,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return None

    def wait_until_healthy(self, name: str) -> None:
        """By the health check of the service itself."""
        test = self.services[name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        command = [self.here(word) for word in test[1:]]
        environment = self.environment_of(name) | {"PGPORT": str(self.ports["postgres"])}
        end = time.monotonic() + _HEALTH_SECONDS
        while subprocess.run(command, env=environment, capture_output=True).returncode != 0:
            assert self.processes[name].poll() is None, self.log(name)
            assert time.monotonic() < end, self.log(name)
            time.sleep(1)

    def stop(self, name: str, number: int = signal.SIGTERM) -> int:
        """End a service with all that it started; its exit status."""
        process = self.processes.pop(name)
        try:
            # Postgres tells its own processes, and takes SIGTERM of others for theirs.
            (os.kill if name == "postgres" else os.killpg)(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            return process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def log(self, name: str) -> str:
        return self._log(name).read_text(errors="replace")

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _start_postgres(self) -> None:
        """As the image's entry point does it: an empty directory is filled first, for the user and the database."""
        data, said = self.directory / "database", self.services["postgres"]["environment"]
        as_user = list[str]()
        if os.getuid() == 0:
            # Postgres does not run as root.
            as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        if not data.exists():
            data.mkdir()
            subprocess.run(["chown", "nobody", data], check=bool(as_user))
            password = Path(self.here(said["POSTGRES_PASSWORD_FILE"]))
            readable = self.directory / "password-of-postgres"
            readable.write_bytes(password.read_bytes())
            options = [f"--username={said['POSTGRES_USER']}", f"--pwfile={readable}", "--auth=scram-sha-256"]
            _run([*as_user, postgres_program("initdb"), f"--pgdata={data}", "--encoding=UTF8", "--no-sync", *options])
        command = [*as_user, postgres_program("postgres"), "-D", str(data), "-p", str(self.ports["postgres"])]
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={data}"]
        with self._log("postgres").open("ab") as log:
            self.processes["postgres"] = subprocess.Popen(
                [*command, *settings], stdout=log, stderr=log, start_new_session=True
            )
        self.wait_until_healthy("postgres")
        self.sql(f"create database {said['POSTGRES_DB']}", may_fail=True)

    def sql(self, statement: str, *, may_fail: bool = False) -> str:
        """What a statement gives, as the user of the server, in the database of the cluster itself."""
        password = (self.directory / "secrets" / "postgres_password").read_text().strip()
        command = ["psql", "-h", "127.0.0.1", "-p", str(self.ports["postgres"]), "-U", "prefect", "-Atc", statement]
        done = subprocess.run(
            [*command, "postgres"], env=os.environ | {"PGPASSWORD": password}, capture_output=True, text=True
        )
        assert may_fail or done.returncode == 0, done.stderr
        return done.stdout.strip()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def stacked(environment: Mapping[str, str], ports: dict[str, int]) -> Iterator[Stack]:
    """A stack that nothing of runs yet; all of it is stopped at the end."""
    # Not below pytest's directory, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="ckptcore-compose-") as name, ExitStack() as running:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "bin").mkdir()
        ckpt = directory / "bin" / "ckpt"
        ckpt.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{_CKPT}" "$@"\n')
        ckpt.chmod(0o755)
        secrets = directory / "secrets"
        secrets.mkdir(mode=0o700)
        (secrets / "postgres_password").write_text("p@ss/w:rd%\n")  # what a careless URL would not survive
        (secrets / "prefect_auth").write_text("team:s3cret word\n")
        stack = Stack(directory, composed(environment)["services"], ports)
        running.callback(_stop_all, stack)
        yield stack


def _stop_all(stack: Stack) -> None:
    for name in reversed(list(stack.processes)):
        stack.stop(name)
