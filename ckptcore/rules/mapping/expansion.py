"""Macros to names: ``$LAYER_ID``, ``$EXPERT_ID``, ``$LAYER_ID_OFFSET`` and ``*``.

Owns which names a pattern stands for, by looking at the names that exist. Arrays need no such look and are the
parser's. As in Paddle 3.3.1: the first name on the left says which ids there are, each macro's ids are taken on
their own (all layers times all experts), and every name of the statement must carry the same macros.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import product

from ckptcore.rules.mapping.lexer import StatementError
from ckptcore.rules.mapping.statements import Operand, Statement

_OFFSET = "$LAYER_ID_OFFSET"
_MACROS = ("$EXPERT_ID", "$LAYER_ID", _OFFSET)
_MACRO = re.compile(r"\$(?:EXPERT_ID|LAYER_ID_OFFSET|LAYER_ID)")

_ID = "[0-9]{1,18}"


def expanded(statement: Statement, sources: Collection[str], assigned: Iterable[str]) -> tuple[Statement, ...]:
    """The statements without macros that ``statement`` stands for, by ids ascending; none where no name fits.

    Ids are looked up among the ``sources``; where none of those fits, among the names ``assigned`` before, where
    Paddle does not look and drops the statement. Raises StatementError for macros that do not fit together and for
    a ``*`` that no source fits.
    """
    macros = _macros_of(statement)
    if not macros:
        return (_with_stars(statement, sources),)
    anchor = _anchor(statement, macros)
    ids = _ids(anchor, macros, sources) or _ids(anchor, macros, assigned)
    if ids is None:
        return ()
    shift = 1 if statement.is_inverted else -1
    found = []
    for values in product(*ids):
        chosen = dict(zip(macros, values, strict=True))
        left = tuple(_filled(operand, chosen, 0) for operand in statement.left)
        right = tuple(_filled(operand, chosen, shift) for operand in statement.right)
        found.append(_with_stars(statement.with_names(left, right), sources))
    return tuple(found)


def is_found(statement: Statement, names: Collection[str]) -> bool:
    """Whether some name fits the first one on the left of ``statement``."""
    macros = _macros_of(statement)
    if not macros:
        return statement.left[0].name in names
    anchor = _anchor(statement, macros)
    return any(anchor.fullmatch(name) for name in names)


def _macros_of(statement: Statement) -> tuple[str, ...]:
    """The macros of the statement, sorted. Every name must carry the same, each once."""
    each = []
    for operand in (*statement.left, *statement.right):
        found = _MACRO.findall(operand.name)
        if "$" in _MACRO.sub("", operand.name):
            raise StatementError(f"{operand} has an unknown macro: expected {', '.join(_MACROS)}")
        if len(set(found)) != len(found):
            raise StatementError(f"{operand} has a macro twice")
        each.append(tuple(sorted(found)))
    if len(set(each)) > 1:
        raise StatementError("every name of a statement must carry the same id macros")
    if _OFFSET in each[0] and "$LAYER_ID" in each[0]:
        raise StatementError(f"{_OFFSET} and $LAYER_ID cannot be combined")
    return each[0]


def _anchor(statement: Statement, macros: tuple[str, ...]) -> re.Pattern[str]:
    pattern = re.escape(statement.left[0].name)
    # The longest first: $LAYER_ID is the beginning of $LAYER_ID_OFFSET.
    for macro in sorted(macros, key=len, reverse=True):
        pattern = pattern.replace(re.escape(macro), f"(?P<{macro[1:]}>{_ID})")
    return re.compile(pattern)


def _ids(anchor: re.Pattern[str], macros: tuple[str, ...], names: Iterable[str]) -> list[list[int]] | None:
    """For each macro its ids, ascending; None where no name fits."""
    values: list[set[int]] = [set() for _ in macros]
    for name in names:
        if match := anchor.fullmatch(name):
            for found, macro in zip(values, macros, strict=True):
                found.add(int(match[macro[1:]]))
    return [sorted(found) for found in values] if values[0] else None


def _filled(operand: Operand, ids: dict[str, int], shift: int) -> Operand:
    def text(match: re.Match[str]) -> str:
        value = ids[match[0]] + (shift if match[0] == _OFFSET else 0)
        if value < 0:
            raise StatementError(f"{operand} has no layer before layer 0")
        return str(value)

    return Operand(_MACRO.sub(text, operand.name), operand.is_transposed)


def _with_stars(statement: Statement, sources: Collection[str]) -> Statement:
    if not any("*" in operand.name for operand in statement.left):
        return statement
    left = tuple(name for operand in statement.left for name in _starred(operand, sources))
    return statement.with_names(left, statement.right)


def _starred(operand: Operand, sources: Collection[str]) -> Iterator[Operand]:
    """The sources that the name fits with a number for ``*``, ascending by that number."""
    if "*" not in operand.name:
        yield operand
        return
    if operand.is_transposed:
        raise StatementError(f"{operand}: ^T cannot be combined with `*`; transpose each tensor, or the joined one")
    before, _, after = operand.name.partition("*")
    if "*" in after:
        raise StatementError(f"{operand} has more than one `*`")
    pattern = re.compile(f"{re.escape(before)}({_ID}){re.escape(after)}")
    found = sorted((int(match[1]), name) for name in sources if (match := pattern.fullmatch(name)))
    if not found:
        raise StatementError(f"no source tensor fits {operand}")
    for _, name in found:
        yield Operand(name)
