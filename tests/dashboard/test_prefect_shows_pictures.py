"""Prefect's own interfaces, the old one and the new one, show the pictures that a run leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Route

from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY
from tests.e2e.running import eventually, free_port

pytestmark = pytest.mark.browser

HOSTILE = "</text><script>document.title = 'run'</script>"
RANKS = SavedCheckpoint().tensor(HOSTILE, list(map(float, range(32))), grid=(16,))
RUN = """
import sys
from flows.merge_and_publish import merge_and_publish
merge_and_publish({"path": sys.argv[1]}, *sys.argv[2:])
"""
IS_DRAWN = "() => [...document.images].some(each => each.src.startsWith('data:image/svg') && each.naturalWidth === 960)"


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with its interfaces, on which one run was recorded."""
    directory, port = tmp_path_factory.mktemp("prefect"), free_port()
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "PREFECT_HOME": str(directory / "home"),
        "PREFECT_API_URL": f"{url}/api",
        "PYTHONPATH": str(REPOSITORY),
    }
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: _answers(f"{url}/api/health"), within_s=180, what="a server")
        run = write_trainer_run(directory / "run", {1: RANKS})
        arguments = [str(run), str(directory / "registry"), HOSTILE.replace("/", "")]
        subprocess.run([sys.executable, "-c", RUN, *arguments], env=environment, check=True, timeout=180)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("interface", ["", "/v2"])
def test_pictures_are_drawn(prefect: str, browser: Browser, interface: str) -> None:
    asked = {"artifacts": {"type": {"any_": ["image"]}}}
    found = httpx.post(f"{prefect}/api/artifacts/filter", json=asked, timeout=30).json()
    pictures = {artifact["key"].partition("-")[0]: artifact["id"] for artifact in found}
    assert set(pictures) == {"ranks", "steps"}
    context = browser.new_context()
    # The interfaces ask for things on the internet, which no test does.
    context.route("**/*", lambda route: _answer(route, prefect))
    try:
        for picture in pictures.values():
            page = context.new_page()
            page.goto(f"{prefect}{interface}/artifacts/artifact/{picture}")
            page.wait_for_function(IS_DRAWN, timeout=60_000)
            assert page.title() != "run"
            page.close()
    finally:
        context.close()


def _answer(route: Route, prefect: str) -> None:
    if route.request.url.startswith((prefect, "data:")):
        route.continue_()
    else:
        route.abort()
