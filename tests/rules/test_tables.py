"""Tables against Python's own sorting and searching."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.tables import PAGE_ROWS, Table, Wanted, reals, texts, wholes

NONE = math.nan


def table(rows: list[tuple[str, str, int, float]]) -> Table:
    made = Table(
        texts("key", "name", is_searched=True),
        texts("dtype", "dtype", is_searched=True),
        wholes("size", "size"),
        reals("norm", "norm"),
    )
    for row in rows:
        made.add(*row)
    return made


SOME = [("b.w", "float32", 7, 1.5), ("a.W", "bfloat16", 2**63, NONE), ("c", "float32", 0, -2.0)]


def keys(made: Table, wanted: Wanted) -> list[str]:
    return [made.value("key", row) for row in made.page(wanted).rows]


def test_rows_come_as_they_came() -> None:
    assert keys(table(SOME), Wanted()) == ["b.w", "a.W", "c"]
    assert keys(table(SOME), Wanted(is_descending=True)) == ["c", "a.W", "b.w"]


def test_sorted_by_a_column_and_none_last_either_way() -> None:
    made = table(SOME)
    assert keys(made, Wanted(sort="size")) == ["c", "b.w", "a.W"]
    assert keys(made, Wanted(sort="norm")) == ["c", "b.w", "a.W"]
    assert keys(made, Wanted(sort="norm", is_descending=True)) == ["b.w", "c", "a.W"]
    assert keys(made, Wanted(sort="no such column")) == ["b.w", "a.W", "c"]


def test_every_word_is_in_some_column_whatever_the_case() -> None:
    made = table(SOME)
    assert keys(made, Wanted(search="w")) == ["b.w", "a.W"]
    assert keys(made, Wanted(search=" W  FLOAT32 ")) == ["b.w"]
    assert keys(made, Wanted(search="a.w bfloat")) == ["a.W"]
    assert keys(made, Wanted(search=".*")) == []
    assert made.page(Wanted(search="nothing")).pages == 1


def test_a_page_too_far_is_the_last() -> None:
    made = table([(f"t{number}", "float32", number, 0.0) for number in range(2 * PAGE_ROWS + 1)])
    last = made.page(Wanted(page=99))
    assert (last.page, last.pages, last.found, last.first, list(last.rows)) == (2, 3, 101, 100, [100])
    assert made.page(Wanted(page=-1)).page == 0


def test_an_empty_table_has_one_empty_page() -> None:
    page = table([]).page(Wanted(sort="norm", search="x"))
    assert (list(page.rows), page.pages, page.found) == ([], 1, 0)


def test_the_same_column_once_more_turns_the_order_then_ends_it() -> None:
    wanted = Wanted(page=3).sorted_by("size")
    assert wanted == Wanted(sort="size")
    assert wanted.sorted_by("size") == Wanted(sort="size", is_descending=True)
    assert wanted.sorted_by("size").sorted_by("size") == Wanted()
    assert wanted.sorted_by("key") == Wanted(sort="key")


@given(st.lists(st.tuples(st.text(max_size=4), st.sampled_from(["x", "y"]), st.integers(0, 2**64 - 1), st.floats())))
def test_any_table_is_sorted_as_python_sorts(rows: list[tuple[str, str, int, float]]) -> None:
    made = table(rows)
    by_size = sorted(range(len(rows)), key=lambda row: rows[row][2])
    assert list(made.page(Wanted(sort="size")).rows) == by_size[:PAGE_ROWS]
    known = [row for row in range(len(rows)) if not math.isnan(rows[row][3])]
    by_norm = sorted(known, key=lambda row: rows[row][3])
    nones = [row for row in range(len(rows)) if math.isnan(rows[row][3])]
    assert list(made.page(Wanted(sort="norm")).rows) == (by_norm + nones)[:PAGE_ROWS]


def test_searching_after_sorting_keeps_the_order() -> None:
    rows = [(f"layer.{number}", "float32", random.Random(number).randrange(1000), 0.0) for number in range(300)]
    made = table(rows)
    fitting = [row for row in range(300) if "1" in rows[row][0]]
    expected = sorted(fitting, key=lambda row: rows[row][2])
    assert list(made.page(Wanted(search="1", sort="size")).rows) == expected[:PAGE_ROWS]
    assert list(made.page(Wanted(search="1", sort="size", page=1)).rows) == expected[PAGE_ROWS : 2 * PAGE_ROWS]
