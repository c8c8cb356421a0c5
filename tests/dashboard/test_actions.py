"""An operator's clicks, through a real server and a real worker, to an alias that moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ckptcore import promote
from ckptcore.registry import history_of, pointed_to, releases_on, shelf_of
from ckptcore.rules.release import Act
from tests.dashboard.serving import eyes
from tests.e2e.running import Training, Up, eventually, free_port, running

pytestmark = [pytest.mark.browser, pytest.mark.e2e]
RUN_SECONDS = 90_000


@contextmanager
def pipeline(directory: Path, port: int) -> Iterator[Up]:
    """A whole pipeline with its page, which may act, and two releases."""
    training = Training(directory / "run")
    training.write(100)
    training.write(200)
    page = {"port": port, "allow_actions": True}
    with running(directory, dashboard=page, retention={"last": 1}) as up:
        shelf = shelf_of(directory / "registry", "tiny")
        eventually(lambda: len(releases_on(shelf)) == 2, within_s=180, what="two releases")
        yield up


def choose(page: Page, label: str, text: str) -> None:
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option").filter(has_text=text).first.click()


def confirmed(page: Page) -> None:
    page.get_by_role("button", name="Do it").click()


def test_an_operator_promotes_rolls_back_pins_and_prunes(tmp_path: Path, browser: Browser) -> None:
    port = free_port()
    with pipeline(tmp_path, port), eyes(browser, f"http://127.0.0.1:{port}") as seen:
        shelf = shelf_of(tmp_path / "registry", "tiny")
        first, second = sorted(releases_on(shelf), key=lambda name: int(name.split("_")[0].removeprefix("step-")))
        page = seen.page()
        page.goto(f"{seen.origin}/p/tiny")

        for release in (first, second):
            page.get_by_role("button", name="Promote…").click()
            choose(page, "Release", release)
            page.get_by_label("Reason").fill("tried in the browser")
            page.get_by_role("button", name="Go on…").click()
            expect(page.locator(".confirm")).to_contain_text("production of tiny moves from")
            confirmed(page)
            expect(page.locator(".act-said")).to_contain_text("Done.", timeout=RUN_SECONDS)
            assert pointed_to(shelf, "production") == release
            page.get_by_role("button", name="Close").click()

        page.get_by_role("button", name="Roll back…").click()
        page.get_by_role("button", name="Go on…").click()
        confirmed(page)
        expect(page.locator(".act-said")).to_contain_text("Done.", timeout=RUN_SECONDS)
        assert pointed_to(shelf, "production") == first
        page.get_by_role("button", name="Close").click()
        # The page follows without a reload.
        expect(page.locator(".aliases")).to_contain_text("step\N{NO-BREAK SPACE}100")

        # Nothing goes that an alias names, and both are named.
        page.get_by_role("button", name="Prune…").click()
        page.get_by_role("button", name="Dry run…").click()
        confirmed(page)
        expect(page.locator(".act-said")).to_contain_text("0 to remove, 2 to keep", timeout=RUN_SECONDS)
        page.get_by_role("button", name="Close").click()

        promote(shelf.root.parent, f"tiny@{second}", "production")
        page.get_by_role("button", name="Prune…").click()
        page.get_by_role("button", name="Dry run…").click()
        confirmed(page)
        expect(page.locator(".act-said")).to_contain_text("1 to remove, 1 to keep", timeout=RUN_SECONDS)
        page.get_by_role("button", name="Remove them…").click()
        expect(page.locator(".confirm")).to_contain_text("1 release(s) of tiny are removed for good")
        confirmed(page)
        expect(page.locator(".act-said")).to_contain_text("Done.", timeout=RUN_SECONDS)
        assert releases_on(shelf) == (second,)
        page.get_by_role("button", name="Close").click()

        acts = [act for act in history_of(shelf) if act.by and act.act in ("promote", "rollback")]
        assert [(act.act, act.release) for act in acts] == [
            ("promote", first),
            ("promote", second),
            ("rollback", first),
        ]
        assert all(_is_told(act) for act in acts)
        seen.assert_calm()


def _is_told(act: Act) -> bool:
    """Who asked and which run did it."""
    return bool(act.by) and bool(act.flow_run)
