"""JSON as it is read from a disk: strict UTF-8, and one refusal for whatever is wrong with it."""

from __future__ import annotations

import json
import re
from typing import Any

# The escape of half of a surrogate pair begins like this; a document without one need not be looked through.
_MAY_BE_HALF = re.compile(rb"\\u[dD]")


class NotJson(ValueError):
    """The bytes are no JSON document that can be used; the message says why."""


def parse_json(data: bytes) -> Any:
    """The document in ``data``. Raises :class:`NotJson`, for nesting without end and for what is no text too.

    Halves of surrogate pairs are no text, but for those that stand for the bytes of a path that is no UTF-8.
    """
    try:
        document = json.loads(str(data, "utf-8"))
        if _MAY_BE_HALF.search(data):
            json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except RecursionError as error:
        raise NotJson("it is nested too deeply") from error
    except ValueError as error:
        raise NotJson(str(error)) from error
    return document
