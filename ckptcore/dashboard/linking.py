"""The part of a page's address behind the question mark: what is looked at, so that an address says all of it."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from nicegui import ui

MOST_CHARACTERS = 2_000


class Query:
    """The parameters of one page in one browser. What a browser gives is cut, never trusted."""

    def __init__(self, path: str, given: Mapping[str, str]) -> None:
        self._path = path
        self._values = {name: value[:MOST_CHARACTERS] for name, value in given.items() if value}

    def get(self, name: str) -> str:
        return self._values.get(name, "")

    def number(self, name: str) -> int:
        """A number from 0, or 0 where it is none."""
        text = self.get(name)
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0

    def address(self, **changed: object) -> str:
        """This page with some parameters changed; "" and 0 leave one out."""
        values = {**self._values, **{name: str(value) if value else "" for name, value in changed.items()}}
        told = "&".join(f"{quote(name)}={_quoted(value)}" for name, value in values.items() if value)
        return f"{self._path}?{told}" if told else self._path

    def change(self, **changed: object) -> None:
        """Change parameters, in the browser's address too, without a reload."""
        address = self.address(**changed)
        for name, value in changed.items():
            self._values[name] = str(value) if value else ""
        ui.navigate.history.replace(address)


def _quoted(value: str) -> str:
    return quote(value, safe="", errors="backslashreplace")
