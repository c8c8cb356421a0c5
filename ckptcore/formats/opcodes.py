"""The names of the pickle opcodes that Paddle's files hold, for messages (``pickletools`` of CPython 3.11 to 3.13)."""

from __future__ import annotations

from typing import Final

OPCODE_NAMES: Final = {
    0x28: "MARK", 0x29: "EMPTY_TUPLE", 0x2E: "STOP", 0x42: "BINBYTES", 0x43: "SHORT_BINBYTES", 0x47: "BINFLOAT",
    0x4A: "BININT", 0x4B: "BININT1", 0x4D: "BININT2", 0x4E: "NONE", 0x52: "REDUCE", 0x58: "BINUNICODE",
    0x5D: "EMPTY_LIST", 0x61: "APPEND", 0x62: "BUILD", 0x63: "GLOBAL", 0x65: "APPENDS", 0x68: "BINGET",
    0x6A: "LONG_BINGET", 0x71: "BINPUT", 0x72: "LONG_BINPUT", 0x73: "SETITEM", 0x74: "TUPLE", 0x75: "SETITEMS",
    0x7D: "EMPTY_DICT", 0x80: "PROTO", 0x81: "NEWOBJ", 0x85: "TUPLE1", 0x86: "TUPLE2", 0x87: "TUPLE3", 0x88: "NEWTRUE",
    0x89: "NEWFALSE", 0x8A: "LONG1", 0x8C: "SHORT_BINUNICODE", 0x8D: "BINUNICODE8", 0x8E: "BINBYTES8",
    0x93: "STACK_GLOBAL", 0x94: "MEMOIZE", 0x95: "FRAME", 0x96: "BYTEARRAY8",
}  # fmt: skip
"""The opcodes that are read, and PROTO, which may only be the first."""


def describe_opcode(op: int) -> str:
    """The opcode as its byte, and its name where it is one that is read."""
    return f"opcode {op:#04x} {OPCODE_NAMES.get(op, '')}".rstrip()
