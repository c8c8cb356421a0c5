"""How the tensors of one release differ from another's: by names, shapes and dtypes, by digests, and by how much.

Owns which pairs have to be read at all, and what the sums over their elements mean. Reading is ``diff``'s work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ckptcore.rules.manifest import TensorRecord
from ckptcore.rules.shard_layout import natural_key
from ckptcore.rules.tensors import DTYPES, TensorSpec


class Difference(StrEnum):
    """What happened to a tensor from A to B; one that was reshaped may have another dtype as well."""

    REMOVED = "removed"
    ADDED = "added"
    RESHAPED = "reshaped"
    RECAST = "recast"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Sums:
    """What was counted over elements of A and B, pair by pair; the parts of a tensor add up.

    ``differing`` pairs have other bits (or, between two dtypes, another value); for ``not_finite`` of them the
    difference is no finite number. ``squares`` sums A's finite values, ``difference_squares`` the finite differences,
    of which ``largest`` is the largest without its sign.
    """

    elements: int = 0
    differing: int = 0
    not_finite: int = 0
    squares: float = 0.0
    difference_squares: float = 0.0
    largest: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.elements + other.elements,
            self.differing + other.differing,
            self.not_finite + other.not_finite,
            self.squares + other.squares,
            self.difference_squares + other.difference_squares,
            max(self.largest, other.largest),
        )


@dataclass(frozen=True, slots=True)
class ValueChange:
    """By how much the elements of one tensor changed.

    ``relative`` is the norm of the difference over the norm of A, ``largest`` the largest absolute difference that is
    finite. Both are None for integers, and ``relative`` also where no number can say it: A is all zero, an element
    became NaN or infinite or ceased to be, or a double cannot hold a square.
    """

    elements: int
    differing: int
    not_finite: int
    relative: float | None
    largest: float | None

    @classmethod
    def of(cls, sums: Sums, *, is_float: bool) -> ValueChange:
        if not is_float:
            return cls(sums.elements, sums.differing, sums.not_finite, None, None)
        relative = None
        if sums.largest == 0:
            relative = None if sums.not_finite else 0.0
        elif not sums.not_finite and sums.squares > 0 and sums.difference_squares > 0:
            quotient = sums.difference_squares / sums.squares
            relative = math.sqrt(quotient) if math.isfinite(sums.squares) and math.isfinite(quotient) else None
        return cls(sums.elements, sums.differing, sums.not_finite, relative, sums.largest)

    def __str__(self) -> str:
        parts = [f"{self.differing:,} of {self.elements:,} elements"]
        if self.largest is not None:
            parts.append(f"largest {self.largest:.3g}")
        if self.relative is not None:
            parts.insert(0, f"relative {self.relative:.3g}")
        if self.not_finite:
            parts.append(f"{self.not_finite:,} not finite")
        return ", ".join(parts)

    def to_json(self) -> dict[str, object]:
        return {field: getattr(self, field) for field in self.__slots__}


@dataclass(frozen=True, slots=True)
class TensorChange:
    """One tensor that differs; ``values`` where its elements can be held against each other."""

    key: str
    difference: Difference
    before: TensorSpec | None
    after: TensorSpec | None
    values: ValueChange | None = None

    def __str__(self) -> str:
        match (self.before, self.after):
            case (TensorSpec() as before, TensorSpec() as after) if before != after:
                what = f"{_described(before)} -> {_described(after)}"
            case (before, after):
                what = "".join(_described(spec) for spec in (after or before,) if spec is not None)
        measured = "" if self.values is None else f"  {self.values}"
        return f"{self.difference:<8}  {self.key}  {what}{measured}"

    def to_json(self) -> dict[str, object]:
        return {
            "key": self.key,
            "difference": self.difference.value,
            "before": _as_json(self.before),
            "after": _as_json(self.after),
            "values": None if self.values is None else self.values.to_json(),
        }


@dataclass(frozen=True, slots=True)
class DiffReport:
    """What differs between ``a`` and ``b``, the largest change of values first; ``unchanged`` counts the rest."""

    a: str
    b: str
    changes: tuple[TensorChange, ...]
    unchanged: int

    def lines(self) -> Iterator[str]:
        """The report for people: a line a tensor, then the counts."""
        for change in self.changes:
            yield str(change)
        counts = {kind: sum(change.difference is kind for change in self.changes) for kind in Difference}
        yield ", ".join(f"{count:,} {kind}" for kind, count in counts.items()) + f", {self.unchanged:,} unchanged"

    def to_json(self) -> dict[str, object]:
        changes = [change.to_json() for change in self.changes]
        return {"a": self.a, "b": self.b, "unchanged": self.unchanged, "changes": changes}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the tables of two releases show: changes that need no reading, pairs that do, and how many are equal."""

    changes: tuple[TensorChange, ...]
    pairs: tuple[tuple[TensorSpec, TensorSpec], ...]
    equal: int


def compare_tables(a: Iterable[TensorRecord], b: Iterable[TensorRecord]) -> Comparison:
    """Hold the tensors of A and B against each other by name, shape, dtype and, where both have one, digest."""
    before, after = ({record.spec.key: record for record in table} for table in (a, b))
    changes, pairs, equal = list[TensorChange](), list[tuple[TensorSpec, TensorSpec]](), 0
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old is None or new is None:
            kind = Difference.ADDED if old is None else Difference.REMOVED
            before_spec, after_spec = (None if record is None else record.spec for record in (old, new))
            changes.append(TensorChange(key, kind, before_spec, after_spec))
        elif old.spec.shape != new.spec.shape:
            changes.append(TensorChange(key, Difference.RESHAPED, old.spec, new.spec))
        elif old.spec.dtype != new.spec.dtype and not (is_real(old.spec.dtype) and is_real(new.spec.dtype)):
            changes.append(TensorChange(key, Difference.RECAST, old.spec, new.spec))
        elif old.spec == new.spec and old.sha256 and old.sha256 == new.sha256:
            equal += 1
        else:
            pairs.append((old.spec, new.spec))
    return Comparison(tuple(changes), tuple(sorted(pairs, key=lambda pair: pair[0].key)), equal)


def report_diff(a: str, b: str, compared: Comparison, measured: Mapping[str, Sums]) -> DiffReport:
    """The report, once each pair of ``compared`` was measured."""
    changes, unchanged = list(compared.changes), compared.equal
    for old, new in compared.pairs:
        sums = measured[old.key]
        if old.dtype == new.dtype and not sums.differing:
            unchanged += 1
            continue
        kind = Difference.CHANGED if old.dtype == new.dtype else Difference.RECAST
        change = ValueChange.of(sums, is_float=has_values(old.dtype))
        changes.append(TensorChange(old.key, kind, old, new, change))
    return DiffReport(a, b, tuple(sorted(changes, key=_order)), unchanged)


def is_real(dtype: str) -> bool:
    """Whether the dtype holds real floating-point numbers: any two such can be held against each other."""
    return DTYPES[dtype].is_float


def has_values(dtype: str) -> bool:
    """Whether the distance of two elements of the dtype is worth telling: real and complex floating-point numbers."""
    return is_real(dtype) or dtype.startswith("complex")


def _order(change: TensorChange) -> tuple[int, float, object, str]:
    """By what happened, then the largest relative change first; one from all zero is larger than any."""
    relative = 0.0
    if change.values is not None:
        relative = math.inf if change.values.relative is None else change.values.relative
    return list(Difference).index(change.difference), -relative, natural_key(change.key), change.key


def _described(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"


def _as_json(spec: TensorSpec | None) -> dict[str, object] | None:
    return None if spec is None else {"dtype": spec.dtype, "shape": list(spec.shape)}
