"""Addresses as they may be shown."""

from __future__ import annotations

import re


def public_address(url: str) -> str:
    """The address without whatever secret stands in it: name and password, query and fragment.

    No address is refused: what an operator mistyped is shown too, and may hold a secret as well.
    """
    shown = re.split("[?#]", url, maxsplit=1)[0]
    scheme, colon, rest = shown.partition("://")
    if not colon:
        scheme, rest = "", shown
    host, slash, path = rest.partition("/")
    return f"{scheme}{colon}{host.rpartition('@')[2]}{slash}{path}"
