"""``compose.yaml`` and the Dockerfile name what exists; ``tests/e2e/test_compose.py`` runs what they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import Settings
from typer.main import get_command

from ckptcore.cli.app import app
from ckptcore.config import read_config
from flows.configuring import QUIET
from flows.up import SERVER
from tests.command import REPOSITORY
from tests.deployments.composing import DEPLOYMENTS, composed, example_environment, image_environment, script_of

DOCUMENT = composed(example_environment())
SERVICES: dict[str, Any] = DOCUMENT["services"]
OURS = {name: service for name, service in SERVICES.items() if name != "postgres"}
DOCKERFILE = (DEPLOYMENTS / "Dockerfile").read_text()


def test_what_must_be_told_is_asked_for() -> None:
    with pytest.raises(KeyError):
        composed(example_environment() | {"CKPT_REGISTRY": ""})
    assert composed(example_environment() | {"CKPT_LISTEN": ""}) == DOCUMENT  # which has a default


@pytest.mark.parametrize("name", [*OURS, "image"])
def test_every_setting_is_one_that_prefect_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = dict(image_environment())
    if name != "image":
        told |= OURS[name]["environment"] | dict.fromkeys(re.findall(r"(PREFECT_\w+)=", script_of(OURS[name])), "a:b")
    settings = {key: value for key, value in told.items() if key.startswith("PREFECT_")}
    for key in [key for key in os.environ if key.startswith("PREFECT_")]:
        monkeypatch.delenv(key)
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    taken = Settings().to_environment_variables(exclude_unset=True, include_secrets=True)
    assert settings.keys() <= taken.keys()


def test_nothing_is_sent_anywhere() -> None:
    assert QUIET.items() <= image_environment().items()
    assert all(QUIET.items() <= service["environment"].items() for service in OURS.values())


def test_the_server_keeps_its_leases_as_that_of_ckpt_up_does() -> None:
    lease_storage = "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"
    assert SERVICES["server"]["environment"][lease_storage] == SERVER[lease_storage]


def test_commands_and_modules_exist() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    scripts = [script_of(service) for service in OURS.values()]
    scripts.append(shlex.join(json.loads(re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[0])))
    named = [name for script in scripts for name in re.findall(r"(?:exec |^)ckpt (\w+)", script)]
    assert named == ["deploy", "watch", "up"]
    assert set(named) <= set(commands)
    [pool] = re.findall(r"prefect worker start --pool (\S+)", script_of(SERVICES["worker"]))
    pipeline = read_config(DEPLOYMENTS / "ckpt.yaml")
    assert pool == pipeline.work_pool
    assert f"--limit {pipeline.limits.merges + 1} " in script_of(SERVICES["worker"])


def test_images_are_pinned_and_made_from_files_that_are_here() -> None:
    images = {service["image"] for service in SERVICES.values()} | set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.M))
    assert {image.partition(":")[0] for image in images} == {"ckptcore", "postgres", "python"}
    assert all(re.fullmatch(r"\w+:\d+(\.\d+)+(-[\w-]+)?", image) for image in images)
    copied = [
        name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()
    ]
    assert all((REPOSITORY / name).exists() for name in copied)
    ignored = (DEPLOYMENTS / "Dockerfile.dockerignore").read_text()
    assert sorted(re.findall(r"^!(.*)$", ignored, re.MULTILINE)) == sorted(copied)
    build = SERVICES["server"]["build"]
    assert (DEPLOYMENTS / build["context"] / build["dockerfile"]).samefile(DEPLOYMENTS / "Dockerfile")
    assert set(build["args"]) <= set(re.findall(r"^ARG (\w+)=", DOCKERFILE, re.MULTILINE))
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE) == ["ckpt"]


def test_the_first_layer_installs_what_the_package_needs() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needed = [re.split(r"[<>=~]", requirement)[0] for requirement in project["dependencies"]]
    assert f" {' '.join(needed)}\n" in DOCKERFILE


def test_containers_see_what_they_need_under_the_paths_of_the_host() -> None:
    told = example_environment()
    pipeline = read_config(DEPLOYMENTS / "ckpt.yaml")
    assert pipeline.registry == told["CKPT_REGISTRY"]
    assert all(Path(source.path).is_relative_to(told["CKPT_SOURCES"]) for source in pipeline.sources)
    for service in OURS.values():
        mounts = [mount.split(":") for mount in service["volumes"]]
        assert all(mount[0] == mount[1] for mount in mounts if mount[0].startswith("/"))
    config, sources, registry = told["CKPT_CONFIG"], told["CKPT_SOURCES"], told["CKPT_REGISTRY"]
    assert SERVICES["worker"]["volumes"] == [
        f"{config}:{config}:ro", f"{sources}:{sources}:ro", f"{registry}:{registry}"
    ]  # fmt: skip
    assert SERVICES["watcher"]["volumes"] == [f"{config}:{config}:ro", f"{sources}:{sources}"]
    assert set(DOCUMENT["volumes"]) == {"database", "server"}


def test_secrets_are_in_no_environment() -> None:
    assert DOCUMENT["secrets"].keys() == {"postgres_password", "prefect_auth"}
    for service in SERVICES.values():
        assert set(service.get("secrets", [])) <= DOCUMENT["secrets"].keys()
        assert not [key for key in service["environment"] if key.endswith(("PASSWORD", "AUTH_STRING"))]
    for service in OURS.values():
        assert set(re.findall(r"/run/secrets/(\w+)", script_of(service))) == set(service["secrets"])


def test_only_the_server_is_reached_from_outside_and_only_from_this_host() -> None:
    assert {name: service["ports"] for name, service in SERVICES.items() if "ports" in service} == {
        "server": ["127.0.0.1:4200:4200"]
    }
    assert DOCUMENT["networks"]["database"] == {"internal": True}
    assert SERVICES["postgres"]["networks"] == ["database"]


@pytest.mark.deployments
def test_compose_takes_it() -> None:
    from compose_spec import PyCompose

    compose = PyCompose.from_json(json.dumps(DOCUMENT))
    compose.validate()
    assert set(compose.service_names()) == {"postgres", "server", "deploy", "worker", "watcher"}
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= SERVICES.keys()  # which it does not look at
