"""A checkpoint's metadata as Paddle recorded it, before anything is made of it.

These are the fields of ``paddle.distributed``'s ``Metadata``, ``LocalTensorMetadata`` and ``LocalTensorIndex``
in 2.6.2 to 3.3.1; a field that a release does not write is None. Joining them is ``index``'s work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ckptcore.rules.tensors import Shape


@dataclass(frozen=True, slots=True)
class PieceRecord:
    """One ``LocalTensorMetadata``: a piece that some rank says it has saved."""

    offset: Shape
    shape: Shape
    dtype: str | None = None
    global_shape: Shape | None = None
    flat: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PlaceKey:
    """What a ``LocalTensorIndex`` says beside the tensor: which piece of it. Tensors that are cut alike share it."""

    offset: Shape
    shape: Shape | None = None
    flat: tuple[int, int] | None = None
    replica: int | None = None


class PieceKey(NamedTuple):
    """One ``LocalTensorIndex``: the name under which the storage table looks a piece up. A tuple, because there may be
    millions of them to read."""

    tensor_key: str
    place: PlaceKey


@dataclass(frozen=True, slots=True)
class StoredPieces:
    """What the storage table says of one tensor, in its order: ``files[i]`` holds the piece at ``places[i]``."""

    places: tuple[PlaceKey, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """One ``{unique_id}.metadata``. ``storage`` has its entries by tensor; ``nested_keys`` is Paddle's
    ``flat_mapping``."""

    tensors: Mapping[str, tuple[PieceRecord, ...]]
    storage: Mapping[str, StoredPieces]
    nested_keys: Mapping[str, tuple[str, ...]]
