"""The inert values of a read pickle: names, never the things that they name.

Nothing here can be called. What a value means is for the format that reads it to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ckptcore.rules.tensors import Shape


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class or function, as the file spells it."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Instance:
    """An object made without a call (NEWOBJ). ``state`` is what BUILD gave it, None before that."""

    cls: Global
    args: tuple[Any, ...]
    state: Any = None


@dataclass(slots=True, eq=False)
class Call:
    """The result that a call (REDUCE) would have had. ``state`` is what BUILD gave it, None before that."""

    function: Global
    args: tuple[Any, ...]
    state: Any = None


class Pairs(list[Any]):
    """A dict as the file lists it: key, value, key, value. Keys are unhashed, so that any value may be one."""

    __slots__ = ()

    def entries(self) -> list[tuple[Any, Any]]:
        """The pairs in file order, repeats included."""
        return list(zip(self[::2], self[1::2], strict=True))


class PlacedText(str):
    """A text of which the place in the file is known: protocol 2 spells payloads as texts."""

    __slots__ = ("_plain", "offset", "stored_length")

    offset: int
    stored_length: int
    _plain: str | None

    @classmethod
    def at(cls, offset: int, stored: bytes) -> PlacedText:
        """The text that ``stored`` spells in UTF-8; raises UnicodeDecodeError where it spells none."""
        text = cls(stored, "utf-8")
        text.offset, text.stored_length, text._plain = offset, len(stored), None
        return text

    def plain(self) -> str:
        """The text without its place: one object, however often the file refers to it."""
        if self._plain is None:
            self._plain = str(self)
        return self._plain


@dataclass(frozen=True, slots=True)
class LongText:
    """A text too long to be a name, left in the file."""

    offset: int
    stored_length: int


def as_text(value: Any) -> str | None:
    """The value as a plain str, None where it is no text that was read."""
    if type(value) is PlacedText:
        return value.plain()
    return value if type(value) is str else None


MAX_AXES: Final = 64
"""numpy's limit; Paddle's is 9."""

MAX_EXTENT: Final = 2**63


def as_extents(value: Any) -> Shape | None:
    """The tuple (or list, as some releases write) of whole numbers as a tuple: a shape or an offset. Else None."""
    if type(value) is list and len(value) <= MAX_AXES:
        value = tuple(value)
    if type(value) is not tuple or len(value) > MAX_AXES:
        return None
    for extent in value:
        if type(extent) is not int or not 0 <= extent < MAX_EXTENT:
            return None
    return value


def describe(value: Any) -> str:
    """The value in a few words, for a message; never its parts, which may be many or contain themselves."""
    match value:
        case None | bool() | int() | float():
            return repr(value)
        case str():
            return repr(str(value)) if len(value) <= 80 else f"a str of {len(value):,} characters"
        case Pairs():
            return f"a dict of {len(value) // 2:,} entries"
        case tuple() | list() if value and len(value) <= 8 and all(type(part) is int for part in value):
            return repr(tuple(value)) if isinstance(value, tuple) else repr(list(value))
        case tuple() | list():
            return f"a {type(value).__name__} of {len(value):,} values"
        case Global():
            return f"the global {value}"
        case Instance():
            return f"a {value.cls}"
        case Call():
            return f"a {value.function}(…)"
        case LongText():
            return f"a text of {value.stored_length:,} bytes"
        case _:
            return f"a {type(value).__name__}"
