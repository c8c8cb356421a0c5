"""The text of a layout statement as tokens. Owns the alphabet of the language, and nothing of its grammar.

The alphabet is Paddle 3.3.1's: a name starts with a letter or underscore and goes on with letters, digits and
``. _ $ * ^``. A tensor whose name has other characters cannot be named; it passes through under its own name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

TokenKind = Literal["arrow", "equal", "colon", "open", "close", "comma", "number", "string", "name"]

_PATTERN = re.compile(
    r"(?P<arrow>->)|(?P<equal>=)|(?P<colon>:)|(?P<open>\[)|(?P<close>\])|(?P<comma>,)"
    r"|(?P<number>[0-9]+)|(?P<string>\"[^\"\r\n]*\"|'[^'\r\n]*')|(?P<name>[A-Za-z_][A-Za-z0-9._$*^]*)|(?P<space>[ \t]+)"
)

_DIGITS = 6
"""No axis, head count or array index needs more, and ``x[0:999999999999]`` must not fill the memory."""


class StatementError(Exception):
    """Why one statement has no meaning; the parser and compiler turn it into an issue with the statement's number."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    text: str
    position: int


def tokens_of(text: str) -> tuple[Token, ...]:
    """The tokens of one line. Raises StatementError at a character that no token starts with."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None:
            raise StatementError(f"unexpected character {text[position]!r} at position {position}")
        if match.lastgroup == "number" and len(match.group()) > _DIGITS:
            raise StatementError(f"the number at position {position} has more than {_DIGITS} digits")
        if match.lastgroup != "space":
            tokens.append(Token(match.lastgroup, match.group(), position))  # type: ignore[arg-type]  # a group's name
        position = match.end()
    return tuple(tokens)
