"""What a layout statement says, once its text is understood: operands, one operation, where it was written.

The words are those of Paddle 3.3.1's AOA statements. ``parser`` makes these values from text, ``expansion``
replaces id macros and stars by names, ``compiler`` carries the operation out on images of source tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NOTHING = "_"
"""The operand that stands for no tensor: ``x -> _`` drops x, ``_ -> x`` leaves x to the target model."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor name, possibly with macros, and whether it is read (or, inverted, written) as its transpose."""

    name: str
    is_transposed: bool = False

    def __str__(self) -> str:
        return f"{self.name}^T" if self.is_transposed else self.name


@dataclass(frozen=True, slots=True)
class Rename:
    """One tensor under another name."""


@dataclass(frozen=True, slots=True)
class AlongAxis:
    """Split one tensor into equal parts, or join several, along one axis; with one on each side a rename."""

    axis: int


@dataclass(frozen=True, slots=True)
class Permute:
    """New axis ``i`` is old axis ``order[i]``; an empty order reverses all axes."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """Round to ``dtype``. ``undone_by`` is the dtype that the inverse casts to, empty where none was written."""

    dtype: str
    undone_by: str = ""


@dataclass(frozen=True, slots=True)
class FusedQkv:
    """``fused_qkv``: per key/value group its query heads, its key head, its value head. Independent of sharding."""

    heads: int
    groups: int
    axis: int


@dataclass(frozen=True, slots=True)
class FusedQkvByRank:
    """``fused_qkv_old``: per tensor-parallel rank its query heads, then its key heads, then its value heads."""

    heads: int
    groups: int
    axis: int


@dataclass(frozen=True, slots=True)
class FusedFfn:
    """``fused_ffn``: per tensor-parallel rank its part of gate, then its part of up."""

    axis: int


Operation = Rename | AlongAxis | Permute | Cast | FusedQkv | FusedQkvByRank | FusedFfn


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. ``number`` counts from 1 in the program as written; ``text`` is as written."""

    number: int
    text: str
    left: tuple[Operand, ...]
    right: tuple[Operand, ...]
    operation: Operation
    is_inverted: bool = False

    @property
    def where(self) -> str:
        return f"statement {self.number} `{self.text}`"

    def with_names(self, left: tuple[Operand, ...], right: tuple[Operand, ...]) -> Statement:
        return replace(self, left=left, right=right)


@dataclass(frozen=True, slots=True)
class Program:
    """Statements in the order in which they act."""

    statements: tuple[Statement, ...]
