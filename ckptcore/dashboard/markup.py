"""HTML that cannot be broken by what is in it: whatever is put in is escaped, unless it was made here.

Names come from disks and may hold anything: control characters, marks that turn the direction of writing, bytes that
are no text. They are shown as escapes, never as what they do.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from markupsafe import Markup, escape

__all__ = ["Markup", "address", "joined", "name_of", "shown", "tag"]

_VOID = frozenset({"br", "hr", "img", "input", "line", "rect", "circle", "path"})

Child = object
"""Text, a number, or markup; None and "" are left out."""


def tag(name: str, *children: Child, **attributes: object) -> Markup:
    """An element. ``class_`` loses its last dash, others become hyphens; what is None or False is left out.

    Names of elements and attributes are this package's own; nothing that was read anywhere may be one.
    """
    parts = [Markup("<"), Markup(name)]  # noqa: S704 - a name of our own
    for attribute, value in attributes.items():
        if value is None or value is False:
            continue
        key = attribute.rstrip("_").replace("_", "-")
        parts.append(Markup(" {}").format(Markup(key)))  # noqa: S704 - a name of our own
        if value is not True:
            parts.append(Markup('="{}"').format(value))
    parts.append(Markup(">"))
    if name in _VOID and not children:
        return _sendable(Markup("").join(parts))
    parts += [escape(child) for child in children if child is not None]
    parts.append(Markup("</{}>").format(Markup(name)))  # noqa: S704 - a name of our own
    return _sendable(Markup("").join(parts))


def _sendable(markup: Markup) -> Markup:
    """The markup with bytes that are no text as escapes: a single one would keep the whole page from a browser.

    Whoever forgets :func:`shown` spoils a name by this, and no page.
    """
    if markup.isascii():
        return markup
    return Markup(markup.encode(errors="backslashreplace").decode())  # noqa: S704 - it was markup before


def joined(parts: Iterable[Child], separator: Child = "") -> Markup:
    return escape(separator).join(escape(part) for part in parts if part is not None)


def shown(name: str) -> str:
    """The name with everything that cannot be printed as an escape, on one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def name_of(name: str, **attributes: object) -> Markup:
    """A name from a disk: apart from the direction of the text around it."""
    return tag("bdi", shown(name), **attributes)


def address(*parts: object) -> str:
    """The path of a page, each part quoted."""
    return "/" + "/".join(quote(str(part), safe="", errors="backslashreplace") for part in parts)
