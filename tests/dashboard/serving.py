"""A dashboard as ``ckpt dashboard`` runs it, and what a browser sees of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Playwright, Request, WebSocket

from tests.command import REPOSITORY
from tests.e2e.running import eventually, free_port

_SCRIPT = "import sys; from ckptcore.cli import main; sys.argv[0] = 'ckpt'; main()"
CHROMIUM = os.environ.get("CKPT_BROWSER", "/usr/bin/chromium")


@dataclass
class Served:
    """A running dashboard."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


@contextmanager
def serving(
    directory: Path, *arguments: object, secret: str | None = None, environment: Mapping[str, str] = {}
) -> Iterator[Served]:
    """``ckpt dashboard ARGUMENTS`` on a port of its own, answering by now; ``directory`` gets its log."""
    port = free_port()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "PYTEST_"))}
    kept |= {"PYTHONPATH": str(REPOSITORY), **environment}
    if secret is not None:
        kept["CKPT_DASHBOARD_TOKEN"] = secret
    log = directory / f"dashboard-{port}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, "dashboard", "--port", str(port), *map(str, arguments)],
            cwd=directory,
            env=kept,
            stdout=stream,
            stderr=stream,
        )
    served = Served(f"http://127.0.0.1:{port}", process, log)
    try:
        eventually(lambda: process.poll() is not None or answers(served.url), within_s=60, what="a dashboard")
        assert process.poll() is None, log.read_text()
        yield served
    finally:
        process.terminate()
        process.wait(30)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/assets/dashboard.css", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@dataclass
class Eyes:
    """A browser's window on a dashboard, and everything that should not have happened in it."""

    context: BrowserContext
    origin: str
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def page(self) -> Page:
        page = self.context.new_page()
        page.on("request", self._meet)
        page.on("websocket", self._meet_socket)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._refuse)
        return page

    def _meet(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("data", "blob") or f"{parts.scheme}://{parts.netloc}" == self.origin:
            return
        self.outside.append(request.url)

    def _meet_socket(self, socket: WebSocket) -> None:
        if urlsplit(socket.url).netloc != urlsplit(self.origin).netloc:
            self.outside.append(socket.url)

    def _refuse(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def assert_calm(self) -> None:
        """Nothing was asked of any other host, and no script failed, was refused, or did what a name told it to."""
        assert self.outside == []
        assert self.errors == []
        assert self.dialogs == []


def started(playwright: Playwright) -> Browser:
    # Chromium's own sandbox needs rights that a container does not give; what it opens here is our own.
    return playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])


@contextmanager
def eyes(
    browser: Browser, origin: str, *, width: int = 1440, height: int = 900, scheme: str = "light", **options: object
) -> Iterator[Eyes]:
    """A window of its own: its own cookies, its own storage."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        **options,  # type: ignore[arg-type]
    )
    try:
        yield Eyes(context, origin)
    finally:
        context.close()
