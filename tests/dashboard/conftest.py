"""One browser for all tests that ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.dashboard.serving import CHROMIUM, started


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not os.path.exists(CHROMIUM):
        pytest.skip(f"{CHROMIUM} is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = started(playwright)
        yield browser
        browser.close()
