"""A mapping file's content, already decoded, to a program. Decoding YAML or JSON is left to who reads the file."""

from __future__ import annotations

from ckptcore.errors import MappingError
from ckptcore.rules.mapping.inverse import inverse_of
from ckptcore.rules.mapping.parser import parse_statements
from ckptcore.rules.mapping.statements import Program

_IGNORED = "enable_traceback"
"""An option of Paddle's ``aoa_config`` that says how Paddle reports errors, not what the statements mean."""


def mapping_from_document(document: object) -> Program:
    """The program of a list of statements, or of an object with ``aoa_statements`` as Paddle's ``aoa_config``.

    ``aoa_config_reverse: true`` gives the inverse. Raises MappingError.
    """
    reverse: object = False
    lines = document
    if isinstance(document, dict):
        if unknown := sorted(str(key) for key in document.keys() - {"aoa_statements", "aoa_config_reverse", _IGNORED}):
            raise MappingError(f"unknown keys in the mapping: {', '.join(unknown)}")
        if "aoa_statements" not in document:
            raise MappingError("the mapping has no aoa_statements")
        lines = document["aoa_statements"]
        reverse = document.get("aoa_config_reverse", False)
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise MappingError("the mapping must be a list of statements, or an object with such a list as aoa_statements")
    if not isinstance(reverse, bool):
        raise MappingError(f"aoa_config_reverse must be true or false: found {reverse!r}")
    program = parse_statements(lines)
    return inverse_of(program) if reverse else program
