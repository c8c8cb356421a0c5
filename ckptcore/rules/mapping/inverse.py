"""A program read from right to left: ``aoa_config_reverse``.

Owns what undoes each operation. The last statement acts first; a split becomes a join and back.
"""

from __future__ import annotations

from ckptcore.errors import MappingError
from ckptcore.rules.issues import Issue
from ckptcore.rules.mapping.statements import Cast, Permute, Program, Statement


def inverse_of(program: Program) -> Program:
    """The program that undoes ``program``.

    Raises MappingError with an issue for every statement that has no inverse: a cast that names no source dtype,
    and ``*``, whose names are those of the other side.
    """
    issues: list[Issue] = []
    statements: list[Statement] = []
    for statement in reversed(program.statements):
        operation = statement.operation
        match operation:
            case Permute(order):
                operation = Permute(tuple(order.index(axis) for axis in range(len(order))))
            case Cast(_, ""):
                issues.append(
                    Issue(
                        statement.where,
                        "a cast is undone only where it says src_dtype and dst_dtype",
                        code="mapping-no-inverse",
                    )
                )
            case Cast(dtype, source):
                operation = Cast(source, dtype)
            case _:
                pass
        if any("*" in operand.name for operand in statement.left):
            issues.append(Issue(statement.where, "`*` has no inverse: name the tensors", code="mapping-no-inverse"))
        statements.append(
            Statement(
                statement.number, statement.text, statement.right, statement.left, operation, not statement.is_inverted
            )
        )
    if issues:
        raise MappingError(f"{len(issues)} layout statements cannot be reversed", issues)
    return Program(tuple(statements))
