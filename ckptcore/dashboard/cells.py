"""How the values of tables look: names, shapes, sizes, digests, and numbers that span many powers of ten."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ckptcore.dashboard.linking import Query
from ckptcore.dashboard.markup import Markup, name_of, shown, tag
from ckptcore.dashboard.words import size
from ckptcore.rules.tables import Table

_NONE = "–"


def key_link(query: Query, parameter: str) -> Callable[[Table, int], Markup]:
    """The tensor's name, which chooses it."""

    def cell(table: Table, row: int) -> Markup:
        key = table.value("key", row)
        address = query.address(**{parameter: key})
        return tag("a", name_of(key) if key else "(no name)", href=address, data_do=f"row:{row}", class_="go mono")

    return cell


def text_of(name: str) -> Callable[[Table, int], str]:
    return lambda table, row: shown(str(table.value(name, row)))


def count_of(name: str, *, hides_zero: bool = False) -> Callable[[Table, int], str]:
    def cell(table: Table, row: int) -> str:
        value = table.value(name, row)
        return "" if hides_zero and not value else f"{value:,}"

    return cell


def shape_of(table: Table, row: int) -> str:
    return written_shape(table.value("shape", row))


def written_shape(shape: Sequence[int]) -> str:
    """4,096 × 1,024; a single number has no axes."""
    return " × ".join(f"{extent:,}" for extent in shape) if shape else "scalar"


def size_of(table: Table, row: int) -> str:
    return size(table.value("size", row))


def real_of(name: str) -> Callable[[Table, int], Markup | str]:
    def cell(table: Table, row: int) -> Markup | str:
        value = table.value(name, row)
        return tag("span", _NONE, class_="muted") if math.isnan(value) else number(value)

    return cell


def number(value: float) -> str:
    """Four figures, and a power of ten where it is very large or small."""
    return f"{value:.4g}"


def digest(sha256: str, figures: int = 12) -> Markup:
    """The first figures of a digest; all of it is its title."""
    if not sha256:
        return tag("span", _NONE, class_="muted")
    return tag("code", f"{sha256[:figures]}{'…' if figures < len(sha256) else ''}", title=sha256)
