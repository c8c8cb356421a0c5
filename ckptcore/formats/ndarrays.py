"""How numpy pickles an array: ``_reconstruct`` and state at protocols 2 to 4, ``_frombuffer`` at protocol 5.

Owns reading one such value as a :class:`StoredArray`. Source: ``numpy/_core/src/multiarray/methods.c`` and
``numpy/_core/numeric.py`` of numpy 1.26 to 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ckptcore.formats.latin1_text import measured_text
from ckptcore.formats.pickle_values import Call, Global, LongText, PlacedText, as_extents, describe
from ckptcore.formats.reader import Reader
from ckptcore.rules.stored import Segment, StoredArray
from ckptcore.rules.tensors import Shape

NDARRAY: Final = Global("numpy", "ndarray")
DTYPE: Final = Global("numpy", "dtype")
ENCODE: Final = Global("_codecs", "encode")
RECONSTRUCT: Final = tuple(Global(f"numpy.{core}.multiarray", "_reconstruct") for core in ("_core", "core"))
FROMBUFFER: Final = tuple(Global(f"numpy.{core}.numeric", "_frombuffer") for core in ("_core", "core"))

GLOBALS: Final = frozenset({NDARRAY, DTYPE, ENCODE, *RECONSTRUCT, *FROMBUFFER})

STORED_TYPES: Final = frozenset(("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"))


class NoArray(Exception):
    """The value is no array that can be read: what about it, and what was expected and found."""

    def __init__(self, what: str, expected: str, found: str) -> None:
        super().__init__(what, expected, found)
        self.what, self.expected, self.found = what, expected, found


class ArrayReader:
    """Reads the arrays of one file. A text that several arrays share is measured once."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader, self._name = reader, name
        self._texts: dict[int, Segment] = {}
        # By identity: a pickle spells a dtype once and then refers to it. The value is kept, so that none gets another.
        self._dtypes: dict[int, tuple[Any, str]] = {}

    def array(self, value: Any) -> StoredArray:
        """The array that a value of the pickle stands for; raises NoArray, or DamagedFile for a payload's spelling."""
        match value:
            case Call(function=Global() as function) if function in RECONSTRUCT:
                array = self._reconstructed(value)
            case Call(function=Global() as function) if function in FROMBUFFER:
                array = self._from_buffer(value)
            case _:
                raise NoArray("the value", "an array", describe(value))
        if array.payload_bytes != array.expected_bytes:
            shape = f"{array.expected_bytes:,} bytes, as {array.dtype} of shape {list(array.shape)} has"
            raise NoArray("the payload's length", shape, f"{array.payload_bytes:,} bytes")
        return array

    def _reconstructed(self, call: Call) -> StoredArray:
        match call.args:
            case (Global() as made, (0,), _) if made == NDARRAY:
                pass
            case _:
                raise NoArray("the array", "numpy's (ndarray, (0,), b'b')", describe(call.args))
        match call.state:
            case (1, shape, dtype, bool() as fortran, payload):
                return StoredArray(_shape(shape), self._dtype(dtype), fortran, (self._segment(payload),))
            case _:
                raise NoArray("the array's state", "numpy's (1, shape, dtype, order, bytes)", describe(call.state))

    def _from_buffer(self, call: Call) -> StoredArray:
        if call.state is not None:
            raise NoArray("the array's state", "none", describe(call.state))
        match call.args:
            case (payload, dtype, shape, str() as order) if order in ("C", "F"):
                return StoredArray(_shape(shape), self._dtype(dtype), order == "F", (self._segment(payload),))
            case (payload, dtype, shape, "K", axis_order):
                stored, turned = _shape(shape), _shape(axis_order)
                if sorted(turned) != list(range(len(stored))):
                    raise NoArray("the array's axes", f"each of its {len(stored)} once", describe(axis_order))
                # numpy reshapes to ``shape`` and then transposes: its axis i is axis ``axis_order[i]`` in the file.
                axes = tuple(turned.index(axis) for axis in range(len(stored)))
                shown = tuple(stored[axis] for axis in turned)
                return StoredArray(shown, self._dtype(dtype), False, (self._segment(payload),), axes)
            case _:
                raise NoArray("the array", "numpy's (buffer, dtype, shape, order)", describe(call.args))

    def _dtype(self, value: Any) -> str:
        known = self._dtypes.get(id(value))
        if known is None:
            known = self._dtypes[id(value)] = value, _dtype(value)
        return known[1]

    def _segment(self, payload: Any) -> Segment:
        match payload:
            case Segment():
                return payload
            case Call(function, (PlacedText() | LongText() as text, str("latin1")), None) if function == ENCODE:
                if text.offset not in self._texts:
                    self._texts[text.offset] = measured_text(self._reader, self._name, text.offset, text.stored_length)
                return self._texts[text.offset]
            case _:
                raise NoArray("the payload", "bytes", describe(payload))


def _shape(value: Any) -> Shape:
    shape = as_extents(value)
    if shape is None:
        raise NoArray("the array's shape", "non-negative whole numbers", describe(value))
    return shape


def _dtype(value: Any) -> str:
    """numpy's spelling with byte order, of a dtype that stands for plain numbers or booleans."""
    match value:
        case Call(function=Global() as function, args=(str() as spelled, bool(), bool()), state=tuple() as state) if (
            function == DTYPE
        ):
            pass
        case _:
            raise NoArray("the array's dtype", "numpy's dtype", describe(value))
    if spelled not in STORED_TYPES:
        raise NoArray("the array's dtype", "plain numbers or booleans", describe(spelled))
    match state:
        case (3, str() as order, None, None, None, -1, -1, 0) if order in ("<", ">", "|", "="):
            pass
        case _:
            raise NoArray("the dtype's state", "a plain one with a byte order", _all_described(state))
    if spelled.endswith("1"):
        return f"|{spelled}"
    if order == "|":
        raise NoArray("the dtype's byte order", "'<' or '>'", describe(order))
    return f"{'>' if order == '>' else '<'}{spelled}"


def _all_described(values: Sequence[Any]) -> str:
    return f"({', '.join(map(describe, values[:10]))}{', …' if len(values) > 10 else ''})"
