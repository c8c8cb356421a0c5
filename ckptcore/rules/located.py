"""A verified checkpoint as a merge needs it: each tensor, and where the bytes of each of its pieces lie.

Made by ``verify`` after every check; here is only the shape of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckptcore.rules.fingerprint import Fingerprint
from ckptcore.rules.stored import StoredArray
from ckptcore.rules.tensors import Piece, TensorSpec


@dataclass(frozen=True, slots=True)
class LocatedPiece:
    """A piece of a tensor and the array of its rank file that holds it."""

    piece: Piece
    array: StoredArray


@dataclass(frozen=True, slots=True)
class LocatedTensor:
    """A tensor and the pieces that tile it exactly, replicas left out."""

    spec: TensorSpec
    pieces: tuple[LocatedPiece, ...]


@dataclass(frozen=True, slots=True)
class ReplicaPair:
    """A replica and the piece of the same tensor, box and range that a merge reads instead of it."""

    key: str
    primary: LocatedPiece
    replica: LocatedPiece


@dataclass(frozen=True, slots=True)
class LocatedCheckpoint:
    """One version whose every tensor is whole: ``tensors`` sorted by key, their files in ``directory``.

    ``step`` is None where the source has no steps, ``component`` where the files lie in no component
    directory. ``nested_keys`` is Paddle's ``flat_mapping``: the nested keys of each flat one. ``paddle_format`` is the
    first Paddle release that writes such metadata.
    """

    directory: str
    step: int | None
    unique_id: int
    component: str | None
    fingerprint: Fingerprint
    tensors: tuple[LocatedTensor, ...]
    nested_keys: Mapping[str, tuple[str, ...]]
    paddle_format: str = ""
