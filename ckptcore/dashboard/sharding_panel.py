"""Where the pieces of one tensor lie: drawn over its shape, and listed by rank."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ckptcore.dashboard.cells import written_shape
from ckptcore.dashboard.job_line import job_line
from ckptcore.dashboard.jobs import Job
from ckptcore.dashboard.markup import Markup, name_of, tag
from ckptcore.dashboard.results import PiecesRead
from ckptcore.rules.sharding_map import Holding, hue_of, sharding_map

_MOST_ROWS = 200


def sharding(key: str, job: Job[PiecesRead] | Job[Any] | None, absent: Collection[str]) -> Markup:
    """The panel for the chosen tensor; words where none is chosen."""
    title = tag("h2", "Sharding")
    if not key:
        hint = "Choose a tensor to see which rank holds which piece of it."
        return tag("section", title, tag("p", hint, class_="muted"), class_="card sharding-panel", id="sharding")
    name = tag("p", name_of(key), class_="mono chosen-name")
    if job is None or not job.is_done:
        line = job_line(job, "where its pieces lie")
        return tag("section", title, name, line, class_="card sharding-panel", id="sharding")
    read: PiecesRead = job.result
    drawn = sharding_map(read.shape, read.pieces, absent)
    facts = f"{read.dtype or 'dtype not recorded'}, {written_shape(read.shape)}"
    parts = [title, name, tag("p", facts, class_="muted"), Markup(drawn.svg)]
    if any(not holding.is_there for holding in drawn.holdings):
        parts.append(tag("p", "Dashed: the rank file is missing or damaged.", class_="small level-wrong"))
    parts += [tag("p", drawn.words, class_="muted small"), _table(drawn.holdings)]
    return tag("section", *parts, class_="card sharding-panel", id="sharding")


def _table(holdings: tuple[Holding, ...]) -> Markup:
    rows = [
        tag(
            "tr",
            tag("td", tag("span", holding.rank, class_="rank", style=f"--hue:{hue_of(holding.rank):.0f}")),
            tag("td", _place(holding), class_="mono"),
            tag("td", name_of(holding.piece.file), class_="mono" if holding.is_there else "mono level-wrong"),
            tag("td", ", ".join(map(str, holding.replicas[:8])) + (" …" if len(holding.replicas) > 8 else "")),
        )
        for holding in holdings[:_MOST_ROWS]
    ]
    more = len(holdings) - len(rows)
    if more > 0:
        rows.append(tag("tr", tag("td", f"and {more:,} more pieces", colspan=4, class_="muted")))
    heads = tag("tr", *(tag("th", text) for text in ("rank", "holds", "file", "replicas on")))
    return tag("div", tag("table", tag("thead", heads), tag("tbody", *rows), class_="grid"), class_="scroll tall")


def _place(holding: Holding) -> str:
    piece = holding.piece
    if piece.flat is None:
        return str(piece.box)
    return f"{piece.box} flattened {piece.flat[0]:,}:{piece.flat[1]:,}"
