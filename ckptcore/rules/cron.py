"""Cron lines of five fields: what is wrong in one, judged without a clock.

What is accepted is a part of what Prefect 3.9.1 takes (croniter 6): values, ranges, steps and lists, names of months
and days, `L`, `n#k` and `Ln`; and only what some day is true. Schedules are refused here, where the line of the file is
known, and not by the server, when half a pipeline is on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/([0-9]{1,3}))?", re.ASCII)
_NTH = re.compile(r"(\w+)#([1-5])", re.ASCII)
_LAST = re.compile(r"l([0-7])")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()

    def value(self, text: str) -> int | None:
        if text in self.names:
            return self.names.index(text) + self.least
        number = int(text) if text.isdigit() and len(text) <= 2 else -1
        return number if self.least <= number <= self.most else None

    def values(self, text: str) -> set[int] | None:
        """The values that a field stands for, None where it is wrong."""
        found: set[int] = set()
        for part in text.split(","):
            match = _PART.fullmatch(part)
            if match is None:
                return None
            first, last, step = match.groups()
            low = self.least if first is None else self.value(first)
            # As in croniter, a step after one value goes on to the end.
            high = low if first and not (last or step) else self.most if last is None else self.value(last)
            if low is None or high is None or (step is not None and not 1 <= int(step) <= self.most):
                return None
            if low > high or (last is not None and low == high):
                found |= {*range(self.least, self.most + 1)}  # over the end: more than it stands for, never less
            else:
                found |= {*range(low, high + 1, int(step or 1))}
        return found


_MINUTE, _HOUR = _Field("minute", 0, 59), _Field("hour", 0, 23)
_DAY, _MONTH = _Field("day of the month", 1, 31), _Field("month", 1, 12, _MONTHS)
_WEEKDAY = _Field("day of the week", 0, 7, _DAYS)


def cron_mistake(text: str) -> str | None:
    """What is wrong in a cron line of five fields, None where nothing is."""
    fields = text.lower().split()
    if len(fields) != 5:
        return f"has {len(fields)} fields instead of five"
    for field, part in zip((_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY), fields, strict=True):
        if not (field.values(part) or _is_special(field, part)):
            names = f", or {field.names[0]} to {field.names[-1]}" if field.names else ""
            return f"its {field.name} is {part!r}; expected {field.least} to {field.most}{names}, or *"
    _, _, day, month, weekday = fields
    days, months = _DAY.values(day), _MONTH.values(month)
    if weekday in ("*", "?") and days and months and all(_DAYS_OF_MONTH[each - 1] < min(days) for each in months):
        return f"no month that it names has a day {min(days)}"
    if day not in ("*", "?") and weekday not in ("*", "?") and _WEEKDAY.values(weekday) is None:
        return f"it names both a day of the month and {weekday!r}"  # for which croniter finds no date
    return None


def _is_special(field: _Field, part: str) -> bool:
    if field is _DAY:
        return part in ("?", "l")
    if field is not _WEEKDAY:
        return False
    nth = _NTH.fullmatch(part)
    return part == "?" or _LAST.fullmatch(part) is not None or (nth is not None and field.value(nth[1]) is not None)
