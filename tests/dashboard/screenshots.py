"""``make screenshots``: the pictures in the README and in docs, of pipelines that are made for them.

What is shown is real: saves in Paddle's layout, releases that were verified and merged, and one save that is damaged.
Only their times are set back, so that they spread over a day.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, expect, sync_playwright

from ckptcore import Choice, pin, promote, run
from ckptcore.registry import shelf_of
from flows.processes import is_healthy
from flows.running import run_as_flow
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY
from tests.dashboard.serving import eyes, serving, started
from tests.e2e.running import eventually, free_port

IMAGES = REPOSITORY / "docs" / "images"
HOUR = 3600.0
MOST_BYTES = 250_000
STEPS = range(500, 12_001, 500)
FLOWS = 8
"""So many releases are published by the flow."""


def save(step: int) -> SavedCheckpoint:
    values = np.random.default_rng(step).standard_normal((256, 96)).astype(np.float32)
    saved = SavedCheckpoint()
    for layer in range(4):
        saved = saved.tensor(f"model.layers.{layer}.mlp.weight", values + layer, grid=(2, 2))
    return saved


def pipeline(
    home: Path, name: str, *, newest_age_s: float, published: int, damaged: bool = False, as_flow: bool = False
) -> None:
    """A run, its releases up to ``published``, and its ckpt.yaml.

    ``as_flow`` lets flows publish the last of them, so that the server knows how long their steps took.
    """
    source, registry = home / "runs" / name, home / "registry"
    saves = {step: save(step) for step in STEPS}
    if damaged:
        saves[STEPS[-1]] = saves[STEPS[-1]].truncated("3_0.distcp", at=4000)
    write_trainer_run(source, saves)
    now = time.time()
    ages = {step: newest_age_s + (len(STEPS) - 1 - place) * HOUR for place, step in enumerate(STEPS)}
    for step, age in ages.items():
        for path in (source / f"checkpoint-{step}").rglob("*"):
            os.utime(path, (now - age, now - age))
    for step in STEPS:
        choice = Choice(str(source), step=step)
        if step <= published - FLOWS * 500 or not as_flow:
            if step <= published:
                run(choice, registry, name)
        elif step <= published:
            run_as_flow(choice, registry, name, alias="latest")
    backdate(registry, name, {step: now - age + 140 for step, age in ages.items()})
    settings: dict[str, object] = {
        "name": name,
        "registry": str(registry),
        "sources": [{"path": str(source)}],
        "stall": "4h",
    }
    settings |= {"server": {"url": os.environ["PREFECT_API_URL"]}}
    (home / f"{name}.yaml").write_text(json.dumps(settings | {"retention": {"last": 20}}))


def backdate(registry: Path, name: str, times: Mapping[int, float]) -> None:
    """Let the history say when each release would have been published."""
    history = shelf_of(registry, name).history
    lines = []
    for line in history.read_text().splitlines():
        act = json.loads(line)
        step = int(act["release"].split("_")[0].removeprefix("step-"))
        lines.append(json.dumps(act | {"at": f"{datetime.fromtimestamp(times[step], UTC):%Y-%m-%dT%H:%M:%SZ}"}))
    history.write_text("\n".join(lines) + "\n")


def prefect_server(home: Path) -> subprocess.Popen[bytes]:
    """A server of its own, answering by now, which this process talks to from here on."""
    port = free_port()
    os.environ |= {
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    (home / "prefect").mkdir()
    arguments = [sys.executable, "-m", "flows.processes", "server", "127.0.0.1", str(port)]
    process = subprocess.Popen(arguments, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: is_healthy(os.environ["PREFECT_API_URL"]), within_s=300, what="a server")
    return process


def shoot(page: Page, name: str) -> None:
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path)
    size = path.stat().st_size
    print(f"{path.relative_to(REPOSITORY)}  {size:,} bytes")
    if size > MOST_BYTES:
        sys.exit(f"{path}: expected at most {MOST_BYTES:,} bytes")


def read_values(page: Page) -> None:
    """Ask a release's page for what it reads only where somebody asks."""
    page.get_by_role("button", name="Measure the changes").click()
    page.get_by_role("button", name="before it too").click()
    page.get_by_text("Norm of all finite values").wait_for(timeout=60_000)
    expect(page.get_by_role("button", name="Stop")).to_have_count(0, timeout=60_000)


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="ckpt-"))
    server = prefect_server(home)
    try:
        pipeline(home, "llama-sft", newest_age_s=900, published=12_000)
        pipeline(home, "qwen-dpo", newest_age_s=1500, published=11_500)
        pipeline(home, "ernie-pretrain", newest_age_s=2400, published=11_500, damaged=True, as_flow=True)
        for name in ("llama-sft", "ernie-pretrain"):
            promote(home / "registry", f"{name}@latest", "production", reason="passed the evaluation")
        release = pin(home / "registry", "llama-sft@latest").release
        configs = [option for path in sorted(home.glob("*.yaml")) for option in ("--config", path)]
        IMAGES.mkdir(parents=True, exist_ok=True)
        with serving(home, *configs) as served, sync_playwright() as playwright:
            browser = started(playwright)
            views = [
                ("dashboard-overview", "/", 1440, 640, "light"),
                ("dashboard-overview-dark", "/", 1024, 900, "dark"),
                ("dashboard-phone", "/", 390, 844, "light"),
                ("dashboard-pipeline", "/p/llama-sft", 1440, 900, "light"),
                ("dashboard-timeline", "/p/ernie-pretrain/timeline", 1440, 900, "light"),
                ("dashboard-version", "/v/ernie-pretrain/12000/0?tensor=model.layers.0.mlp.weight", 1440, 900, "light"),
                ("dashboard-release", f"/r/llama-sft/{release}", 1440, 1250, "light"),
            ]
            for name, path, width, height, scheme in views:
                with eyes(browser, served.url, width=width, height=height, scheme=scheme) as seen:
                    page = seen.page()
                    page.goto(f"{served.url}{path}")
                    page.locator(".card").first.wait_for(timeout=60_000)
                    page.get_by_text("is being looked at").wait_for(state="detached", timeout=60_000)
                    if name == "dashboard-release":
                        read_values(page)
                    page.wait_for_timeout(1500)  # fonts, and the first answers of the server
                    shoot(page, name)
                    seen.assert_calm()
            browser.close()
    finally:
        server.terminate()
        server.wait(60)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
