"""The page's own files: style sheets and a script, served from the package under names that change with them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

FILES = {"dashboard.css": "text/css", "panels.css": "text/css", "dashboard.js": "text/javascript"}
_PLACE = Path(__file__).parent / "assets"


def asset(name: str) -> tuple[bytes, str] | None:
    """The file and its media type; None for every other name."""
    return (_bytes_of(name), FILES[name]) if name in FILES else None


@cache
def _bytes_of(name: str) -> bytes:
    return (_PLACE / name).read_bytes()


@cache
def asset_address(name: str) -> str:
    """Its path; the digest makes a browser's cache forget an older one."""
    found = asset(name)
    assert found is not None
    return f"/assets/{name}?{hashlib.sha256(found[0]).hexdigest()[:12]}"


def stylesheet_link() -> str:
    return f'<link rel="stylesheet" href="{asset_address("dashboard.css")}">'


def head() -> str:
    """What every page has in its head."""
    panels = f'<link rel="stylesheet" href="{asset_address("panels.css")}">'
    return f'{stylesheet_link()}{panels}<script src="{asset_address("dashboard.js")}"></script>'
