"""Which release each alias named when, as bars over time, the bars of one release marked."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcore.dashboard.markup import Markup, shown, tag
from ckptcore.dashboard.words import day, moment
from ckptcore.rules.alias_spans import Span

_WIDTH, _ROW, _BAR = 480.0, 24.0, 14.0
_LEFT = 96.0
_MOST_ALIASES = 12
_MOST_CHARACTERS = 14


def spans_picture(spans: Sequence[Span], release: str, now: float) -> Markup:
    """The picture; nothing where no alias ever named anything."""
    aliases = sorted({span.alias for span in spans}, key=lambda alias: _rank(spans, alias, release))[:_MOST_ALIASES]
    if not aliases:
        return Markup("")
    begin = min(span.since for span in spans)
    length = max(1.0, now - begin)
    scale = (_WIDTH - _LEFT) / length
    body = list[Markup]()
    for row, alias in enumerate(aliases):
        y = row * _ROW
        label = shown(alias)
        if len(label) > _MOST_CHARACTERS:
            label = f"{label[: _MOST_CHARACTERS - 1]}…"
        body.append(tag("text", label, x=f"{_LEFT - 8:g}", y=f"{y + _BAR - 2:g}", text_anchor="end"))
        for span in (span for span in spans if span.alias == alias):
            x = _LEFT + (span.since - begin) * scale
            width = max(1.5, ((now if span.until is None else span.until) - span.since) * scale)
            until = "now" if span.until is None else moment(span.until)
            told = tag("title", f"{shown(alias)} → {shown(span.release)}, {moment(span.since)} to {until}")
            kind = "span ours" if span.release == release else "span"
            body.append(
                tag("rect", told, class_=kind, x=f"{x:.1f}", y=f"{y:g}", width=f"{width:.1f}", height=_BAR, rx=2)
            )
    bottom = len(aliases) * _ROW + 10
    body.append(tag("text", day(begin) if length > 2 * 86_400 else moment(begin), x=f"{_LEFT:g}", y=f"{bottom:g}"))
    body.append(tag("text", "now", x=f"{_WIDTH:g}", y=f"{bottom:g}", text_anchor="end"))
    view = f"0 0 {_WIDTH:g} {bottom + 4:g}"
    return tag("svg", *body, viewBox=view, class_="spans", role="img", aria_label="what each alias named when")


def _rank(spans: Sequence[Span], alias: str, release: str) -> tuple[bool, str]:
    """Aliases that ever named the release come first."""
    return not any(span.alias == alias and span.release == release for span in spans), alias
