"""The two records that a metadata file repeats for each piece: their fields, checked, and made into domain values.

Owns which fields there are, of what type, and which of them must agree. :func:`record_of` makes a record of the pickle
reader's general values; ``spelled_records`` makes most of them straight from the file's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ckptcore.formats.pickle_values import MAX_EXTENT, Instance, Pairs, as_extents, as_text, describe
from ckptcore.rules.metadata import PieceKey, PieceRecord, PlaceKey
from ckptcore.rules.tensors import Shape

MODULES: Final = ("paddle.distributed.flex_checkpoint.dcp.metadata", "paddle.distributed.checkpoint.metadata")
"""Where Paddle 3.2 and later, and 2.6 to 3.1, keep their metadata classes."""

PIECE_CLASS: Final = "LocalTensorMetadata"
KEY_CLASS: Final = "LocalTensorIndex"
RECORDS: Final[Mapping[str, type]] = {PIECE_CLASS: PieceRecord, KEY_CLASS: PieceKey}

LONGEST_DTYPE: Final = 64

Record = PieceRecord | PieceKey


class Unfit(Exception):
    """A field, or two that disagree: what, and what was expected and found there."""

    def __init__(self, what: str, expected: str, found: str) -> None:
        super().__init__(what, expected, found)
        self.what, self.expected, self.found = what, expected, found


def _flat_range(value: Any) -> tuple[int, int] | None:
    match as_extents(value):
        case (start, stop) if start <= stop:
            return start, stop
    return None


def _dtype(value: Any) -> str | None:
    text = as_text(value)
    return text if text is not None and len(text) <= LONGEST_DTYPE else None


def _flag(value: Any) -> bool | None:
    return value if type(value) is bool else None


def _replica(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_EXTENT else None


@dataclass(frozen=True, slots=True)
class _Field:
    """``read`` gives the value that the domain uses, or None where it does not fit; a tuple stays as it is."""

    name: str
    expected: str
    read: Callable[[Any], Any]
    is_required: bool = False


_OFFSETS: Final = "non-negative whole numbers, one an axis"

_OFFSET: Final = _Field("global_offset", _OFFSETS, as_extents, is_required=True)
_IS_FLATTENED: Final = _Field("is_flattened", "True or False", _flag)
_FLATTENED_RANGE: Final = _Field("flattened_range", "(start, stop)", _flat_range)

_LISTED: Final[Mapping[str, tuple[_Field, ...]]] = {
    PIECE_CLASS: (
        _OFFSET,
        _Field("local_shape", _OFFSETS, as_extents, is_required=True),
        _Field("dtype", "the name of a dtype", _dtype),
        _Field("global_shape", _OFFSETS, as_extents),
        _IS_FLATTENED,
        _FLATTENED_RANGE,
    ),
    KEY_CLASS: (
        _Field("tensor_key", "a tensor's key", as_text, is_required=True),
        _OFFSET,
        _Field("local_shape", _OFFSETS, as_extents),
        _IS_FLATTENED,
        _FLATTENED_RANGE,
        _Field("replica_id", "a whole number", _replica),
    ),
}

FIELDS: Final = {cls: {known.name: known for known in listed} for cls, listed in _LISTED.items()}
"""Fields by class. A field that is not required may be absent or None; fields not listed are passed over."""


def checked(known: _Field | None, value: Any) -> Any:
    """The value as the domain uses it, or as it is where the field is not ``known``; raises Unfit."""
    if known is None or (value is None and not known.is_required):
        return value
    read = known.read(value)
    if read is None:
        raise Unfit(known.name, known.expected, describe(value))
    return read


def piece_record(offset: Shape, shape: Shape, dtype: Any, whole: Any, is_flattened: Any, flat: Any) -> PieceRecord:
    if len(shape) != len(offset):
        raise Unfit("local_shape", f"{len(offset)} axes, as global_offset has", describe(shape))
    if whole is not None and len(whole) != len(offset):
        raise Unfit("global_shape", f"{len(offset)} axes, as global_offset has", describe(whole))
    _require_range(is_flattened, flat)
    return PieceRecord(offset, shape, dtype, whole, flat)


def place_key(offset: Shape, shape: Any, is_flattened: Any, flat: Any, replica: Any) -> PlaceKey:
    if shape is not None and len(shape) != len(offset):
        raise Unfit("local_shape", f"{len(offset)} axes, as global_offset has", describe(shape))
    _require_range(is_flattened, flat)
    return PlaceKey(offset, shape, flat, replica)


def _piece_key(tensor_key: str, *fields: Any) -> PieceKey:
    return PieceKey(tensor_key, place_key(*fields))


def _require_range(is_flattened: bool | None, flat: Any) -> None:
    if bool(is_flattened) != (flat is not None):
        raise Unfit("flattened_range", "a range where is_flattened says so, and only there", describe(flat))


_MAKERS: Final[Mapping[str, Callable[..., Record]]] = {PIECE_CLASS: piece_record, KEY_CLASS: _piece_key}
"""Each takes the checked values of ``FIELDS`` in their order, and raises Unfit where two of them disagree."""


def record_of(instance: Instance) -> Record:
    """The record that an object of one of the two classes stands for; raises Unfit."""
    cls = instance.cls.name
    if type(instance.state) is not Pairs:
        raise Unfit("state", "fields by name", describe(instance.state))
    values: dict[str, Any] = {}
    for spelled, value in instance.state.entries():
        name = as_text(spelled)
        if name is None or name in values:
            raise Unfit("state", "each field once, by name", describe(spelled))
        values[name] = checked(FIELDS[cls].get(name), value)
    for name, known in FIELDS[cls].items():
        if known.is_required and name not in values:
            raise Unfit(name, known.expected, "no such field")
    return _MAKERS[cls](*(values.get(name) for name in FIELDS[cls]))
