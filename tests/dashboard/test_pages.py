"""Every page in a real browser, with what real runs and registries hold, and with what nobody should name anything."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ckptcore import Choice, run
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.crowds import crowd
from tests.dashboard.serving import Served, eyes, serving
from tests.e2e.running import free_port

pytestmark = pytest.mark.browser
PATIENCE = 60_000


def looked(page: Page) -> None:
    """Wait until the first look at the disks is over."""
    expect(page.locator(".pipeline, table.pipelines").first).to_be_visible(timeout=PATIENCE)


@pytest.mark.parametrize("width", [1440, 1024, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_overview_says_what_is_wrong_and_fits(llama: Served, browser: Browser, width: int, scheme: str) -> None:
    with eyes(browser, llama.url, width=width, scheme=scheme) as seen:
        page = seen.page()
        page.goto(llama.url)
        looked(page)
        card = page.locator(".card.pipeline")
        expect(card).to_contain_text("version 0 of step 200 is damaged")
        for fact in ("newest", "complete", "published", "latest", "production", "free"):
            expect(card).to_contain_text(fact)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(245, 246, 248)" if scheme == "light" else "rgb(14, 18, 23)")
        seen.assert_calm()


def test_a_pipeline_leads_to_its_versions_and_releases(llama: Served, browser: Browser) -> None:
    with eyes(browser, llama.url) as seen:
        page = seen.page()
        page.goto(f"{llama.url}/p/llama")
        expect(page.locator("h1")).to_contain_text("llama", timeout=PATIENCE)
        expect(page.get_by_text("pinned", exact=True)).to_be_visible()
        page.get_by_role("link", name="step\N{NO-BREAK SPACE}200").first.click()
        expect(page).to_have_url(f"{llama.url}/v/llama/200/0")
        expect(page.locator("h1")).to_contain_text("damaged")
        page.go_back()
        page.get_by_role("link", name="step-10_id-0").first.click()
        expect(page.locator("h1")).to_contain_text("step-10_id-0")
        seen.assert_calm()


def test_the_timeline_shows_every_stage_and_filters(llama: Served, browser: Browser) -> None:
    with eyes(browser, llama.url) as seen:
        page = seen.page()
        page.goto(f"{llama.url}/p/llama/timeline")
        expect(page.locator(".tick")).to_have_count(4, timeout=PATIENCE)
        expect(page.locator(".tick.stage-published")).to_have_count(2)
        page.locator("a.filter.stage-damaged").click()
        expect(page.locator("table.grid tbody tr").filter(has_text="damaged")).to_have_count(1)
        expect(page.locator("a.filter.stage-damaged")).to_have_attribute("aria-pressed", "true")
        page.locator(".tick.stage-damaged").click()
        expect(page).to_have_url(f"{llama.url}/v/llama/200/0")
        seen.assert_calm()


def test_keys_lead_everywhere(llama: Served, browser: Browser) -> None:
    with eyes(browser, llama.url) as seen:
        page = seen.page()
        page.goto(llama.url)
        looked(page)
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
        page.keyboard.press("j")
        expect(page.locator(".chosen")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{llama.url}/p/llama")
        page.keyboard.press("g")
        page.keyboard.press("t")
        expect(page).to_have_url(f"{llama.url}/p/llama/timeline")
        page.keyboard.press("g")
        page.keyboard.press("o")
        expect(page).to_have_url(f"{llama.url}/")
        page.keyboard.press("d")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        seen.assert_calm()


@pytest.mark.parametrize("path", ["/p/no-such", "/v/llama/77/0", "/v/llama/x/y", "/r/llama/nothing", "/nowhere"])
def test_what_is_not_there_is_said_in_words(llama: Served, browser: Browser, path: str) -> None:
    with eyes(browser, llama.url) as seen:
        page = seen.page()
        page.goto(llama.url)
        looked(page)
        page.goto(f"{llama.url}{path}")
        expect(page.locator("h1")).to_contain_text("No such")
        page.get_by_role("link", name="To the overview").click()
        expect(page).to_have_url(f"{llama.url}/")


def test_a_new_version_is_seen_without_a_reload(tmp_path: Path, browser: Browser) -> None:
    source = tmp_path / "run"
    write_trainer_run(source, {100: SavedCheckpoint().tensor("w", [1.0])})
    with serving(tmp_path, "--source", source) as served, eyes(browser, served.url) as seen:
        page = seen.page()
        page.goto(served.url)
        looked(page)
        expect(page.locator(".card.pipeline")).to_contain_text("step\N{NO-BREAK SPACE}100")
        write_trainer_run(source, {200: SavedCheckpoint().tensor("w", [2.0])})
        expect(page.locator(".card.pipeline")).to_contain_text("step\N{NO-BREAK SPACE}200", timeout=PATIENCE)
        registry = tmp_path / "registry"
        assert not registry.exists()  # who looks makes nothing
        seen.assert_calm()


def test_an_empty_source_and_a_missing_one_are_told_of(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "empty").mkdir()
    arguments = ("--source", tmp_path / "empty", "--source", tmp_path / "missing")
    with serving(tmp_path, *arguments) as served, eyes(browser, served.url) as seen:
        page = seen.page()
        page.goto(served.url)
        looked(page)
        expect(page.locator('[data-find^="empty"]')).to_contain_text("there is no version yet")
        expect(page.locator('[data-find^="missing"]')).to_contain_text("No such file or directory")
        seen.assert_calm()


HOSTILE = [
    "<script>alert(1)</script>".replace("/", "\N{DIVISION SLASH}"),
    "<img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "${alert(4)}`",
    "{{7*7}}",
    "\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe",
    "line\nbreak\x1b[31m\x07",
    "n" * 200,
    b"not\xfftext".decode(errors="surrogateescape"),
    "\N{ARABIC LETTER ALEF}\N{ARABIC LETTER BEH}",
]


def test_names_do_nothing_but_name(tmp_path: Path, browser: Browser) -> None:
    """Names of runs, and of what lies in a registry, that would do something in a careless page."""
    saved = SavedCheckpoint().tensor("w", [1.0])
    write_trainer_run(tmp_path / "pattern", {100: saved})
    sources = list[Path]()
    for name in [*HOSTILE, "n" * 255]:
        sources.append(tmp_path / "runs" / name)
        shutil.copytree(tmp_path / "pattern", sources[-1])
    registry = tmp_path / "registry"
    release = run(Choice(str(tmp_path / "pattern")), registry, "plain").release
    for name in HOSTILE:
        shutil.copytree(registry / "plain", registry / name, symlinks=True)
        os.symlink(f"releases/{release}", registry / "plain" / name)
        (registry / "plain" / "releases" / f"{name}x").mkdir()
    arguments = [option for source in sources for option in ("--source", source)]
    with serving(tmp_path, *arguments, "--registry", registry) as served, eyes(browser, served.url) as seen:
        page = seen.page()
        page.goto(served.url)
        looked(page)
        expect(page.locator("[data-row]")).to_have_count(len(sources) + len(HOSTILE) + 1, timeout=PATIENCE)
        links = page.locator("a.go").evaluate_all("links => links.map(link => link.href)")
        for link in links:
            page.goto(link)
            expect(page.locator("h1")).not_to_contain_text("No such")
            assert (
                page.evaluate(
                    "document.querySelectorAll('main script, main img, main [onload], main [onerror]').length"
                )
                == 0
            )
        page.goto(f"{served.url}/p/plain")
        expect(page.locator(".aliases")).to_contain_text("<img src=x onerror=alert(2)>")
        expect(page.locator(".aliases")).to_contain_text("\\u202egpj.exe")
        seen.assert_calm()


def test_a_thousand_versions_are_paged(tmp_path: Path, browser: Browser) -> None:
    registry, runs = crowd(tmp_path, 1, 1000)
    with serving(tmp_path, "--source", runs[0], "--registry", registry) as served, eyes(browser, served.url) as seen:
        page = seen.page()
        page.goto(served.url)
        looked(page)
        page.goto(f"{served.url}/p/model-000/timeline")
        expect(page.locator(".tick.stage-published")).to_have_count(1000, timeout=PATIENCE)
        expect(page.locator(".pager")).to_contain_text("1 of 10")
        page.get_by_role("link", name="older").click()
        expect(page.locator(".pager")).to_contain_text("2 of 10")
        expect(page.locator("a.go", has_text="step\N{NO-BREAK SPACE}9000").first).to_be_visible()
        seen.assert_calm()


def test_a_dead_server_breaks_no_page(tmp_path: Path, browser: Browser) -> None:
    source = tmp_path / "run"
    write_trainer_run(source, {100: SavedCheckpoint().tensor("w", [1.0])})
    run(Choice(str(source)), tmp_path / "registry", "tiny")
    config = f"name: tiny\nregistry: registry\nsources: [{{path: run}}]\nserver: {{url: 'http://127.0.0.1:{free_port()}/api'}}\n"
    (tmp_path / "ckpt.yaml").write_text(config)
    with serving(tmp_path, "--allow-actions") as served, eyes(browser, served.url) as seen:
        page = seen.page()
        page.goto(served.url)
        looked(page)
        expect(page.locator(".notice")).to_contain_text("The Prefect server does not answer", timeout=PATIENCE)
        expect(page.locator(".card.pipeline")).to_contain_text("the newest version is published")
        page.goto(f"{served.url}/p/tiny/timeline")
        expect(page.locator(".tick.stage-published")).to_have_count(1)
        page.goto(f"{served.url}/p/tiny")
        page.get_by_role("button", name="Roll back…").click()
        page.get_by_role("combobox", name="Alias").click()
        page.get_by_role("option").first.click()
        page.get_by_role("button", name="Go on…").click()
        page.get_by_role("button", name="Do it").click()
        expect(page.get_by_role("alert")).to_contain_text("cannot be reached", timeout=PATIENCE)
        seen.assert_calm()
