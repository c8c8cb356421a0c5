"""Layout maps: Paddle's AOA statements, compiled to boxes of source tensors.

``parse_statements`` (or ``mapping_from_document``) makes a ``Program`` of text; ``compile_program`` makes output
tensors of a program, the source tensors and where their pieces begin. Reading files and moving values is left to
the verbs.
"""

from ckptcore.rules.mapping.compiler import CompiledMapping, compile_program
from ckptcore.rules.mapping.document import mapping_from_document
from ckptcore.rules.mapping.inverse import inverse_of
from ckptcore.rules.mapping.parser import parse_statements
from ckptcore.rules.mapping.pieces import PieceStarts, piece_starts
from ckptcore.rules.mapping.statements import Program

__all__ = [
    "CompiledMapping",
    "PieceStarts",
    "Program",
    "compile_program",
    "inverse_of",
    "mapping_from_document",
    "parse_statements",
    "piece_starts",
]
