"""Addresses as they may be shown."""

from __future__ import annotations

from urllib.parse import urlsplit


def public_address(url: str) -> str:
    """The address without whatever secret stands in it: name and password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
