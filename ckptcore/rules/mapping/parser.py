"""Text to statements: the grammar of Paddle 3.3.1's AOA statements.

Owns what can be judged from the text alone. Whether names exist and shapes fit is ``compiler``'s. Every program
that is accepted here is accepted by Paddle's parser; some that Paddle's macros swallow without a word are refused:
an attribute that has no effect, a name that is a word of the language, a third output of ``fused_ffn``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ckptcore.errors import MappingError
from ckptcore.rules.issues import Issue
from ckptcore.rules.mapping.lexer import StatementError, Token, TokenKind, tokens_of
from ckptcore.rules.mapping.statements import (
    NOTHING,
    AlongAxis,
    Cast,
    FusedFfn,
    FusedQkv,
    FusedQkvByRank,
    Operand,
    Operation,
    Permute,
    Program,
    Rename,
    Statement,
)

FLAGS = ("fused_qkv", "fused_qkv_old", "fused_ffn")
ATTRIBUTES = ("axis", "num_heads", "num_key_value_groups", "permute", "dtype", "src_dtype", "dst_dtype")
CAST_DTYPES = ("float16", "float32", "bfloat16")
"""The dtypes that Paddle 3.3.1 casts to."""

_OPTIMIZER_SUFFIXES = (".w_0", ".moment1_0", ".moment2_0", ".beta1_pow_acc_0", ".beta2_pow_acc_0")


def parse_statements(lines: Iterable[str]) -> Program:
    """The program that ``lines`` spell, one or more statements a line.

    Raises MappingError with an issue for every line that is no statement.
    """
    statements: list[Statement] = []
    issues: list[Issue] = []
    for number, line in enumerate(lines, start=1):
        parts = [part for part in line.splitlines() if part.strip()]
        for part in parts or [line]:
            try:
                statements.append(_statement(number, part.strip()))
            except StatementError as error:
                issues.append(Issue(f"statement {number} `{part.strip()}`", str(error), code="mapping-syntax"))
    if issues:
        raise MappingError(f"{len(issues)} layout statements cannot be understood", issues)
    return Program(tuple(statements))


def _statement(number: int, text: str) -> Statement:
    cursor = _Cursor(tokens_of(text))
    left = [*_operands(cursor)]
    while cursor.take("comma"):
        left += _operands(cursor)
    cursor.need("arrow", "`->`")
    right, flags, attributes = [*_operands(cursor)], [], {}
    while cursor.take("comma"):
        name = cursor.peek("name")
        if name is not None and name.text in FLAGS:
            cursor.need("name", "a flag")
            flags.append(name.text)
        elif name is not None and cursor.peek("equal", ahead=1):
            key, value = _attribute(cursor)
            if key in attributes:
                raise StatementError(f"attribute {key} is given twice")
            attributes[key] = value
        elif flags or attributes:
            raise StatementError("a name follows an attribute; names come first")
        else:
            right += _operands(cursor)
    if (rest := cursor.next) is not None:
        raise StatementError(f"unexpected {rest.text!r} at position {rest.position}")
    _check_targets(right)
    for side in (left, right):
        if len(side) > 1 and any(operand.name == NOTHING for operand in side):
            raise StatementError(f"{NOTHING} stands for no tensor and must be alone on its side")
    operation = _operation(left, right, flags, attributes)
    return Statement(number, text, tuple(left), tuple(right), operation)


class _Cursor:
    """Where the parser is in one statement's tokens."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def next(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def peek(self, kind: TokenKind, ahead: int = 0) -> Token | None:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) and self._tokens[at].kind == kind else None

    def take(self, kind: TokenKind) -> Token | None:
        token = self.peek(kind)
        if token is not None:
            self._at += 1
        return token

    def need(self, kind: TokenKind, meaning: str) -> Token:
        token = self.take(kind)
        if token is None:
            found = "the end" if self.next is None else f"{self.next.text!r} at position {self.next.position}"
            raise StatementError(f"expected {meaning}, found {found}")
        return token


def _operands(cursor: _Cursor) -> list[Operand]:
    """One name, or the names ``x_2, x_3`` that ``x[2:4]`` stands for."""
    name = cursor.need("name", "a tensor name").text
    if name in FLAGS or name in ATTRIBUTES:
        raise StatementError(f"{name} is a word of the language and cannot name a tensor")
    if not cursor.take("open"):
        is_transposed = name.endswith("^T")
        return [Operand(name.removesuffix("^T"), is_transposed)]
    start = int(cursor.need("number", "the first index").text)
    cursor.need("colon", "`:`")
    stop = int(cursor.need("number", "the index after the last").text)
    cursor.need("close", "`]`")
    if start >= stop:
        raise StatementError(f"{name}[{start}:{stop}] names nothing")
    if name.endswith("^T"):
        raise StatementError("^T cannot be combined with an array; transpose each tensor")
    return [Operand(f"{name}_{index}") for index in range(start, stop)]


def _attribute(cursor: _Cursor) -> tuple[str, int | str]:
    key = cursor.need("name", "an attribute").text
    if key not in ATTRIBUTES:
        raise StatementError(f"there is no attribute {key}: expected {', '.join(ATTRIBUTES)}")
    cursor.need("equal", "`=`")
    if number := cursor.take("number"):
        return key, int(number.text)
    return key, cursor.need("string", "a number or a quoted value").text[1:-1]


def _check_targets(right: list[Operand]) -> None:
    for operand in right:
        if operand.is_transposed:
            raise StatementError(
                f"{operand} is a view and cannot be assigned: expected the transpose on the left of `->`"
            )
        if "*" in operand.name:
            raise StatementError(f"{operand} on the right needs the target's names: expected `*` on the left only")
        if operand.name.endswith(_OPTIMIZER_SUFFIXES):
            raise StatementError(f"{operand} names an optimizer state; these follow their parameter by themselves")


def _operation(
    left: list[Operand], right: list[Operand], flags: list[str], attributes: dict[str, int | str]
) -> Operation:
    if len(flags) > 1:
        raise StatementError(f"more than one of {', '.join(FLAGS)}")
    if flags:
        return _fused(left, right, flags[0], attributes)
    has_one_each = len(left) == 1 and len(right) == 1 and not _may_be_many(left[0])
    match sorted(attributes):
        case []:
            if not has_one_each:
                raise StatementError("a split or a join needs axis=…")
            return Rename()
        case ["axis"]:
            if len(left) > 1 and len(right) > 1:
                raise StatementError("several names on both sides: expected one on the left or one on the right")
            return AlongAxis(_number(attributes, "axis"))
        case ["permute"] if has_one_each:
            return Permute(_order(attributes["permute"]))
        case ["dtype"] if has_one_each:
            return Cast(_cast_dtype(attributes, "dtype"))
        case ["dst_dtype", "src_dtype"] if has_one_each:
            return Cast(_cast_dtype(attributes, "dst_dtype"), _cast_dtype(attributes, "src_dtype"))
        case found if has_one_each:
            raise StatementError(
                f"one of axis, permute, dtype, or src_dtype with dst_dtype is possible; found {', '.join(found)}"
            )
        case found:
            raise StatementError(f"a split or a join takes axis alone; found {', '.join(found)}")


def _may_be_many(operand: Operand) -> bool:
    return "*" in operand.name


def _fused(left: list[Operand], right: list[Operand], flag: str, attributes: dict[str, int | str]) -> Operation:
    parts = 2 if flag == "fused_ffn" else 3
    forms = {(1, parts), (parts, 1)} if flag == "fused_qkv" else {(1, parts), (parts, 1), (1, 1)}
    if (len(left), len(right)) not in forms or any("*" in operand.name for operand in left):
        expected = " or ".join(f"{a} -> {b}" for a, b in sorted(forms))
        raise StatementError(f"{flag} maps {expected} names; found {len(left)} -> {len(right)}")
    if any(operand.name == NOTHING for operand in (*left, *right)):
        raise StatementError(f"{flag} needs a tensor on both sides")
    allowed = {"axis"} if flag == "fused_ffn" else {"axis", "num_heads", "num_key_value_groups"}
    if extra := sorted(attributes.keys() - allowed):
        raise StatementError(f"{flag} ignores {', '.join(extra)}")
    axis = _number(attributes, "axis") if "axis" in attributes else 1
    if flag == "fused_ffn":
        return FusedFfn(axis)
    heads, groups = _number(attributes, "num_heads"), _number(attributes, "num_key_value_groups")
    if heads < 1 or groups < 1 or heads % groups:
        raise StatementError(f"num_heads {heads} is no positive multiple of num_key_value_groups {groups}")
    return FusedQkv(heads, groups, axis) if flag == "fused_qkv" else FusedQkvByRank(heads, groups, axis)


def _number(attributes: dict[str, int | str], key: str) -> int:
    match attributes.get(key):
        case int(value):
            return value
        case None:
            raise StatementError(f"{key}=… is missing")
        case text:
            raise StatementError(f"{key} must be a number: found {text!r}")


def _cast_dtype(attributes: dict[str, int | str], key: str) -> str:
    match attributes[key]:
        case str(name) if name in CAST_DTYPES:
            return name
        case value:
            raise StatementError(f"{key} must be one of {', '.join(CAST_DTYPES)}: found {value!r}")


def _order(value: int | str) -> tuple[int, ...]:
    """The order that ``permute`` spells as a list of axes, each once."""
    problem = StatementError(f'permute must be a list of the axes, each once, such as "[1,0]": found {value!r}')
    if isinstance(value, int) or not value.startswith("["):
        raise problem
    try:
        order = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise problem from None
    if not isinstance(order, list) or not all(type(axis) is int for axis in order):
        raise problem
    if sorted(order) != list(range(len(order))):
        raise problem
    return tuple(order)
