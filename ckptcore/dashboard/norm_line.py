"""A norm from release to release, as a line: of all tensors together, or of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptcore.dashboard.cells import number
from ckptcore.dashboard.markup import Markup, tag

_WIDTH, _HEIGHT, _MARGIN = 480.0, 120.0, 14.0


@dataclass(frozen=True, slots=True)
class Point:
    """One release: what it is called, where its page is, and its norm, None where that is not known."""

    label: str
    address: str
    norm: float | None
    is_here: bool = False


def norm_line(points: Sequence[Point]) -> Markup:
    """The line through the releases, the oldest left; words where too few of their norms are known."""
    known = [(place, point) for place, point in enumerate(points) if point.norm is not None]
    if len(known) < 2:
        hint = "Read the values of more releases to see how the norm moves from one to the next."
        return tag("p", hint, class_="muted small")
    norms = [point.norm for _, point in known if point.norm is not None]
    low, high = min(norms), max(norms)
    room = (high - low) or abs(high) or 1.0
    step = (_WIDTH - 2 * _MARGIN) / max(1, len(points) - 1)
    places = [
        (_MARGIN + place * step, _MARGIN + (_HEIGHT - 2 * _MARGIN) * (high - (point.norm or 0.0)) / room, point)
        for place, point in known
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    dots = [
        tag(
            "a",
            tag(
                "circle",
                tag("title", f"{point.label}: {point.norm:.6g}"),
                cx=f"{x:.1f}",
                cy=f"{y:.1f}",
                r=5 if point.is_here else 3.5,
                class_="here" if point.is_here else None,
            ),
            href=point.address,
        )
        for x, y, point in places
    ]
    drawn = tag("polyline", points=line)
    view = f"0 0 {_WIDTH:g} {_HEIGHT:g}"
    picture = tag(
        "svg", drawn, *dots, viewBox=view, class_="norms", role="img", aria_label="norm from release to release"
    )
    ends = tag(
        "p",
        tag("span", f"{number(norms[0])} in {known[0][1].label}"),
        tag("span", f"{number(norms[-1])} in {known[-1][1].label}"),
        class_="muted small apart",
    )
    return tag("div", picture, ends)
