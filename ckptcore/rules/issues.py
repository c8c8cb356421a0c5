"""One finding of a check: what is wrong, where, what was expected and what was found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Issue:
    """One finding. ``code`` is stable and greppable; the other fields are for people.

    ``where`` names the file, tensor or rank; ``expected`` and ``found`` are empty where the pair
    would say nothing that ``what`` does not.
    """

    where: str
    what: str
    expected: str = ""
    found: str = ""
    code: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        match (self.expected, self.found):
            case ("", ""):
                return text
            case (expected, ""):
                return f"{text}: expected {expected}"
            case ("", found):
                return f"{text}: found {found}"
            case (expected, found):
                return f"{text}: expected {expected}, found {found}"

    def to_json(self) -> dict[str, str]:
        """The finding as a JSON object, its one-line text under ``text``."""
        return {
            "code": self.code,
            "where": self.where,
            "what": self.what,
            "expected": self.expected,
            "found": self.found,
            "text": str(self),
        }


def in_order(issues: Iterable[Issue]) -> tuple[Issue, ...]:
    """The issues sorted and without repeats, so that a report never depends on listing order."""
    return tuple(sorted(set(issues)))
