"""The pages of one version and of one release in a real browser: what they say is what verbs say of the same files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ckptcore import Choice, run
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.dashboard.serving import Served, eyes, serving

pytestmark = pytest.mark.browser
PATIENCE = 60_000
HOSTILE = "<img src=x onerror=alert(1)>.\N{RIGHT-TO-LEFT OVERRIDE}w"


def card(page: Page, title: str) -> Locator:
    """The panel under a heading."""
    return page.locator("section.card", has=page.get_by_role("heading", name=title, exact=False)).first


def release_link(page: Page, url: str, key: str) -> str:
    """The address of the newest release, as the pipeline's page links it."""
    page.goto(f"{url}/p/{key}")
    link = page.locator(f"a[href^='/r/{key}/']").first
    expect(link).to_be_visible(timeout=PATIENCE)
    return f"{url}{link.get_attribute('href')}"


def assert_fits(page: Page) -> None:
    """Nothing is wider than the window."""
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("width", [1440, 1024, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_damaged_version_says_what_is_wrong(llama: Served, browser: Browser, width: int, scheme: str) -> None:
    with eyes(browser, llama.url, width=width, scheme=scheme) as seen:
        page = seen.page()
        page.goto(f"{llama.url}/v/llama/200/0")
        expect(card(page, "Findings")).to_contain_text("1_0.distcp", timeout=PATIENCE)
        expect(card(page, "Rank files")).to_contain_text("1 present, 1 damaged")
        expect(card(page, "Tensors")).to_contain_text("1\N{EN DASH}1 of 1")
        assert_fits(page)
        seen.assert_calm()


def test_a_tensor_shows_which_rank_holds_which_piece(llama: Served, browser: Browser) -> None:
    with eyes(browser, llama.url) as seen:
        page = seen.page()
        page.goto(f"{llama.url}/v/llama/10/0")
        tensors = card(page, "Tensors")
        expect(tensors).to_contain_text("of 21", timeout=PATIENCE)
        tensors.get_by_placeholder("Find a tensor").fill("embed_tokens")
        tensors.get_by_text("model.embed_tokens.weight", exact=True).click()
        sharding = card(page, "Sharding")
        expect(sharding).to_contain_text("128 \N{MULTIPLICATION SIGN} 64", timeout=PATIENCE)
        expect(sharding.locator("svg, .map").first).to_be_visible()
        expect(page).to_have_url(re.compile("tensor=model.embed_tokens.weight"))
        page.reload()
        expect(card(page, "Sharding")).to_contain_text("model.embed_tokens.weight", timeout=PATIENCE)
        seen.assert_calm()


def test_the_plan_and_the_release_of_a_version(llama: Served, browser: Browser) -> None:
    with eyes(browser, llama.url) as seen:
        page = seen.page()
        page.goto(f"{llama.url}/v/llama/10/0")
        page.get_by_role("button", name="Show the plan").click(timeout=PATIENCE)
        expect(card(page, "Plan")).to_contain_text("model.safetensors", timeout=PATIENCE)
        expect(card(page, "Release").locator("a[href^='/r/llama/step-10_id-0_']").first).to_be_visible(timeout=PATIENCE)
        seen.assert_calm()


@pytest.mark.parametrize("width", [1440, 1024, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_release_says_what_it_is_and_what_changed(llama: Served, browser: Browser, width: int, scheme: str) -> None:
    with eyes(browser, llama.url, width=width, scheme=scheme) as seen:
        page = seen.page()
        page.goto(release_link(page, llama.url, "llama"))
        expect(card(page, "Made from")).to_contain_text("fingerprint", timeout=PATIENCE)
        expect(card(page, "Files")).to_contain_text("model.safetensors")
        expect(page.locator("header.page-head")).to_contain_text("production")
        expect(card(page, "Changes")).to_contain_text("0 removed", timeout=PATIENCE)
        expect(card(page, "History")).to_contain_text("promote", timeout=PATIENCE)
        assert_fits(page)
        seen.assert_calm()


def test_changes_and_values_are_read_when_asked(tmp_path: Path, browser: Browser) -> None:
    source, registry = tmp_path / "run", tmp_path / "registry"
    one = np.ones((4, 6), np.float32)
    twice = one * 2
    twice[0, 0] = np.nan
    for step, values in ((1, one), (2, twice)):
        saved = SavedCheckpoint().tensor("layers.0.w", values, grid=(2, 1)).tensor(HOSTILE, one, grid=(2, 1))
        write_trainer_run(source, {step: saved})
        run(Choice(str(source), step=step), registry, "tiny")
    with serving(tmp_path, "--source", source, "--registry", registry) as served, eyes(browser, served.url) as seen:
        page = seen.page()
        page.goto(release_link(page, served.url, "tiny"))
        changes = card(page, "Changes")
        expect(changes).to_contain_text("1 not of the same digest", timeout=PATIENCE)
        expect(changes).to_contain_text("1 unchanged")
        page.get_by_role("button", name="Measure the changes").click()
        expect(changes).to_contain_text("Relative change by layer", timeout=PATIENCE)
        page.get_by_role("button", name=re.compile("^Read ")).first.click()
        read = card(page, "Values")
        expect(read).to_contain_text("1 of 2 tensors hold NaN or infinities", timeout=PATIENCE)
        expect(read).to_contain_text("Norm from release to release")
        expect(card(page, "Tensors")).to_contain_text("<img src=x onerror=alert(1)>")
        page.goto(f"{served.url}/v/tiny/2/0")
        expect(card(page, "Tensors")).to_contain_text("<img src=x onerror=alert(1)>", timeout=PATIENCE)
        seen.assert_calm()
