"""Which release each alias named from when to when, as the history of a name tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ckptcore.rules.release import Act


@dataclass(frozen=True, slots=True)
class Span:
    """An alias named a release from ``since``, in seconds since 1970, until ``until``, None where it still does."""

    alias: str
    release: str
    since: float
    until: float | None
    act: str
    user: str


def alias_spans(acts: Iterable[Act], seconds_of: Callable[[str], float | None]) -> tuple[Span, ...]:
    """The spans of every alias, sorted by alias and time. What leaves an alias where it was begins none.

    ``seconds_of`` reads the time of an act; one without a time is left out.
    """
    moves: dict[str, list[tuple[float, Act]]] = {}
    for act in acts:
        at = seconds_of(act.at)
        if not act.alias or at is None:
            continue
        held = moves.setdefault(act.alias, [])
        if not held or held[-1][1].release != act.release:
            held.append((at, act))
    spans = []
    for alias, held in sorted(moves.items()):
        ends: list[float | None] = [at for at, _ in held[1:]]
        for (at, act), until in zip(held, [*ends, None], strict=True):
            spans.append(Span(alias, act.release, at, until, act.act, act.user))
    return tuple(spans)
