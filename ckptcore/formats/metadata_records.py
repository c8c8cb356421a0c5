"""The two records that a metadata file repeats for each piece: their fields, checked, and made into domain values.

A record comes either as the pickle reader's general values (:func:`record_of`), or as the bytes in which Python's
pickler always spells it (:class:`SpelledRecords`), which is what makes a file of millions of pieces quick to read. The
second is a shortcut only: it leaves whatever is new or strange to the first, which also says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ckptcore.formats.pickle_values import MAX_EXTENT, Global, Instance, Pairs, as_extents, as_text, describe
from ckptcore.rules.metadata import PieceKey, PieceRecord
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


def _checked(known: _Field | None, value: Any) -> Any:
    """The value as the domain uses it, or as it is where the field is not ``known``; raises Unfit."""
    if known is None or (value is None and not known.is_required):
        return value
    read = known.read(value)
    if read is None:
        raise Unfit(known.name, known.expected, describe(value))
    return read


def _piece(offset: Shape, shape: Shape, dtype: Any, whole: Any, is_flattened: Any, flat: Any) -> PieceRecord:
    if len(shape) != len(offset):
        raise Unfit("local_shape", f"{len(offset)} axes, as global_offset has", describe(shape))
    if whole is not None and len(whole) != len(offset):
        raise Unfit("global_shape", f"{len(offset)} axes, as global_offset has", describe(whole))
    _require_range(is_flattened, flat)
    return PieceRecord(offset, shape, dtype, whole, flat)


def _key(tensor_key: str, offset: Shape, shape: Any, is_flattened: Any, flat: Any, replica: Any) -> PieceKey:
    if shape is not None and len(shape) != len(offset):
        raise Unfit("local_shape", f"{len(offset)} axes, as global_offset has", describe(shape))
    _require_range(is_flattened, flat)
    return PieceKey(tensor_key, offset, shape, flat, replica)


def _require_range(is_flattened: bool | None, flat: Any) -> None:
    if bool(is_flattened) != (flat is not None):
        raise Unfit("flattened_range", "a range where is_flattened says so, and only there", describe(flat))


_MAKERS: Final[Mapping[str, Callable[..., Record]]] = {PIECE_CLASS: _piece, KEY_CLASS: _key}
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
        values[name] = _checked(FIELDS[cls].get(name), value)
    for name, known in FIELDS[cls].items():
        if known.is_required and name not in values:
            raise Unfit(name, known.expected, "no such field")
    return _MAKERS[cls](*(values.get(name) for name in FIELDS[cls]))


_INT = rb"(?:K.|M..|J....|\x8a\x05.....)"
_REFERENCE = rb"(?:h.|j....)"
_VALUE = (
    rb"(?:" + _INT + rb"(?:\x85\x94|" + _INT + rb"(?:\x86\x94|" + _INT + rb"\x87\x94))?"  # an int; a tuple of up to 3
    rb"|\(" + _INT + rb"{4,16}t\x94|\)|" + _REFERENCE + rb"|[N\x88\x89]|\x8c.[ -~]*\x94)"
)
_STATE = rb"\x94\}\x94\(%bub"
"""MEMOIZE, EMPTY_DICT, MEMOIZE, MARK, names and values, SETITEMS, BUILD."""

_ENTRY = rb"(" + _REFERENCE + rb")" + _VALUE
_ANY_STATE: Final = re.compile(_STATE % (_ENTRY + (rb"(?:" + _ENTRY + rb")?") * 7), re.DOTALL)

_CACHE_LIMIT: Final = 1 << 16

Meaning = tuple[Any, bool]
"""A checked value, and whether its spelling puts it into the memo."""

_SPENT: Final = object()
"""In the memo for what no file refers to again: an object's dict, and the object before it is whole."""


class _Column(NamedTuple):
    """One field at its place in a record: how to check it, and what spellings of it meant."""

    read: Callable[[Any], Any]
    known: dict[bytes, Meaning]


@dataclass(frozen=True, slots=True)
class _Layout:
    """How all records of a class are spelled after its first ones: the names' memo slots, in order.

    ``arranged`` takes the columns' values, and a None for absent ones behind them, in the order of ``FIELDS``.
    """

    pattern: re.Pattern[bytes]
    columns: tuple[_Column, ...]
    arranged: itemgetter[Any]
    make: Callable[..., Record]


class SpelledRecords:
    """A shortcut for ``read_pickle``: makes a record straight from its spelling."""

    def __init__(self) -> None:
        self._layouts: dict[str, _Layout] = {}
        self._pieces: dict[bytes, tuple[Record, list[Any]]] = {}

    def __call__(self, window: bytes, start: int, stop: int, cls: Global, memo: list[Any]) -> tuple[Record, int] | None:
        layout = self._layouts.get(cls.name) or self._learn(window, start, stop, cls.name, memo)
        spelling = layout.pattern.match(window, start, stop) if layout is not None else None
        if layout is None or spelling is None:
            return None
        text = spelling.group()
        known = self._pieces.get(text)
        if known is not None:
            # The layers of a model repeat each other: most pieces are spelled as an earlier one was. A memo slot never
            # changes, so a spelling that refers to one keeps its meaning.
            record, memoized = known
            memo += memoized
            return record, spelling.end()
        before = len(memo)
        try:
            record = _read(layout, spelling.groups(), memo)
        except (Unfit, IndexError):
            del memo[before:]
            return None
        if layout.make is _piece and len(self._pieces) < _CACHE_LIMIT:
            self._pieces[text] = record, memo[before:]
        return record, spelling.end()

    def _learn(self, window: bytes, start: int, stop: int, cls: str, memo: list[Any]) -> _Layout | None:
        spelling = _ANY_STATE.match(window, start, stop) if cls in FIELDS else None
        if spelling is None:
            return None
        slots = [slot for slot in spelling.groups() if slot is not None]
        try:
            names = [as_text(_referred(slot, memo)) for slot in slots]
        except (Unfit, IndexError):
            return None
        is_whole = all(name in names for name, known in FIELDS[cls].items() if known.is_required)
        if not is_whole or None in names or len(set(names)) < len(names):
            return None
        pattern = re.compile(_STATE % b"".join(re.escape(slot) + b"(" + _VALUE + b")" for slot in slots), re.DOTALL)
        columns = tuple(_Column(partial(_checked, FIELDS[cls].get(str(name))), {}) for name in names)
        order = (names.index(name) if name in names else len(names) for name in FIELDS[cls])
        return self._layouts.setdefault(cls, _Layout(pattern, columns, itemgetter(*order), _MAKERS[cls]))


def _read(layout: _Layout, spellings: Sequence[bytes], memo: list[Any]) -> Record:
    values: list[Any] = []
    before = len(memo)
    memo += (_SPENT, _SPENT)
    for (read, known), spelled in zip(layout.columns, spellings, strict=True):
        if spelled[0] == 0x6A:  # LONG_BINGET: as many as there are tensors or pieces, so not worth keeping
            values.append(read(_referred(spelled, memo)))
            continue
        meaning = known.get(spelled)
        if meaning is None:
            value, is_memoized = _meaning(spelled, memo)
            meaning = read(value), is_memoized
            if len(known) == _CACHE_LIMIT:
                known.clear()
            known[spelled] = meaning
        value, is_memoized = meaning
        if is_memoized:
            memo.append(value)
        values.append(value)
    values.append(None)
    record = layout.make(*layout.arranged(values))
    memo[before] = record
    return record


_CONSTANTS: Final = {b"N": None, b"\x88": True, b"\x89": False, b")": ()}
_INT_BYTES: Final = {0x4B: 1, 0x4D: 2, 0x4A: 4, 0x8A: 6}


def _meaning(spelled: bytes, memo: list[Any]) -> tuple[Any, bool]:
    """What a match of ``_VALUE`` spells, and whether it goes into the memo."""
    if spelled in _CONSTANTS:
        return _CONSTANTS[spelled], False
    if spelled[0] in b"hj":
        return _referred(spelled, memo), False
    if spelled[0] == 0x8C:
        if spelled[1] != len(spelled) - 3:
            raise Unfit("text", "its length", "another")
        return str(spelled[2:-1], "ascii"), True
    numbers, at = [], 1 if spelled.startswith(b"(") else 0
    while at < len(spelled) and spelled[at] in _INT_BYTES:
        size = _INT_BYTES[spelled[at]]
        digits = spelled[at + 1 : at + 1 + size]
        is_long = spelled[at] == 0x8A
        numbers.append(int.from_bytes(digits[1:] if is_long else digits, "little", signed=size >= 4))
        at += 1 + size
    return (numbers[0], False) if at == len(spelled) else (tuple(numbers), True)


def _referred(reference: bytes, memo: list[Any]) -> Any:
    value = memo[int.from_bytes(reference[1:], "little")]
    if type(value) is list:
        raise Unfit("a list", "a value that cannot grow any more", "one that may")
    return value
