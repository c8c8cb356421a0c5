"""How numbers, times and stages are written on every page: one spelling for each."""

from __future__ import annotations

from datetime import UTC, datetime

from ckptcore.dashboard.markup import Markup, shown, tag
from ckptcore.rules.judging import Level
from ckptcore.rules.observed import Stage
from ckptcore.rules.sizes import format_duration, format_size

STAGE_WORDS = {
    Stage.WRITING: "being written",
    Stage.INCOMPLETE: "incomplete",
    Stage.DAMAGED: "damaged",
    Stage.COMPLETE: "complete",
    Stage.MERGING: "merging",
    Stage.PUBLISHED: "published",
    Stage.RETIRED: "retired",
}
LEVEL_WORDS = {
    Level.WRONG: "wrong",
    Level.WAITING: "waiting",
    Level.BUSY: "at work",
    Level.FINE: "fine",
    Level.EMPTY: "empty",
}


def ago(at: float | None, now: float) -> Markup:
    """How long ago, which the browser keeps counting; the time itself is its title."""
    if at is None:
        return tag("span", "never", class_="muted")
    return _time(at, "ago", f"{_short(now - at)} ago")


def since(at: float, now: float) -> Markup:
    """For how long, which the browser keeps counting."""
    return _time(at, "for", _short(now - at))


def until(at: float, now: float) -> Markup:
    return _time(at, "until", _short(at - now))


def day(at: float) -> str:
    """The date: 3 Mar 2027."""
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment.day} {moment:%b %Y}"


def moment(at: float | None) -> str:
    """Date and time in UTC."""
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _time(at: float, kind: str, text: str) -> Markup:
    stamp = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return tag("time", text, datetime=stamp, title=f"{moment(at)} UTC", data_at=f"{at:.0f}", data_kind=kind)


def _short(seconds: float) -> str:
    """One unit: 5 s, 12 min, 3 h, 4 d. The script in the browser says the same."""
    seconds = max(0.0, seconds)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size * (2 if unit == "d" else 1):
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(size_bytes: float) -> str:
    return format_size(size_bytes)


def duration(seconds: float) -> str:
    """With a figure behind the point below ten seconds, where whole seconds say little."""
    return f"{seconds:.1f} s" if seconds < 10 else format_duration(seconds)


def step(number: int | None) -> str:
    return "no step" if number is None else f"step\N{NO-BREAK SPACE}{number}"


def version(number: int | None, unique_id: int) -> str:
    """A version, its id only where it is not the usual 0."""
    return step(number) if unique_id == 0 and number is not None else f"{step(number)} · id {unique_id}"


_SHAPES: dict[Stage, str] = {
    # Each stage has a shape of its own, so that nobody needs the colours.
    Stage.WRITING: "M6 1.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 1 1 0-9M6 3.5v3l2 1.2",
    Stage.INCOMPLETE: "M6 1.5a4.5 4.5 0 0 1 4.5 4.5M10.5 6a4.5 4.5 0 0 1-4.5 4.5M1.5 6a4.5 4.5 0 0 1 2-3.7",
    Stage.DAMAGED: "M2.2 2.2l7.6 7.6M9.8 2.2l-7.6 7.6",
    Stage.COMPLETE: "M6 1.8a4.2 4.2 0 1 1 0 8.4a4.2 4.2 0 1 1 0-8.4",
    Stage.MERGING: "M2 3l4 3l4-3M2 7l4 3l4-3",
    Stage.PUBLISHED: "M1.8 6.4l2.9 2.9l5.5-6.4",
    Stage.RETIRED: "M2 6h8",
}


def muted(text: str) -> Markup:
    """What is said aside."""
    return tag("span", shown(text), class_="muted")


def stage_mark(stage: Stage) -> Markup:
    """The stage as a small picture."""
    drawn = tag("path", d=_SHAPES[stage])
    return tag(
        "svg",
        tag("title", STAGE_WORDS[stage]),
        drawn,
        class_=f"mark stage-{stage}",
        viewBox="0 0 12 12",
        width="12",
        height="12",
        role="img",
    )


def stage_chip(stage: Stage) -> Markup:
    """The stage as a picture and a word."""
    return tag("span", stage_mark(stage), STAGE_WORDS[stage], class_=f"chip stage-{stage}")


_LEVEL_SHAPES: dict[Level, str] = {
    Level.WRONG: "M6 1.2L11 10.4H1Z",
    Level.WAITING: "M6 1L11 6L6 11L1 6Z",
    Level.BUSY: "M2.5 1.5L10.5 6L2.5 10.5Z",
    Level.FINE: "M6 1.3a4.7 4.7 0 1 1 0 9.4a4.7 4.7 0 1 1 0-9.4",
    Level.EMPTY: "M2 2h8v8h-8Z",
}


def level_mark(level: Level) -> Markup:
    drawn = tag("path", d=_LEVEL_SHAPES[level])
    title = tag("title", LEVEL_WORDS[level])
    return tag(
        "svg", title, drawn, class_=f"mark level-{level}", viewBox="0 0 12 12", width="12", height="12", role="img"
    )


def level_chip(level: Level) -> Markup:
    return tag("span", level_mark(level), LEVEL_WORDS[level], class_=f"chip level-{level}")
