"""A checkpoint's metadata as Paddle recorded it, before anything is made of it.

These are the fields of ``paddle.distributed``'s ``Metadata``, ``LocalTensorMetadata`` and ``LocalTensorIndex``
in 2.6.2 to 3.3.1; a field that a release does not write is None. Joining them is ``index``'s work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
class PieceKey:
    """One ``LocalTensorIndex``: the name under which the storage table looks a piece up."""

    tensor_key: str
    offset: Shape
    shape: Shape | None = None
    flat: tuple[int, int] | None = None
    replica: int | None = None


@dataclass(frozen=True, slots=True)
class Metadata:
    """One ``{unique_id}.metadata``. ``storage`` keeps its order; ``nested_keys`` is Paddle's ``flat_mapping``."""

    tensors: Mapping[str, tuple[PieceRecord, ...]]
    storage: tuple[tuple[PieceKey, str], ...]
    nested_keys: Mapping[str, tuple[str, ...]]
