"""The restricted opcode reader: what a pickle says, without doing any of it.

Nothing that a file names is imported, looked up or called: a class or function becomes an inert name, a call becomes
a record of the call, and a payload becomes the place where it lies. Only the opcodes that Python's picklers write at
protocols 2 to 5 for Paddle's objects are known, and only the globals that the caller lists. What the values mean is
left to the formats.

Time and memory are linear in the bytes between payloads: no length field is believed beyond the bytes that are
there, memo slots are filled in order, nesting is bounded, and no value is walked, hashed or compared.
Opcodes: ``pickletools`` of CPython 3.11 to 3.13.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, Protocol

from ckptcore.errors import DamagedFile
from ckptcore.formats.damage import damaged
from ckptcore.formats.opcodes import describe_opcode
from ckptcore.formats.pickle_values import Call, Global, Instance, LongText, Pairs, PlacedText, describe
from ckptcore.formats.reader import Reader
from ckptcore.rules.stored import Segment

LOOKAHEAD: Final = 300
"""Bytes that the window holds past each opcode that starts in it: one and its longest short argument (2 + 255)."""

FIRST_WINDOW: Final = 4 << 10
"""What is read first, and behind a payload: an array's header has some hundred bytes, and a rank file thousands."""
LAST_WINDOW: Final = 256 << 10
LONGEST_TEXT: Final = 64 << 10
DEEPEST_NESTING: Final = 64
MOST_PENDING: Final = 1 << 19
"""Values on the stack that nothing has taken yet; Python's picklers write batches of 1,000."""

Stack = list[Any]


class Shortcut(Protocol):
    """Recognises, right after NEWOBJ, the whole spelling of an object that the caller reads very often."""

    def __call__(self, window: bytes, start: int, stop: int, stack: Stack, memo: list[Any]) -> int | None:
        """Where the spelling of the object ends whose class is on top of ``stack``; None: it needs the long way.

        ``window[start:stop]`` is what may be looked at. Where it answers, the object has taken the place of the class,
        and it may have gone on with what follows: ``stack`` and ``memo`` hold exactly as many values as the opcodes up
        to there would have left, in their order.
        """
        ...


def read_pickle(reader: Reader, name: str, allowed: Iterable[Global], shortcut: Shortcut | None = None) -> Any:
    """The one value that the whole file spells, in terms of ``pickle_values``.

    ``name`` is for messages. Raises DamagedFile where the file is cut, goes on after its end, uses another opcode, or
    names a global outside ``allowed``.
    """
    return _Interpreter(reader, name, allowed, shortcut).run()


class _Interpreter:
    """One reading of one file. The window is ``_buffer``, the file's bytes from ``_base`` to ``_edge``."""

    def __init__(self, reader: Reader, name: str, allowed: Iterable[Global], shortcut: Shortcut | None) -> None:
        self._reader, self._name, self._size = reader, name, reader.size_bytes
        self._allowed = {(known.module, known.name): known for known in allowed}
        self._shortcut = shortcut
        self._buffer, self._base, self._edge, self._window = b"", 0, 0, FIRST_WINDOW
        self._at = 0
        self._frame_end = 0
        self._protocol = 0
        self._opcode = 0x80
        self._memo: list[Any] = []

    def run(self) -> Any:
        self._start()
        memo, shortcut = self._memo, self._shortcut
        stack: Stack = []
        outer: list[Stack] = []
        while True:
            if len(stack) > MOST_PENDING:
                expected = f"at most {MOST_PENDING:,} that wait for an opcode"
                raise self._damaged(self._at, "values pile up", expected=expected)
            buffer, pos, stop = self._view()
            start, op = pos, 0
            try:
                # Ordered by how often each opcode occurs in metadata: a file of 230 MiB has 120 million of them.
                while pos < stop:
                    start, op = pos, buffer[pos]
                    pos += 1
                    if op == 0x94:  # MEMOIZE
                        memo.append(stack[-1])
                    elif op == 0x68:  # BINGET
                        stack.append(memo[buffer[pos]])
                        pos += 1
                    elif op == 0x4B:  # BININT1
                        stack.append(buffer[pos])
                        pos += 1
                    elif op == 0x8C:  # SHORT_BINUNICODE
                        end = pos + 1 + buffer[pos]
                        stack.append(str(buffer[pos + 1 : end], "utf-8"))
                        pos = end
                    elif op == 0x6A:  # LONG_BINGET
                        stack.append(memo[int.from_bytes(buffer[pos : pos + 4], "little")])
                        pos += 4
                    elif op == 0x29:  # EMPTY_TUPLE
                        stack.append(())
                    elif op == 0x81:  # NEWOBJ
                        args, cls = stack.pop(), stack[-1]
                        if type(cls) is not Global or type(args) is not tuple:
                            raise self._wrong(self._base + start, op, "a class and a tuple", describe(cls))
                        after = shortcut(buffer, pos, stop, stack, memo) if shortcut is not None and not args else None
                        if after is None:
                            stack[-1] = Instance(cls, args)
                        else:
                            pos = after
                    elif op == 0x4D:  # BININT2
                        stack.append(buffer[pos] | buffer[pos + 1] << 8)
                        pos += 2
                    elif op == 0x86:  # TUPLE2
                        last = stack.pop()
                        stack[-1] = (stack[-1], last)
                    elif op == 0x28:  # MARK
                        if len(outer) == DEEPEST_NESTING:
                            expected = f"at most {DEEPEST_NESTING} levels of nesting"
                            raise self._wrong(self._base + start, op, expected, "one more")
                        outer.append(stack)
                        stack = []
                    elif op == 0x7D:  # EMPTY_DICT
                        stack.append(Pairs())
                    elif op == 0x75:  # SETITEMS
                        items, stack = stack, outer.pop()
                        if type(stack[-1]) is not Pairs or len(items) % 2:
                            raise self._wrong(self._base + start, op, "a dict, keys and values", describe(stack[-1]))
                        stack[-1].extend(items)
                    elif op == 0x62:  # BUILD
                        state, target = stack.pop(), stack[-1]
                        if type(target) not in (Instance, Call) or type(state) not in (Pairs, tuple):
                            raise self._wrong(self._base + start, op, "an object and its state", describe(target))
                        if target.state is not None:
                            raise self._wrong(self._base + start, op, "an object without state", "one that has it")
                        target.state = state
                    elif op == 0x4E:  # NONE
                        stack.append(None)
                    elif op == 0x89:  # NEWFALSE
                        stack.append(False)
                    elif op == 0x88:  # NEWTRUE
                        stack.append(True)
                    elif op == 0x85:  # TUPLE1
                        stack[-1] = (stack[-1],)
                    elif op == 0x87:  # TUPLE3
                        last, middle = stack.pop(), stack.pop()
                        stack[-1] = (stack[-1], middle, last)
                    elif op == 0x4A:  # BININT
                        stack.append(int.from_bytes(buffer[pos : pos + 4], "little", signed=True))
                        pos += 4
                    elif op == 0x74:  # TUPLE
                        items, stack = stack, outer.pop()
                        stack.append(tuple(items))
                    elif op == 0x65:  # APPENDS
                        items, stack = stack, outer.pop()
                        if type(stack[-1]) is not list:
                            raise self._wrong(self._base + start, op, "a list", describe(stack[-1]))
                        stack[-1].extend(items)
                    elif op == 0x2E:  # STOP
                        return self._end(self._base + pos, stack, outer)
                    else:
                        break
                else:
                    op = 0
                self._at = self._base + pos
                if op:
                    self._rarer(self._base + start, op, stack)
            except IndexError:
                found = "an empty stack, or a memo slot not yet filled"
                raise self._wrong(self._base + start, op, "a value", found) from None
            except UnicodeDecodeError:
                raise self._wrong(self._base + start, op, "UTF-8 text", "other bytes") from None

    def _start(self) -> None:
        if self._size:
            self._refill(0)
        head = self._take(2) if self._size >= 2 else b""
        if not head.startswith(b"\x80") or not 2 <= head[1] <= 5:
            expected = "a pickle of protocol 2 to 5, which starts with 80 02 to 80 05"
            found = head.hex(" ") if head else f"{self._size} bytes"
            raise self._damaged(0, "this is no pickle that Paddle writes", expected=expected, found=found)
        self._protocol = head[1]

    def _end(self, at: int, stack: Stack, outer: list[Stack]) -> Any:
        if outer or len(stack) != 1:
            found = f"{len(stack):,} above {len(outer):,} open marks"
            raise self._damaged(at - 1, "opcode STOP", expected="one value", found=found)
        if at != self._size:
            raise self._damaged(at, "the file goes on after its end", found=f"{self._size - at:,} more bytes")
        return stack[0]

    def _view(self) -> tuple[bytes, int, int]:
        """The window, and where in it the next opcode starts and where no further one may."""
        at = self._at
        if self._frame_end:
            if at > self._frame_end:
                raise self._damaged(self._frame_end, "an opcode reaches over the end of its frame")
            if at == self._frame_end:
                self._frame_end = 0
        if at >= self._size:
            raise self._damaged(self._size, "the file ends before its last opcode", expected="STOP", found="nothing")
        if not (self._base <= at and (at + LOOKAHEAD < self._edge or at < self._edge == self._size)):
            self._refill(at)
        stop = self._edge if self._edge == self._size else self._edge - LOOKAHEAD
        if self._frame_end:
            stop = min(stop, self._frame_end)
        return self._buffer, at - self._base, stop - self._base

    def _refill(self, at: int) -> None:
        """Windows grow while the file is read on and shrink after a skipped payload, so that headers cost little."""
        self._window = min(self._window * 2, LAST_WINDOW) if self._base < at <= self._edge else FIRST_WINDOW
        edge = min(at + self._window, self._size)
        # Past the end there are zeros, which is no opcode: arguments can be read without asking whether they are there.
        self._buffer = self._read(at, edge - at) + (bytes(LOOKAHEAD) if edge == self._size else b"")
        self._base, self._edge = at, edge

    def _read(self, offset: int, length: int) -> bytes:
        data = self._reader.read_at(offset, length)
        if len(data) != length:
            found = f"its end after {offset + len(data):,}"
            raise self._damaged(offset, "the file became shorter", expected=f"{self._size:,} bytes", found=found)
        return data

    def _take(self, length: int) -> bytes:
        """The next ``length`` bytes, which the caller knows to be few."""
        offset = self._claim(length)
        start = offset - self._base
        if start >= 0 and self._at <= self._edge:
            return self._buffer[start : start + length]
        return self._read(offset, length)

    def _claim(self, length: int) -> int:
        """Pass over the next ``length`` bytes without reading them; where they start."""
        offset, end = self._at, self._frame_end or self._size
        if length > end - offset:
            holder = "frame" if self._frame_end else "file"
            found = f"{max(end - offset, 0):,} before the end of the {holder}"
            what = f"{describe_opcode(self._opcode)} needs more than there is"
            raise self._damaged(offset, what, expected=f"{length:,} bytes", found=found)
        self._at = offset + length
        return offset

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _rarer(self, at: int, op: int, stack: Stack) -> None:
        """The opcodes outside the inner loop; they may move on, end the window or open a frame."""
        self._opcode = op
        match op:
            case 0x43 | 0x42 | 0x8E | 0x96:  # SHORT_BINBYTES, BINBYTES, BINBYTES8, BYTEARRAY8
                length = self._number({0x43: 1, 0x42: 4}.get(op, 8))
                stack.append(Segment(self._claim(length), length))
            case 0x52:  # REDUCE
                args, function = stack.pop(), stack[-1]
                if type(function) is not Global or type(args) is not tuple:
                    raise self._wrong(at, op, "a function and a tuple", describe(function))
                stack[-1] = Call(function, args)
            case 0x71 | 0x72:  # BINPUT, LONG_BINPUT
                slot = self._number(1 if op == 0x71 else 4)
                if slot != len(self._memo):
                    raise self._wrong(at, op, f"memo slot {len(self._memo):,}, the next", f"slot {slot:,}")
                self._memo.append(stack[-1])
            case 0x5D:  # EMPTY_LIST
                stack.append([])
            case 0x58 | 0x8D:  # BINUNICODE, BINUNICODE8
                length = self._number(4 if op == 0x58 else 8)
                stack.append(self._text(length))
            case 0x73:  # SETITEM
                value, key = stack.pop(), stack.pop()
                if type(stack[-1]) is not Pairs:
                    raise self._wrong(at, op, "a dict, a key and a value", describe(stack[-1]))
                stack[-1].extend((key, value))
            case 0x61:  # APPEND
                value = stack.pop()
                if type(stack[-1]) is not list:
                    raise self._wrong(at, op, "a list", describe(stack[-1]))
                stack[-1].append(value)
            case 0x93:  # STACK_GLOBAL
                attribute, module = stack.pop(), stack.pop()
                stack.append(self._global(at, module, attribute))
            case 0x63:  # GLOBAL
                stack.append(self._global(at, self._line(), self._line()))
            case 0x95:  # FRAME
                self._frame(self._number(8))
            case 0x8A:  # LONG1
                length = self._number(1)
                if length > 16:
                    raise self._wrong(at, op, "an int of at most 16 bytes", f"one of {length}")
                stack.append(int.from_bytes(self._take(length), "little", signed=True))
            case 0x47:  # BINFLOAT
                stack.append(struct.unpack(">d", self._take(8))[0])
            case _:
                raise self._wrong(at, op, "an opcode of Paddle's files", "one that they never hold")

    def _text(self, length: int) -> PlacedText | LongText:
        if length <= LONGEST_TEXT:
            offset = self._at
            return PlacedText.at(offset, self._take(length))
        return LongText(self._claim(length), length)

    def _line(self) -> str:
        """One line of a GLOBAL: all that are allowed are far shorter than the part that is looked at."""
        start = self._at
        longest = min(LOOKAHEAD // 2, (self._frame_end or self._size) - start)
        line, newline, _ = self._take(longest).partition(b"\n")
        if not newline:
            raise self._damaged(start, "opcode GLOBAL", expected="a line with a name", found="no end of line")
        self._at = start + len(line) + 1
        return str(line, "utf-8")

    def _global(self, at: int, module: Any, attribute: Any) -> Global:
        known = None
        if isinstance(module, str) and isinstance(attribute, str):
            known = self._allowed.get((module, attribute))
        if known is None:
            listed = ", ".join(f"{module}.{attribute}" for module, attribute in sorted(self._allowed))
            spelled = f"{describe(module)} {describe(attribute)}"
            what = f"{describe_opcode(self._opcode)} names {spelled}, which no such file needs; nothing was run"
            raise self._damaged(at, what, expected=f"one of {listed}")
        return known

    def _frame(self, length: int) -> None:
        if self._protocol < 4 or self._frame_end:
            raise self._damaged(self._at, "opcode FRAME", expected="it from protocol 4 on, and not inside a frame")
        offset = self._claim(length)
        self._at, self._frame_end = offset, offset + length

    def _wrong(self, at: int, op: int, expected: str, found: str) -> DamagedFile:
        return self._damaged(at, describe_opcode(op), expected=expected, found=found)

    def _damaged(self, at: int, what: str, *, expected: str = "", found: str = "") -> DamagedFile:
        return damaged(self._name, f"byte {at:,}: {what}", expected=expected, found=found, code="pickle")
