"""The frame of every page: the head, the bar with its ways, and parts that follow the picture without a reload.

A part is a function that gives markup. All parts of a page are made anew when the picture changed, and now and then
since time alone changes what is said; only those that came out otherwise are sent. Ages are counted by the browser.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from nicegui import ui

from ckptcore.dashboard import theme
from ckptcore.dashboard.auth import PERSON
from ckptcore.dashboard.context import Context
from ckptcore.dashboard.markup import Markup, address, joined, shown, tag
from ckptcore.dashboard.words import ago

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 15.0
"""So old what a page says may be where nothing changed but time and the free space: a stall, a lag, the day a disk is
full, and when anybody last looked."""

_COUNTED = re.compile(r">[^<>]*</time>")

Part = Callable[[], Markup]
Crumb = tuple[str, str | None]
"""What a place is called, and where it lies; None where we are."""


@dataclass(slots=True)
class Live:
    """The parts of one page in one browser."""

    context: Context
    person: str
    _parts: list[tuple[ui.html, Part]] = field(default_factory=list)
    _number: int = -1
    _made_at: float = 0.0

    def add(self, part: Part, classes: str = "") -> ui.html:
        """Show the part from now on. What it gives is cleaned once more by the browser."""
        element = ui.html(part()).classes(classes)
        self._parts.append((element, part))
        self._number, self._made_at = self.context.refresher.number, time.monotonic()
        return element

    def follow(self) -> None:
        """Send what changed since the last call, or with time alone since a while."""
        number = self.context.refresher.number
        if number == self._number and time.monotonic() - self._made_at < AGAIN_SECONDS:
            return
        self._number = number
        self.refresh()

    def refresh(self) -> None:
        """Make every part anew, whatever the picture says."""
        self._made_at = time.monotonic()
        for element, part in self._parts:
            content = part()
            if _lasting(content) != _lasting(element.content):
                element.set_content(content)


def _lasting(content: str) -> str:
    """What is said without the words of ages, which the browser counts: they are no reason to send a table again."""
    return _COUNTED.sub("></time>", content)


@contextmanager
def frame(context: Context, title: str, crumbs: Sequence[Crumb]) -> Iterator[Live]:
    """A page with this title; what is added inside lies below the bar."""
    client = ui.context.client
    client.title = f"{shown(title)} · ckpt" if title else "ckpt"
    ui.add_head_html(theme.head())
    live = Live(context, str(client.request.scope.get(PERSON, "")))
    live.add(lambda: _bar(context, crumbs, live.person), "bar")
    with ui.element("div").classes("page"):
        live.add(lambda: _troubles(context), "troubles")
        yield live
    ui.timer(LOOK_SECONDS, live.follow)


def _bar(context: Context, crumbs: Sequence[Crumb], person: str) -> Markup:
    way = [tag("a", "ckpt", href="/", class_="home", title="Overview (g o)")]
    for name, target in crumbs:
        way.append(tag("span", "/", class_="slash"))
        place = tag("bdi", shown(name))
        way.append(tag("a", place, href=target) if target else tag("span", place, class_="here"))
    servers = context.refresher.servers.values()
    away = [server for server in servers if not server.is_reachable]
    if not servers:
        state = tag("span", "no Prefect server", class_="muted", title="None is configured: runs are not shown.")
    elif away:
        state = tag("span", "Prefect does not answer", class_="chip level-wrong", title=shown(away[0].why))
    else:
        state = tag("span", "Prefect", class_="chip level-fine dot", title="The server answers.")
    looked = ago(context.refresher.snapshot.at or None, time.time())
    seen = tag("span", "seen ", looked, class_="muted seen", title="When the disks were last looked at.")
    who = tag("span", shown(person), class_="muted who") if context.asks_who else None
    out = (
        tag("form", tag("button", "Sign out", class_="quiet"), method="post", action="/logout")
        if context.asks_who
        else None
    )
    theme_switch = tag("button", "◐", class_="quiet", data_theme_switch=True, title="Light or dark (d)")
    keys = tag("button", "?", class_="quiet", data_help=True, title="Keys (?)")
    return tag(
        "nav", tag("div", *way, class_="way"), tag("div", state, seen, who, theme_switch, keys, out, class_="side")
    )


def _troubles(context: Context) -> Markup:
    """What keeps this page from telling the truth, in words; nothing where all is well."""
    lines = [context.refresher.trouble] if context.refresher.trouble else []
    lines += [
        f"The Prefect server does not answer: {server.why}. Runs, their progress and actions are missing here; sources "
        "and releases are shown as they are."
        for server in context.refresher.servers.values()
        if not server.is_reachable and server.asked_at
    ]
    return joined(tag("p", shown(line), class_="notice", role="status") for line in lines)


def not_here(context: Context, what: str, name: str) -> None:
    """The page for what is not, or not any more."""
    ui.context.client.status_code = 404
    with frame(context, "not here", [("not here", None)]) as live:
        live.add(
            lambda: tag(
                "section",
                tag("h1", f"No such {what}"),
                tag("p", tag("bdi", shown(name)), " is not watched here, or is gone by now."),
                tag("p", tag("a", "To the overview", href="/")),
                class_="card lone",
            )
        )


def pipeline_address(key: str, *below: object) -> str:
    return address("p", key, *below)


def version_address(key: str, step: int | None, unique_id: int) -> str:
    return address("v", key, "none" if step is None else step, unique_id)


def release_address(key: str, release: str) -> str:
    return address("r", key, release)
