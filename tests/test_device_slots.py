"""Slots for devices on a real server: as many as the host has devices, held while a step runs, and given back."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.futures import wait

from ckptcore.devices import no_slots
from ckptcore.rules.devices import device_limit
from tasks.device_slots import device_host

pytestmark = pytest.mark.prefect_server

Span = tuple[str, float, float]


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A host of the test's own, with its locks."""
    name = f"host-{tmp_path.name.replace('_', '-')}"
    monkeypatch.setenv("CKPT_DEVICE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("CKPT_HOST", name)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return name


def limit_of(host: str) -> tuple[int, int]:
    """Size and taken slots."""
    with get_client(sync_client=True) as client:
        found = client.read_global_concurrency_limit_by_name(device_limit(host))
    return found.limit, int(found.active_slots)


@task
def step(gpus: int, fails: bool, host: str) -> list[Span]:
    with device_host((0, 1, 2)).claimed(gpus) as claim:
        assert limit_of(host)[1] >= gpus
        began = time.monotonic()
        time.sleep(0.3)
        if fails:
            raise ZeroDivisionError
        return [(device, began, time.monotonic()) for device in claim.devices]


@flow
def many_steps(asked: list[int], host: str) -> list[Span]:
    futures = [step.submit(gpus, number % 3 == 2, host) for number, gpus in enumerate(asked)]
    wait(futures)
    results: list[Any] = [future.result(raise_on_failure=False) for future in futures]
    return [span for result in results if isinstance(result, list) for span in result]


def test_steps_hold_slots_and_give_them_back_when_they_fail_too(server: str, host: str) -> None:
    asked = [1, 2, 1, 3, 1, 2]
    spans = many_steps(asked, host)
    assert len(spans) == sum(gpus for number, gpus in enumerate(asked) if number % 3 != 2)
    for device in "012":
        on_device = sorted((began, ended) for where, began, ended in spans if where == device)
        assert all(ended <= began for (_, ended), (began, _) in pairwise(on_device))
    assert limit_of(host) == (3, 0)


@task
def claimed(indexes: tuple[int, ...]) -> tuple[str, ...]:
    with device_host(indexes).claimed(1) as claim:
        return claim.devices


@flow
def claimed_on(indexes: tuple[int, ...]) -> tuple[str, ...]:
    devices: tuple[str, ...] = claimed(indexes)
    return devices


def test_a_host_that_is_said_to_have_others_gets_as_many_slots(server: str, host: str) -> None:
    for indexes, device, slots in (((0, 1), "0", 2), ((5, 6, 7), "5", 3), ((), "cpu", 1)):
        assert claimed_on(indexes) == (device,)
        assert limit_of(host) == (slots, 0)


def test_outside_of_a_run_no_server_is_asked() -> None:
    assert device_host((0,)).slots is no_slots
