"""One browser, and one dashboard of the small Llama run, for all tests that ask for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, sync_playwright

from ckptcore import Choice, pin, promote, run
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY
from tests.dashboard.serving import CHROMIUM, Served, serving, started

LLAMA = REPOSITORY / "tests" / "data" / "llama-run"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not os.path.exists(CHROMIUM):
        pytest.skip(f"{CHROMIUM} is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = started(playwright)
        yield browser
        browser.close()


def aged(run_directory: Path, seconds: float) -> None:
    """As if it had been written so long ago."""
    for path in run_directory.rglob("*"):
        if path.is_file():
            at = path.stat().st_mtime - seconds
            os.utime(path, (at, at))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The small Llama run that Paddle wrote, two steps of it published, and a damaged step after them."""
    directory = tmp_path_factory.mktemp("llama")
    source = Path(shutil.copytree(LLAMA, directory / "run"))
    registry = directory / "registry"
    aged(source, 3600)
    for step in (9, 10):
        run(Choice(str(source), step=step), registry, "llama")
    promote(registry, "llama@latest", "production")
    pin(registry, "llama@latest")
    damaged = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32), grid=(2,)).truncated("1_0.distcp", at=100)
    write_trainer_run(source, {200: damaged})
    aged(source / "checkpoint-200", 600)
    with serving(directory, "--source", source, "--registry", registry) as served:
        yield served
