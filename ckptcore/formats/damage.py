"""How a format says that a file's bytes are not what they should be: one finding as a :class:`DamagedFile`."""

from __future__ import annotations

from ckptcore.errors import DamagedFile
from ckptcore.rules.issues import Issue


def damaged(where: str, what: str, *, expected: str = "", found: str = "", code: str) -> DamagedFile:
    """The refusal of file ``where`` for one reason; where a check finds several, it raises them together itself."""
    return DamagedFile(f"{where} cannot be read", [Issue(where, what, expected, found, code)])
