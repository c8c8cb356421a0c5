"""The units of systemd: systemd itself takes them, and they name what exists."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from prefect.settings import Settings
from typer.main import get_command

from ckptcore.cli.app import app
from ckptcore.config import read_config
from flows.configuring import QUIET
from tests.deployments.composing import DEPLOYMENTS, SERVICES, script_of

UNITS = sorted((DEPLOYMENTS / "systemd").glob("*.service"))
NAMES = [unit.stem for unit in UNITS]
MOST_EXPOSURE = 20
"""In tenths, of systemd's own scale from 0 to 10; a unit that says nothing has 96."""


def settings_of(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in (DEPLOYMENTS / "systemd" / f"{name}.service").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found[key].append(value)
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=NAMES)
def test_systemd_takes_it_and_finds_it_hardened(unit: Path, tmp_path: Path) -> None:
    # Its programs must exist, and here the package is installed elsewhere.
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/ckptcore/bin/", f"{Path(sys.executable).parent}/"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSURE}", "--no-pager", copy],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_commands_are_those_of_the_package_and_of_compose() -> None:
    [command] = settings_of("ckpt-up")["ExecStart"]
    program, verb, config = shlex.split(command)
    assert (program, config) == ("/opt/ckptcore/bin/ckpt", f"{settings_of('ckpt-up')['WorkingDirectory'][0]}/ckpt.yaml")
    assert verb in get_command(app).commands  # type: ignore[attr-defined]
    [command] = settings_of("ckpt-worker")["ExecStart"]
    composed = re.sub(r"\s+", " ", script_of(SERVICES["worker"]).replace("\\\n", "")).partition("exec prefect ")[2]
    # Nobody looks at a health check here: systemd starts the worker again.
    assert command == f"/opt/ckptcore/bin/prefect {composed.replace('--with-healthcheck ', '').strip()}"


def test_what_they_may_write_is_what_the_pipeline_writes() -> None:
    pipeline = read_config(DEPLOYMENTS / "ckpt.yaml")
    writable = {name: settings_of(name)["ReadWritePaths"][0].split() for name in NAMES}
    # The watcher in ckpt up writes marks beside the versions.
    assert all(Path(source.path).is_relative_to(writable["ckpt-up"][0]) for source in pipeline.sources)
    assert pipeline.registry in writable["ckpt-up"]
    assert writable["ckpt-worker"] == [pipeline.registry]
    for name in NAMES:
        assert set(writable[name]) <= set(settings_of(name)["RequiresMountsFor"][0].split())


def test_settings_are_those_of_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(unit.read_text() for unit in UNITS)
    named = set(re.findall(r"\b(PREFECT_\w+)\b", text))
    for name in named:
        monkeypatch.setenv(name, "user:1" if name.endswith("STRING") else "1")
    assert named <= Settings().to_environment_variables(exclude_unset=True, include_secrets=True).keys()
    said = dict(word.split("=", 1) for line in settings_of("ckpt-worker")["Environment"] for word in line.split())
    assert {key: value for key, value in QUIET.items() if "UI" not in key}.items() <= said.items()
