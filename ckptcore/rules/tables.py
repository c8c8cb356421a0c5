"""A table of many rows in little memory: searched, sorted and cut into pages, so that a page shows 50 of 150,000.

Owns order, search and paging. What the columns hold is whoever's fills them; how a page looks is the dashboard's.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, replace
from typing import Any

PAGE_ROWS = 50
MOST_SEARCHED = 200
"""So many characters of a search are looked for, and no more."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a table is to be seen. ``sort`` names a column, "" the order in which the rows came; ``page`` is from 0.

    ``search`` are words; a row fits where each is in one of the columns that are searched, whatever the case.
    """

    search: str = ""
    sort: str = ""
    is_descending: bool = False
    page: int = 0

    def sorted_by(self, column: str) -> Wanted:
        """By that column; by the same once more the other way round, and then as the rows came."""
        if self.sort != column:
            return replace(self, sort=column, is_descending=False, page=0)
        if not self.is_descending:
            return replace(self, is_descending=True, page=0)
        return replace(self, sort="", is_descending=False, page=0)


@dataclass(frozen=True, slots=True)
class Page:
    """The positions of the rows of one page; ``page`` is within ``pages``, of which there is always one."""

    rows: Sequence[int]
    page: int
    pages: int
    found: int
    first: int
    """The number, from 0, of the page's first row among those found."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``values`` one a row. A NaN among numbers stands for none, and comes last either way."""

    name: str
    title: str
    values: MutableSequence[Any]
    is_number: bool = False
    is_searched: bool = False


def texts(name: str, title: str, *, is_searched: bool = False) -> Column:
    """A column of texts, or of other values that are compared with each other."""
    return Column(name, title, [], is_searched=is_searched)


def wholes(name: str, title: str) -> Column:
    """A column of whole numbers from 0 to 2**64 - 1."""
    return Column(name, title, array("Q"), is_number=True)


def reals(name: str, title: str) -> Column:
    """A column of numbers, NaN where there is none."""
    return Column(name, title, array("d"), is_number=True)


class Table:
    """Columns of equal length, which are added before the first page is asked for and not changed after."""

    def __init__(self, *columns: Column) -> None:
        self.columns = {column.name: column for column in columns}
        self._orders: dict[str, array[int]] = {}
        self._found: tuple[str, str, bool, Sequence[int]] | None = None

    def __len__(self) -> int:
        return min((len(column.values) for column in self.columns.values()), default=0)

    def add(self, *values: Any) -> None:
        """One more row, a value for each column."""
        for column, value in zip(self.columns.values(), values, strict=True):
            column.values.append(value)

    def value(self, name: str, row: int) -> Any:
        return self.columns[name].values[row]

    def page(self, wanted: Wanted) -> Page:
        """What is wanted; a column that does not exist sorts nothing, and a page too far is the last."""
        found = self._fitting(wanted)
        pages = max(1, -(-len(found) // PAGE_ROWS))
        page = min(max(0, wanted.page), pages - 1)
        first = page * PAGE_ROWS
        return Page(found[first : first + PAGE_ROWS], page, pages, len(found), first)

    def _fitting(self, wanted: Wanted) -> Sequence[int]:
        sort = wanted.sort if wanted.sort in self.columns else ""
        asked = (wanted.search.strip()[:MOST_SEARCHED], sort, wanted.is_descending)
        if self._found is not None and self._found[:3] == asked:
            return self._found[3]
        order = self._order(sort, is_descending=wanted.is_descending)
        fits = self._fits(asked[0])
        found: Sequence[int] = order if fits is None else array("L", filter(fits, order))
        self._found = (*asked, found)
        return found

    def _order(self, sort: str, *, is_descending: bool) -> Sequence[int]:
        if not sort:
            return range(len(self) - 1, -1, -1) if is_descending else range(len(self))
        values = self.columns[sort].values
        if sort not in self._orders:
            rows = range(len(self))
            if isinstance(values, array) and values.typecode == "d":
                known = [row for row in rows if not math.isnan(values[row])]
                self._orders[sort] = array("L", sorted(known, key=values.__getitem__))
            else:
                self._orders[sort] = array("L", sorted(rows, key=values.__getitem__))
        order: array[int] = self._orders[sort]
        # Those that have no number come last either way.
        none = array("L")
        if len(order) < len(self):
            none.extend(row for row in range(len(self)) if math.isnan(values[row]))
        return (order[::-1] if is_descending else order) + none

    def _fits(self, search: str) -> Callable[[int], bool] | None:
        patterns = [re.compile(re.escape(word), re.IGNORECASE) for word in search.split()]
        if not patterns:
            return None
        searched = [column.values for column in self.columns.values() if column.is_searched]

        def fits(row: int) -> bool:
            return all(any(pattern.search(values[row]) for values in searched) for pattern in patterns)

        return fits
