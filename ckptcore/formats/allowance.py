"""How much a file may stand for, by its size.

A pickle refers to a value that it spelled once in as few as two bytes. Texts and values that are referred to over and
over would make a small file cost any amount of memory and time; Paddle's files come nowhere near the bound.
"""

from __future__ import annotations

from typing import Final

from ckptcore.formats.damage import damaged

PER_BYTE: Final = 16
"""Characters that a byte may stand for. Paddle's files have two at most: a piece of 60 bytes names its tensor."""

VALUE_COST: Final = 8
"""What a value that is looked at counts as, in characters. A value that is not shared takes a byte at least."""

LEAST: Final = 1 << 20
"""What even the smallest file may stand for."""


class Allowance:
    """What is left of it for one file."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self._name = name
        self._left = max(LEAST, PER_BYTE * size_bytes)

    def charge(self, *, characters: int = 0, values: int = 0) -> None:
        """Count what is about to be made of the file, repeats included; raises DamagedFile where that is too much."""
        self._left -= characters + VALUE_COST * values
        if self._left < 0:
            what = "it refers to the same texts and values so often that it stands for far more than it holds"
            raise damaged(self._name, what, expected=f"at most {PER_BYTE} characters a byte", code="expansion")
