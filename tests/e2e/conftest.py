"""What these tests measure is told after them, whether they pass or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_LINES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LINES] = []


@pytest.fixture
def tell(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Takes a line for the summary."""
    return pytestconfig.stash[_LINES].append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash[_LINES]:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
