"""A table on a page: searched, sorted and paged by the server, so that a browser holds 50 rows of however many.

Owns the field, the heads, the pages and what a click means. Which columns there are and how a cell looks is the
caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nicegui import events, ui

from ckptcore.dashboard.linking import Query
from ckptcore.dashboard.markup import Markup, joined, tag
from ckptcore.rules.tables import MOST_SEARCHED, Page, Table, Wanted

TELL_CLICK = """(event) => {
  const target = event.target.closest('[data-do]');
  if (!target || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  emit(target.dataset.do);
}"""
"""Emits what the clicked element is to do; a click for another tab stays one."""
_TELL_TEXT = "(event) => emit(event.target.value)"
_TELL_NOTHING = "(event) => { event.target.value = ''; emit(''); }"
_SEARCH_SECONDS = 0.2

Cell = Callable[[Table, int], object]


@dataclass(frozen=True, slots=True)
class Shown:
    """A column of a table as a page shows it; ``classes`` are those of its cells."""

    name: str
    cell: Cell
    classes: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a page shows of tables of one kind. ``letter`` begins the names of its parameters in the address."""

    letter: str
    columns: Sequence[Shown]
    search: str
    nothing: str
    """What to say where the table has no row at all."""


class TablePanel:
    """One table on one page. ``choose`` is told the row that somebody chose; ``chosen`` says which row that is."""

    def __init__(
        self,
        kind: Kind,
        query: Query,
        table: Callable[[], Table | None],
        choose: Callable[[int], None] | None = None,
        chosen: Callable[[], str] = str,
    ) -> None:
        self._kind, self._query, self._table = kind, query, table
        self._choose, self._chosen = choose, chosen
        letter = kind.letter
        sort = query.get(f"{letter}s")
        self.wanted = Wanted(
            query.get(f"{letter}q")[:MOST_SEARCHED],
            sort.removeprefix("-"),
            sort.startswith("-"),
            max(0, query.number(f"{letter}p") - 1),
        )
        self._field = ui.element("input").classes("find").on("input", self._search, js_handler=_TELL_TEXT,
            throttle=_SEARCH_SECONDS, leading_events=False)  # fmt: skip
        self._field.on("keydown.escape", self._search, js_handler=_TELL_NOTHING)
        self._field.props["type"] = "search"
        self._field.props["placeholder"] = self._field.props["aria-label"] = kind.search
        self._field.props["maxlength"] = MOST_SEARCHED
        self._field.props["data-find-in-table"] = True
        self._field.props["value"] = self.wanted.search
        self._rows = ui.html(self.drawn()).on("click", self._clicked, js_handler=TELL_CLICK)
        self._rows.classes("table-panel")

    def refresh(self) -> None:
        """Show what is there now."""
        content = self.drawn()
        if content != self._rows.content:
            self._rows.set_content(content)
        has_rows = bool(self._table())
        self._field.set_visibility(has_rows)

    def drawn(self) -> Markup:
        table = self._table()
        if table is None:
            return Markup("")
        if not len(table):
            return tag("p", self._kind.nothing, class_="muted")
        page = self._page(table)
        if not page.found:
            return tag("p", "Nothing fits “", tag("bdi", self.wanted.search), "”.", class_="muted nothing")
        heads = (self._head(table, shown) for shown in self._kind.columns)
        rows = (self._row(table, row) for row in page.rows)
        drawn = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="grid tensors")
        return joined([tag("div", drawn, class_="scroll"), self._pager(page, len(table))])

    def _page(self, table: Table) -> Page:
        return table.page(self.wanted)

    def _head(self, table: Table, shown: Shown) -> Markup:
        column = table.columns[shown.name]
        is_sorted = self.wanted.sort == shown.name
        mark = ("\N{BLACK DOWN-POINTING SMALL TRIANGLE}" if self.wanted.is_descending else
                "\N{BLACK UP-POINTING SMALL TRIANGLE}") if is_sorted else ""  # fmt: skip
        order = ("descending" if self.wanted.is_descending else "ascending") if is_sorted else None
        button = tag("button", column.title, tag("span", mark, class_="sorted"), data_do=f"sort:{shown.name}")
        return tag("th", button, class_=_classes(shown, column.is_number), aria_sort=order)

    def _row(self, table: Table, row: int) -> Markup:
        key = table.value("key", row)
        cells = [
            tag("td", shown.cell(table, row), class_=_classes(shown, table.columns[shown.name].is_number))
            for shown in self._kind.columns
        ]
        is_chosen = self._choose is not None and key == self._chosen()
        return tag("tr", *cells, data_row=True, class_="current" if is_chosen else None)

    def _pager(self, page: Page, rows: int) -> Markup:
        last = page.first + len(page.rows)
        of = f"{page.found:,}" if page.found == rows else f"{page.found:,} found of {rows:,}"
        told = tag("span", f"{page.first + 1:,}–{last:,} of {of}", class_="muted")
        if page.pages == 1:
            return tag("div", told, class_="pager")
        ways = [
            ("first", "«", 0, page.page > 0),
            ("previous", "‹", page.page - 1, page.page > 0),
            ("next", "›", page.page + 1, page.page + 1 < page.pages),
            ("last", "»", page.pages - 1, page.page + 1 < page.pages),
        ]
        buttons = [
            tag(
                "button",
                sign,
                data_do=f"page:{to}",
                data_page=word,
                disabled=not is_open,
                class_="quiet",
                title=f"{word} page",
                aria_label=f"{word} page",
            )
            for word, sign, to, is_open in ways
        ]
        return tag("div", told, tag("span", *buttons), class_="pager")

    def _clicked(self, event: events.GenericEventArguments) -> None:
        verb, _, what = str(event.args).partition(":")
        if verb == "sort" and what in {shown.name for shown in self._kind.columns}:
            self._want(self.wanted.sorted_by(what))
        elif verb == "page" and what.isascii() and what.isdecimal() and len(what) < 10:
            self._want(Wanted(self.wanted.search, self.wanted.sort, self.wanted.is_descending, int(what)))
        elif verb == "row" and what.isascii() and what.isdecimal() and len(what) < 10 and self._choose is not None:
            table = self._table()
            if table is not None and int(what) < len(table):
                self._choose(int(what))
                self.refresh()

    def _search(self, event: events.GenericEventArguments) -> None:
        text = str(event.args)[:MOST_SEARCHED]
        if text != self.wanted.search:
            self._want(Wanted(text, self.wanted.sort, self.wanted.is_descending))

    def _want(self, wanted: Wanted) -> None:
        self.wanted = wanted
        letter = self._kind.letter
        sort = f"{'-' if wanted.is_descending else ''}{wanted.sort}"
        table = self._table()
        page = 0 if table is None else self._page(table).page
        sorting = sort if wanted.sort else ""
        self._query.change(
            **{f"{letter}q": wanted.search, f"{letter}s": sorting, f"{letter}p": page + 1 if page else 0}
        )
        self.refresh()


def _classes(shown: Shown, is_number: bool) -> str | None:
    return " ".join(filter(None, [shown.classes, "number" if is_number else ""])) or None
