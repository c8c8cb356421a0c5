"""What the tests of the formats read: pickles of classes that need not be installed, and a reader that watches."""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from ckptcore.formats.reader import BytesReader

FLEX = "paddle.distributed.flex_checkpoint.dcp.metadata"
BEFORE_3_2 = "paddle.distributed.checkpoint.metadata"


def _keep_fields(self: Any, **fields: Any) -> None:
    self.__dict__.update(fields)


@contextmanager
def paddle_classes(module: str = FLEX) -> Iterator[SimpleNamespace]:
    """The three metadata classes, importable under Paddle's name for as long as the block runs."""
    parts = module.split(".")
    modules = {".".join(parts[:i]): ModuleType(".".join(parts[:i])) for i in range(1, len(parts) + 1)}
    made = SimpleNamespace()
    for name in ("Metadata", "LocalTensorMetadata", "LocalTensorIndex"):
        cls = type(name, (), {"__module__": module, "__qualname__": name, "__init__": _keep_fields})
        setattr(made, name, cls)
        setattr(modules[module], name, cls)
    with patch.dict(sys.modules, modules):
        yield made


def pickled_metadata(build: Callable[[Any], Any], *, protocol: int = 4, module: str = FLEX) -> bytes:
    """The pickle of what ``build`` makes of the classes, by Python's own pickler."""
    with paddle_classes(module) as classes:
        return pickle.dumps(build(classes), protocol=protocol)


class WatchedReader(BytesReader):
    """Counts reads, and refuses one that is larger than a window."""

    def __init__(self, data: bytes, *, largest: int = 1 << 20) -> None:
        super().__init__(data)
        self._largest = largest
        self.reads = 0
        self.bytes_read = 0

    def read_at(self, offset: int, length: int) -> bytes:
        assert length <= self._largest
        self.reads += 1
        data = super().read_at(offset, length)
        self.bytes_read += len(data)
        return data


@dataclass
class Calls:
    """How many functions were called, a measure of work that does not depend on the machine."""

    made: int = 0


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Counts the calls of Python's and built-in functions for as long as the block runs."""
    calls = Calls()

    def count(_frame: Any, event: str, _function: Any) -> None:
        calls.made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


class Spelling(bytearray):
    """A pickle written opcode by opcode, which can refer to what it spelled as no pickler would."""

    def __init__(self) -> None:
        super().__init__(b"\x80\x04")
        self._slots = 0

    def add(self, *parts: bytes | str | int) -> Spelling:
        """Opcodes as they are, a text, or a reference to a memo slot."""
        for part in parts:
            if isinstance(part, str):
                self += b"X" + struct.pack("<I", len(part)) + part.encode()
            else:
                self += b"j" + struct.pack("<I", part) if isinstance(part, int) else part
        return self

    def memoize(self) -> int:
        """Put the value on top of the stack into the memo; its slot."""
        self += b"\x94"
        self._slots += 1
        return self._slots - 1


def damaged_copies(data: bytes) -> st.SearchStrategy[bytes]:
    """The data with one to three flips, cuts, insertions or repeats."""
    return st.lists(_damage(len(data)), min_size=1, max_size=3).map(lambda damages: _apply(data, damages))


Damage = tuple[str, int, bytes]


def _damage(size: int) -> st.SearchStrategy[Damage]:
    kinds = st.sampled_from(("set", "insert", "cut", "end"))
    return st.tuples(kinds, st.integers(0, size), st.binary(min_size=1, max_size=4))


def _apply(data: bytes, damages: list[Damage]) -> bytes:
    for kind, at, new in damages:
        at = min(at, len(data))
        if kind == "set":
            data = data[:at] + new + data[at + len(new) :]
        elif kind == "insert":
            data = data[:at] + new + data[at:]
        elif kind == "cut":
            data = data[:at] + data[at + len(new) :]
        else:
            data = data[:at]
    return data
