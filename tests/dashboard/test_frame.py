"""What an open page sends again: what changed, what time alone changed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from ckptcore.dashboard.context import Context
from ckptcore.dashboard.frame import Live
from ckptcore.dashboard.markup import Markup, tag
from ckptcore.dashboard.refreshing import Refresher
from ckptcore.dashboard.words import ago


class Element:
    """Stands for a piece of a page in a browser, and counts what is sent there."""

    def __init__(self, content: str) -> None:
        self.content = content
        self.sent = 0

    def classes(self, _names: str) -> Element:
        return self

    def set_content(self, content: str) -> None:
        self.content = content
        self.sent += 1


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("ckptcore.dashboard.frame.time.monotonic", clock)
    monkeypatch.setattr("ckptcore.dashboard.frame.ui.html", Element)
    return clock


def shown(live: Live, part: Callable[[], Markup]) -> Element:
    return cast("Element", live.add(part))


def test_a_stall_is_told_though_nothing_changes(clock: Clock) -> None:
    live, began = Live(Context(Refresher([])), ""), clock.now
    element = shown(live, lambda: tag("p", "stalled" if clock.now - began > 10 else "fine"))
    for _ in range(20):
        clock.now += 1
        live.follow()
    assert (element.content, element.sent) == ("<p>stalled</p>", 1)


def test_an_age_that_the_browser_counts_is_not_sent_again(clock: Clock) -> None:
    live, began = Live(Context(Refresher([])), ""), clock.now
    element = shown(live, lambda: tag("p", ago(began, clock.now)))
    clock.now += 3600
    live.follow()
    assert element.sent == 0


def test_what_changed_is_sent_at_once(clock: Clock) -> None:
    refresher = Refresher([])
    live = Live(Context(refresher), "")
    element = shown(live, lambda: tag("p", refresher.number))
    refresher.number += 1
    live.follow()
    assert (element.content, element.sent) == ("<p>1</p>", 1)
