"""The records of a metadata file, straight from the bytes in which Python's pickler always spells them.

This is what makes a file of millions of pieces quick to read: the opcodes of a record are matched as a whole, and so
are the records that follow it. It is a shortcut only: whatever is new or strange is left to the pickle reader and
``metadata_records``, which also say what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from ckptcore.formats.metadata_records import FIELDS, KEY_CLASS, PIECE_CLASS, Unfit, checked, piece_record, place_key
from ckptcore.formats.pickle_values import Global, as_text
from ckptcore.rules.metadata import PieceKey

_INT = rb"(?:K.|M..|J....|\x8a\x05.....)"
_REFERENCE = rb"(?:h.|j....)"
_TEXT = rb"\x8c.[ -~]*\x94"
_VALUE = (
    rb"(?:" + _INT + rb"(?:\x85\x94|" + _INT + rb"(?:\x86\x94|" + _INT + rb"\x87\x94))?"  # an int; a tuple of up to 3
    rb"|\(" + _INT + rb"{4,16}t\x94|\)|" + _REFERENCE + rb"|[N\x88\x89]|" + _TEXT + rb")"
)
_START, _END = rb"\x94\}\x94\(", rb"ub"
"""MEMOIZE, EMPTY_DICT, MEMOIZE, MARK before the names and values; SETITEMS, BUILD after them."""

_NEXT = rb"(?:(" + _REFERENCE + rb")\)\x81)?"
"""What begins one more record: its class, EMPTY_TUPLE, NEWOBJ."""

_ENTRY = rb"(" + _REFERENCE + rb")" + _VALUE
_ANY_STATE: Final = re.compile(_START + _ENTRY + (rb"(?:" + _ENTRY + rb")?") * 7 + _END, re.DOTALL)

_CACHE_LIMIT: Final = 1 << 16

_SPENT: Final = object()
"""In the memo for what no file refers to again: an object's dict, and the object before it is whole."""

Stack = list[Any]
Memo = list[Any]


class SpelledRecords:
    """A shortcut for ``read_pickle``: learns the layout of each class from its first records."""

    def __init__(self) -> None:
        self._runs: dict[str, _Pieces | _Keys] = {}

    def __call__(self, window: bytes, start: int, stop: int, stack: Stack, memo: Memo) -> int | None:
        cls = stack[-1]
        run = self._runs.get(cls.name) or self._learn(window, start, stop, cls, memo)
        return None if run is None else run.read(window, start, stop, stack, memo)

    def _learn(self, window: bytes, start: int, stop: int, cls: Global, memo: Memo) -> _Pieces | _Keys | None:
        spelling = _ANY_STATE.match(window, start, stop) if cls.name in FIELDS else None
        if spelling is None:
            return None
        slots = [slot for slot in spelling.groups() if slot is not None]
        try:
            names = [as_text(_referred(slot, memo)) for slot in slots]
        except (Unfit, IndexError):
            return None
        known = [name for name in names if name is not None]
        is_whole = all(name in known for name, field in FIELDS[cls.name].items() if field.is_required)
        if not is_whole or len(set(known)) < len(names):
            return None
        if cls.name == PIECE_CLASS:
            self._runs[cls.name] = _Pieces(slots, _columns(PIECE_CLASS, known, slots, _START))
        elif known[0] == next(iter(FIELDS[KEY_CLASS])):  # Paddle has always had the tensor's key first
            self._runs[cls.name] = _Keys(slots, _columns(KEY_CLASS, known[1:], slots[1:], b""))
        return self._runs.get(cls.name)


class _Pieces:
    """Runs of ``LocalTensorMetadata``, as they follow each other in the list of one tensor."""

    def __init__(self, slots: list[bytes], columns: _Columns) -> None:
        entries = b"".join(re.escape(slot) + _VALUE for slot in slots)
        self._pattern = re.compile(rb"(" + _START + entries + _END + rb")" + _NEXT, re.DOTALL)
        self._columns = columns
        self._known: dict[bytes, tuple[Any, Memo]] = {}

    def read(self, window: bytes, start: int, stop: int, stack: Stack, memo: Memo) -> int | None:
        cls, end, known_next = stack[-1], None, b""
        match, known = self._pattern.match, self._known
        while (found := match(window, start, stop)) is not None:
            text, following = found.groups()
            # The layers of a model repeat each other: most pieces are spelled as an earlier one was. A memo slot never
            # changes, so a spelling that refers to one keeps its meaning.
            spelled = known.get(text)
            if spelled is not None:
                record, memoized = spelled
                memo += memoized
            else:
                before = len(memo)
                memo += (_SPENT, _SPENT)
                record = self._columns.read(text, memo)
                if record is None:
                    del memo[before:]
                    break
                memo[before] = record
                if len(known) < _CACHE_LIMIT:
                    known[text] = record, memo[before:]
            if end is None:
                stack[-1] = record
            else:
                stack.append(record)
            end = found.end(1)
            if following != known_next:
                if following is None or not _is_to(cls, following, memo):
                    break
                known_next = following
            start = found.end()
        return end


class _Keys:
    """Runs of ``LocalTensorIndex``, each followed by its file's name, as they fill the storage table."""

    def __init__(self, slots: list[bytes], columns: _Columns) -> None:
        entries = b"".join(re.escape(slot) + _VALUE for slot in slots[1:])
        tensor_key = re.escape(slots[0]) + rb"(" + _TEXT + rb"|" + _REFERENCE + rb")"
        file = rb"(?:(" + _REFERENCE + rb"|" + _TEXT + rb")" + _NEXT + rb")?"
        self._pattern = re.compile(_START + tensor_key + rb"(" + entries + _END + rb")" + file, re.DOTALL)
        self._columns = columns
        # As many as the file has tensors and rank files, each spelled in it.
        self._names: dict[bytes, tuple[str, Memo]] = {}
        self._files: dict[bytes | None, str] = {}
        self._places: dict[bytes, tuple[Any, Memo]] = {}

    def read(self, window: bytes, start: int, stop: int, stack: Stack, memo: Memo) -> int | None:
        cls, end, known_next = stack[-1], None, b""
        match, names, places, files = self._pattern.match, self._names, self._places, self._files
        while (found := match(window, start, stop)) is not None:
            spelled_key, spelled_place, spelled_file, following = found.groups()
            before = len(memo)
            named = names.get(spelled_key) or self._learn_name(spelled_key, memo)
            if named is None:
                break
            tensor_key, memoized = named
            memo += memoized
            known = places.get(spelled_place)
            if known is not None:
                place, memoized = known
                memo += memoized
            else:
                within = len(memo)
                place = self._columns.read(spelled_place, memo)
                if place is None:
                    del memo[before:]
                    break
                if len(places) < _CACHE_LIMIT:
                    places[spelled_place] = place, memo[within:]
            record = memo[before] = PieceKey(tensor_key, place)
            if end is None:
                stack[-1] = record
            else:
                stack.append(record)
            end = found.end(2)
            file = files.get(spelled_file) or self._file(spelled_file, memo)
            if file is None:
                break
            stack.append(file)
            end = found.end(3)
            if following != known_next:
                if following is None or not _is_to(cls, following, memo):
                    break
                known_next = following
            start = found.end()
        return end

    def _learn_name(self, spelled: bytes, memo: Memo) -> tuple[str, Memo] | None:
        try:
            value, is_memoized = _meaning(spelled, memo)
        except (Unfit, IndexError):
            return None
        text = as_text(value)
        if text is None:
            return None
        self._names[spelled] = text, [_SPENT, _SPENT, value] if is_memoized else [_SPENT, _SPENT]
        return self._names[spelled]

    def _file(self, spelled: bytes | None, memo: Memo) -> str | None:
        """The file's name; one that is spelled anew goes into the memo, one that is referred to is kept."""
        if spelled is None:
            return None
        try:
            file, is_memoized = _meaning(spelled, memo)
        except (Unfit, IndexError):
            return None
        if type(file) is not str:
            return None
        if is_memoized:
            memo.append(file)
        else:
            self._files[spelled] = file
        return file


def _is_to(cls: Global, spelled: bytes, memo: Memo) -> bool:
    """Whether the reference that is spelled so means ``cls``."""
    slot = int.from_bytes(spelled[1:], "little")
    return slot < len(memo) and memo[slot] is cls


def _columns(cls: str, names: list[str], slots: list[bytes], start: bytes) -> _Columns:
    fields = [name for name in FIELDS[cls] if cls == PIECE_CLASS or name != next(iter(FIELDS[cls]))]
    order = (names.index(name) if name in names else len(names) for name in fields)
    entries = b"".join(re.escape(slot) + rb"(" + _VALUE + rb")" for slot in slots)
    make: Callable[..., Any] = piece_record if cls == PIECE_CLASS else place_key
    return _Columns(cls, tuple(names), re.compile(start + entries + _END, re.DOTALL), itemgetter(*order), make, {}, {})


@dataclass(frozen=True, slots=True)
class _Columns:
    """How the fields of a class are spelled after its first records, in ``names``' order, and what is made of them.

    ``arranged`` takes the values, and a None for absent ones behind them, in the order that ``make`` expects.
    ``meanings`` are values by their spelling; ``alike`` what was made of values by their identities, which they keep,
    since they are held beside it.
    """

    cls: str
    names: tuple[str, ...]
    pattern: re.Pattern[bytes]
    arranged: itemgetter[Any]
    make: Callable[..., Any]
    meanings: dict[bytes, tuple[Any, bool]]
    alike: dict[tuple[int, ...], tuple[Any, list[Any]]]

    def read(self, text: bytes, memo: Memo) -> Any:
        """What ``text`` spells, its values put into the memo; None for what needs the long way."""
        spelling = self.pattern.fullmatch(text)
        if spelling is None:
            return None
        values = []
        try:
            for spelled in spelling.groups():
                meaning = self.meanings.get(spelled)
                if meaning is None:
                    meaning = _meaning(spelled, memo)
                    # LONG_BINGET: as many as there are tensors or pieces, so not worth keeping
                    if spelled[0] != 0x6A and len(self.meanings) < _CACHE_LIMIT:
                        self.meanings[spelled] = meaning
                value, is_memoized = meaning
                if is_memoized:
                    memo.append(value)
                values.append(value)
            identities = tuple(map(id, values))
            known = self.alike.get(identities)
            if known is None:
                known = self._made(values), values
                if len(self.alike) < _CACHE_LIMIT:
                    self.alike[identities] = known
        except (Unfit, IndexError):
            return None
        return known[0]

    def _made(self, values: list[Any]) -> Any:
        fields = FIELDS[self.cls]
        read = [checked(fields.get(name), value) for name, value in zip(self.names, values, strict=True)]
        return self.make(*self.arranged([*read, None]))


_CONSTANTS: Final = {b"N": None, b"\x88": True, b"\x89": False, b")": ()}
_INT_BYTES: Final = {0x4B: 1, 0x4D: 2, 0x4A: 4, 0x8A: 6}


def _meaning(spelled: bytes, memo: Memo) -> tuple[Any, bool]:
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


def _referred(reference: bytes, memo: Memo) -> Any:
    value = memo[int.from_bytes(reference[1:], "little")]
    if type(value) is list:
        raise Unfit("a list", "a value that cannot grow any more", "one that may")
    return value
