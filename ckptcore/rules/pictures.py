"""Pictures as SVG text: what is there of each rank's file, and how long the steps of a run took.

Drawn for Prefect's interface, which shows them as images, and for the dashboard, which puts them into its page. The
colours are read on a light and on a dark ground alike, and shape says what colour says. Whatever a name holds is text
in the picture, never markup.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ckptcore.rules.layout import parse_rank_file_name
from ckptcore.rules.sizes import format_size
from ckptcore.rules.steps import StepTime
from ckptcore.rules.verification import FileState, VerificationReport

WIDTH = 960
_LEFT = 72
_MOST_CELLS = 2_048
_MOST_NAMED = 6
_MOST_CHARACTERS = 110
_TEXT = "#7b828d"
_LINE = 18
_GAP = 2


class CellState(StrEnum):
    """What is there of a file, the worst last."""

    PRESENT = "present"
    STALE = "stale"
    MISSING = "missing"
    DAMAGED = "damaged"


_ORDER = tuple(CellState)
_COLOURS = {
    CellState.PRESENT: "#2f9e63",
    CellState.STALE: "#b8860b",
    CellState.MISSING: "#cc6022",
    CellState.DAMAGED: "#d64550",
}
_BARS = ("#4c8dd6", "#2f9e63", "#b8860b", "#9b6dd0", "#c2561a", "#3a9aa5", "#d64550")


@dataclass(frozen=True, slots=True)
class Cell:
    """The file of one rank; ``size_bytes`` is None where it is not there."""

    rank: int
    name: str
    state: CellState
    size_bytes: int | None = None


def cells_of(report: VerificationReport) -> tuple[Cell, ...]:
    """A cell for each rank file of a verified version, by rank, those that another save left there included."""
    states = {
        FileState.SOUND: CellState.PRESENT,
        FileState.MISSING: CellState.MISSING,
        FileState.DAMAGED: CellState.DAMAGED,
    }
    cells = [
        Cell(parsed.rank, found.name, states[found.state], found.size_bytes)
        for found in report.files
        if (parsed := parse_rank_file_name(found.name)) is not None
    ]
    for note in report.notes:
        # The note's text begins with the file's name, which is one word.
        name = note.what.partition(" ")[0]
        if note.code == "stale-rank-file" and (parsed := parse_rank_file_name(name)) is not None:
            cells.append(Cell(parsed.rank, name, CellState.STALE))
    return tuple(sorted(cells, key=lambda cell: (cell.rank, cell.name)))


def rank_map(title: str, cells: Sequence[Cell], *, hints: bool = False) -> str:
    """The files of all ranks, one small field each, in rows by rank; the height of a present one is its size.

    Where there are more than some thousands, a field stands for several ranks and shows the worst of them. ``hints``
    gives each field its name and size under the pointer, which an image in Prefect cannot show and its database need
    not hold.
    """
    each = max(1, -(-len(cells) // _MOST_CELLS))
    groups = [cells[start : start + each] for start in range(0, len(cells), each)]
    columns = next(count for count in (8, 16, 32, 64) if count == 64 or len(groups) <= 2 * count)
    width = (WIDTH - _LEFT) / columns
    height = min(28.0, max(12.0, width))
    largest = max((cell.size_bytes or 0 for cell in cells), default=0)
    top = 2 * _LINE + 6
    fields = [
        _Field(group, _LEFT + index % columns * width, top + index // columns * height, width - _GAP, height - _GAP)
        for index, group in enumerate(groups)
    ]
    body = [_text(0, _LINE - 4, title, size=15), _text(0, 2 * _LINE - 2, _counted(cells, each))]
    for row in range(0, len(groups), columns):
        label = f"rank {groups[row][0].rank:,}"
        body.append(_text(_LEFT - 8, fields[row].y + fields[row].height - 2, label, anchor="end", size=11))
    for state in CellState:
        held = [field for field in fields if field.state is state]
        if held:
            body.append(_shape(state, "".join(field.path(largest) for field in held)))
    if hints:
        body += [field.hint() for field in fields]
    bottom = top + -(-len(groups) // columns) * height + _LINE
    for line in _named(cells):
        body.append(_text(0, bottom, line, size=12))
        bottom += _LINE
    return _svg(title, bottom, body)


@dataclass(frozen=True, slots=True)
class _Field:
    cells: Sequence[Cell]
    x: float
    y: float
    width: float
    height: float

    @property
    def state(self) -> CellState:
        return max((cell.state for cell in self.cells), key=_ORDER.index)

    def path(self, largest: int) -> str:
        """A bar as high as the size; a hollow box for what is stale, crossed for missing; a full one for damaged."""
        box = f"M{self.x:.4g} {self.y:.4g}h{self.width:.4g}v{self.height:.4g}h-{self.width:.4g}z"
        match self.state:
            case CellState.PRESENT:
                size = max(cell.size_bytes or 0 for cell in self.cells)
                bar = max(2.0, self.height * size / largest) if largest else 2.0
                top = self.y + self.height - bar
                return f"M{self.x:.4g} {top:.4g}h{self.width:.4g}v{bar:.4g}h-{self.width:.4g}z"
            case CellState.MISSING:
                slash = f"M{self.x:.4g} {self.y:.4g}l{self.width:.4g} {self.height:.4g}"
                return f"{box}{slash}m0 -{self.height:.4g}l-{self.width:.4g} {self.height:.4g}"
            case _:
                return box

    def hint(self) -> str:
        lines = []
        for cell in self.cells[:_MOST_NAMED]:
            size = "" if cell.size_bytes is None else f", {cell.size_bytes:,} bytes"
            lines.append(f"{cell.name}: {cell.state.value}{size}")
        if len(self.cells) > _MOST_NAMED:
            lines.append(f"… and {len(self.cells) - _MOST_NAMED:,} more")
        place = f'x="{self.x:.4g}" y="{self.y:.4g}" width="{self.width:.4g}" height="{self.height:.4g}"'
        return f'<rect {place} fill="none" pointer-events="all"><title>{_safe(chr(10).join(lines))}</title></rect>'


def _shape(state: CellState, path: str) -> str:
    colour = _COLOURS[state]
    if state in (CellState.PRESENT, CellState.DAMAGED):
        return f'<path fill="{colour}" d="{path}"/>'
    dashes = ' stroke-dasharray="3 2"' if state is CellState.STALE else ""
    return f'<path fill="none" stroke="{colour}" stroke-width="1.5"{dashes} d="{path}"/>'


def _counted(cells: Sequence[Cell], each: int) -> str:
    counts = {state: sum(1 for cell in cells if cell.state is state) for state in CellState}
    words = ", ".join(f"{count:,} {state.value}" for state, count in counts.items() if count) or "no rank file"
    size = sum(cell.size_bytes or 0 for cell in cells)
    shared = f"; {each:,} ranks a field, the worst of them shown" if each > 1 else ""
    return f"{words}; {format_size(size)} in all{shared}"


def _named(cells: Sequence[Cell]) -> Iterator[str]:
    """One line for each kind of trouble, with the first of its files."""
    for state in reversed(_ORDER[1:]):
        names = [cell.name for cell in cells if cell.state is state]
        if names:
            more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
            yield f"{state.value}: {', '.join(names[:_MOST_NAMED])}{more}"


def step_times(title: str, steps: Iterable[StepTime]) -> str:
    """When each verb worked and how long: a row for each, in the order in which they began."""
    steps = sorted(steps, key=lambda step: step.started_seconds)
    verbs = list(dict.fromkeys(step.verb for step in steps))
    end = max((step.started_seconds + step.seconds for step in steps), default=0.0) or 1.0
    space = WIDTH - _LEFT - 230
    body = [_text(0, _LINE - 4, title, size=15)]
    y = float(_LINE + 12)
    for index, verb in enumerate(verbs):
        mine = [step for step in steps if step.verb == verb]
        body.append(_text(_LEFT - 8, y + 14, verb, anchor="end"))
        for step in mine:
            x, width = _LEFT + space * step.started_seconds / end, max(1.5, space * step.seconds / end)
            colour = _COLOURS[CellState.DAMAGED] if step.refusal else _BARS[index % len(_BARS)]
            body.append(f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="18" rx="2" fill="{colour}"/>')
        body.append(_text(_LEFT + space + 12, y + 14, _spent(mine)))
        y += 26
    body.append(_text(_LEFT, y + 12, "0", size=11))
    body.append(_text(_LEFT + space, y + 12, _seconds(end), anchor="end", size=11))
    return _svg(title, y + _LINE, body)


def _spent(steps: Sequence[StepTime]) -> str:
    seconds, size = sum(step.own_seconds for step in steps), sum(step.size_bytes for step in steps)
    rate = f", {format_size(size)}, {format_size(size / seconds)}/s" if size and seconds else ""
    refusal = next((f", {step.refusal}" for step in steps if step.refusal), "")
    return f"{_seconds(seconds)}{rate}{refusal}"


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:,.0f} s"


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13) -> str:
    shown = text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
    place = f'x="{x:g}" y="{y:g}" font-size="{size}"'
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f"<text {place}{side}>{_safe(shown)}</text>"


def _safe(text: str) -> str:
    """The text as XML takes it: markup escaped, and what XML has no way to say replaced."""
    return html.escape("".join(c if c.isprintable() or c == "\n" else "�" for c in text))


def _svg(title: str, height: float, body: Iterable[str]) -> str:
    size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    look = f'font-family="system-ui, sans-serif" fill="{_TEXT}" role="img" aria-label="{_safe(title)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {look}>{"".join(body)}</svg>'
