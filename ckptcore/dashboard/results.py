"""What readings become: the lines of ``reading`` as values and tables that pages draw from, in little memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan, prod
from sys import intern
from typing import Any

from ckptcore.rules.issues import Issue
from ckptcore.rules.pictures import Cell, CellState
from ckptcore.rules.release import Act
from ckptcore.rules.tables import Table, reals, texts, wholes
from ckptcore.rules.tensors import DTYPES, Box, Piece, Shape

Head = Mapping[str, Any]


class _Shapes:
    """One tuple for each shape: a model has few."""

    def __init__(self) -> None:
        self._known: dict[Shape, Shape] = {}

    def __call__(self, shape: Sequence[int]) -> Shape:
        found = tuple(shape)
        return self._known.setdefault(found, found)


def _size(dtype: str, shape: Sequence[int]) -> int:
    return prod(shape) * DTYPES[dtype].itemsize if dtype in DTYPES else 0


def issues_of(found: Sequence[Sequence[str]]) -> tuple[Issue, ...]:
    return tuple(Issue(*each) for each in found)


class VersionRead:
    """A verified version: ``head`` as ``reading`` gives it, and its tensors."""

    def __init__(self) -> None:
        self.head: Head = {}
        self._shapes = _Shapes()
        self.tensors = Table(
            texts("key", "tensor", is_searched=True),
            texts("dtype", "dtype", is_searched=True),
            texts("shape", "shape"),
            wholes("size", "size"),
            wholes("pieces", "pieces"),
            wholes("ranks", "files"),
            wholes("replicas", "replicas"),
        )

    def take_head(self, head: Head) -> None:
        self.head = head

    def take_row(self, row: list[Any]) -> None:
        key, dtype, shape, pieces, files, replicas = row
        self.tensors.add(intern(key), intern(dtype), self._shapes(shape), _size(dtype, shape), pieces, files, replicas)

    @property
    def row_count(self) -> int:
        return len(self.tensors)

    @property
    def cells(self) -> tuple[Cell, ...]:
        found = self.head.get("cells", ())
        return tuple(Cell(rank, name, CellState(state), size) for rank, name, state, size in found)

    @property
    def absent(self) -> frozenset[str]:
        """The files that are missing or damaged."""
        bad = (CellState.MISSING, CellState.DAMAGED)
        return frozenset(cell.name for cell in self.cells if cell.state in bad)


class PiecesRead:
    """Where the pieces of one tensor lie."""

    def __init__(self) -> None:
        self.dtype = ""
        self.shape: Shape = ()
        self.pieces: list[Piece] = []

    def take_head(self, head: Head) -> None:
        self.dtype, self.shape = head["dtype"], tuple(head["shape"])

    def take_row(self, row: list[Any]) -> None:
        _, file, offset, shape, flat, replica = row
        box = Box(tuple(offset), tuple(shape))
        self.pieces.append(Piece(box, intern(file), None if flat is None else (flat[0], flat[1]), replica))

    @property
    def row_count(self) -> int:
        return len(self.pieces)


class PlanRead:
    """What a merge would do: a row a shard, with its name, bytes, tensors and copies."""

    def __init__(self) -> None:
        self.head: Head = {}
        self.shards: list[list[Any]] = []

    def take_head(self, head: Head) -> None:
        self.head = head

    def take_row(self, row: list[Any]) -> None:
        self.shards.append(row)

    @property
    def row_count(self) -> int:
        return len(self.shards)


class ReleaseRead:
    """A release's manifest: ``head`` as ``reading`` gives it, and its tensors with their digests."""

    def __init__(self) -> None:
        self.head: Head = {}
        self._shapes = _Shapes()
        self.tensors = Table(
            texts("key", "tensor", is_searched=True),
            texts("dtype", "dtype", is_searched=True),
            texts("shape", "shape"),
            wholes("size", "size"),
            texts("file", "file", is_searched=True),
            texts("sha256", "SHA-256"),
            wholes("overflows", "overflows"),
        )

    def take_head(self, head: Head) -> None:
        self.head = head

    def take_row(self, row: list[Any]) -> None:
        key, dtype, shape, file, sha256, overflows = row
        size = _size(dtype, shape)
        digest = bytes.fromhex(sha256)
        self.tensors.add(intern(key), intern(dtype), self._shapes(shape), size, intern(file), digest, overflows)

    @property
    def row_count(self) -> int:
        return len(self.tensors)


class HistoryRead:
    """Every act on a name, the oldest first."""

    def __init__(self) -> None:
        self.acts: list[Act] = []

    def take_head(self, head: Head) -> None:
        pass

    def take_row(self, row: Any) -> None:
        act = Act.of_json(row)
        assert act is not None, row  # it was written by to_json
        self.acts.append(act)

    @property
    def row_count(self) -> int:
        return len(self.acts)


class ChangesRead:
    """What differs between two releases; ``specs`` where dtype or shape do: what they were and became."""

    def __init__(self) -> None:
        self.head: Head = {}
        self.specs: dict[str, tuple[Any, Any]] = {}
        self.counts: dict[str, int] = {}
        self.tensors = Table(
            texts("key", "tensor", is_searched=True),
            texts("difference", "difference", is_searched=True),
            texts("dtype", "dtype", is_searched=True),
            texts("shape", "shape"),
            reals("relative", "relative"),
            reals("largest", "largest"),
            reals("differing", "elements"),
            reals("not_finite", "not finite"),
        )
        self._shapes = _Shapes()

    def take_head(self, head: Head) -> None:
        self.head = head

    def take_row(self, row: list[Any]) -> None:
        key, kind, before, after, values = row
        key = intern(key)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if before != after:
            self.specs[key] = (before, after)
        dtype, shape = after if after is not None else before
        elements, differing, not_finite, relative, largest = values or (0, None, None, None, None)
        self.tensors.add(
            key,
            intern(kind),
            intern(dtype),
            self._shapes(shape),
            _number(relative),
            _number(largest),
            _number(differing / elements if differing is not None and elements else None),
            _number(not_finite),
        )

    @property
    def row_count(self) -> int:
        return len(self.tensors)


class HealthRead:
    """The values of one release added up, tensor by tensor."""

    def __init__(self) -> None:
        self.others = 0
        self.norm: float | None = None
        self.sick_count = 0
        self.tensors = Table(
            texts("key", "tensor", is_searched=True),
            wholes("nan", "NaN"),
            wholes("inf", "Inf"),
            reals("absmax", "absmax"),
            reals("norm", "norm"),
        )

    def take_head(self, head: Head) -> None:
        self.others, self.norm = head["others"], head["norm"]

    def take_row(self, row: list[Any]) -> None:
        key, nans, infs, absmax, norm = row
        self.sick_count += bool(nans or infs)
        self.tensors.add(intern(key), nans, infs, absmax, _number(norm))

    @property
    def row_count(self) -> int:
        return len(self.tensors)

    def norm_of(self, key: str) -> float | None:
        """The norm of one tensor, None where there is none."""
        keys = self.tensors.columns["key"].values
        try:
            found = float(self.tensors.value("norm", keys.index(key)))
        except ValueError:
            return None
        return None if found != found else found


def _number(value: float | None) -> float:
    return nan if value is None else float(value)
