"""A dialog in which an operator says what is to be done, reads it in one sentence, confirms it, and sees how it went.

What can be asked for is ``acting``'s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from ckptcore.dashboard.markup import Markup, shown, tag


@dataclass(frozen=True, slots=True)
class Order:
    """A run that is to be started, and the sentence that says what it will do."""

    deployment: str
    parameters: Mapping[str, Any]
    sentence: str


class Refused(Exception):
    """The form cannot be sent like this; the message says why."""


class Form:
    """A dialog: fields, then what is to be confirmed, then how it went."""

    def __init__(self, title: str) -> None:
        self._dialog = ui.dialog().props("persistent").classes("act")
        with self._dialog, ui.card().classes("act-card"):
            ui.html(tag("h2", title))
            self._fields = ui.element("div").classes("act-fields")
            self._said = ui.html("").classes("act-said")
            self._buttons = ui.element("div").classes("act-buttons")
        self.is_closed = False
        self._dialog.on("hide", self._gone)

    def __enter__(self) -> Form:
        self._fields.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._fields.__exit__(*_)
        self._dialog.open()

    def offer(self, order: Callable[[], Order], confirm: Callable[[Form, Order], None], text: str = "Go on…") -> None:
        """A button that takes what the fields hold."""

        def go() -> None:
            try:
                made = order()
            except Refused as refusal:
                self.show(tag("p", shown(str(refusal)), class_="failure", role="alert"))
                return
            self._fields.set_visibility(False)
            confirm(self, made)

        self._set_buttons((text, go, True), ("Cancel", self.close, False))

    def confirm(self, act: Callable[[], Awaitable[None]]) -> None:
        self._set_buttons(("Do it", act, True), ("Cancel", self.close, False))

    def close_only(self) -> None:
        self._set_buttons(("Close", self.close, False))

    def wait(self, text: str) -> None:
        self.show(tag("p", shown(text), class_="muted", role="status"))
        self._set_buttons(("Close", self.close, False))

    def show(self, content: Markup) -> None:
        self._said.set_content(content)

    def close(self) -> None:
        self._dialog.close()

    def _gone(self) -> None:
        self.is_closed = True
        self._dialog.clear()
        self._dialog.delete()

    def _set_buttons(self, *buttons: tuple[str, Callable[[], object], bool]) -> None:
        self._buttons.clear()
        with self._buttons:
            for text, act, is_first in buttons:
                button = ui.button(text, on_click=act, color="primary" if is_first else None).props("no-caps")
                button.props("unelevated" if is_first else "flat")
