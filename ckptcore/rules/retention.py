"""Which releases to keep: each rule keeps some, what nobody may lose is always kept, and the rest is dropped.

Newer means published later by the history, not by a clock: a clock that was set back neither reorders releases nor
makes a later one look older than an earlier one. Gathering and deleting are ``retaining``'s.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ckptcore.errors import InvalidRetention
from ckptcore.rules.release import Act

PRUNE = "prune"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True)
class KeepLast:
    """Keep the ``count`` releases that were published last."""

    count: int

    def __post_init__(self) -> None:
        _require_positive(self.count, "the number of releases to keep")

    def __str__(self) -> str:
        return f"one of the last {self.count}"


@dataclass(frozen=True, slots=True)
class KeepEvery:
    """Keep the releases whose training step is a multiple of ``steps``."""

    steps: int

    def __post_init__(self) -> None:
        _require_positive(self.steps, "the number of steps")

    def __str__(self) -> str:
        return f"every {self.steps} steps"


@dataclass(frozen=True, slots=True)
class KeepNewerThan:
    """Keep the releases that were published less than ``age_seconds`` ago."""

    age_seconds: float

    def __post_init__(self) -> None:
        _require_positive(self.age_seconds, "the age in seconds")

    def __str__(self) -> str:
        return f"newer than {format_age(self.age_seconds)}"


Rule = KeepLast | KeepEvery | KeepNewerThan


@dataclass(frozen=True, slots=True)
class ListedRelease:
    """An entry of ``releases/`` and who needs it; ``published_at`` in seconds since 1970.

    ``is_recognised`` is False for what no publish has made: it is never touched.
    """

    name: str
    published_at: float
    step: int | None = None
    unique_id: int | None = None
    aliases: tuple[str, ...] = ()
    is_pinned: bool = False
    is_leased: bool = False
    is_recognised: bool = True

    @property
    def holders(self) -> tuple[str, ...]:
        """Why no rule may drop it, empty where one may."""
        return (
            *(f"alias {alias}" for alias in self.aliases),
            *(["pinned"] if self.is_pinned else []),
            *(["leased"] if self.is_leased else []),
            *([] if self.is_recognised else ["not recognised"]),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """One release and everything that keeps it; nothing keeps what is dropped."""

    release: str
    reasons: tuple[str, ...]

    @property
    def is_kept(self) -> bool:
        return bool(self.reasons)

    def __str__(self) -> str:
        return f"keep  {self.release}  {', '.join(self.reasons)}" if self.reasons else f"drop  {self.release}"

    def to_json(self) -> dict[str, object]:
        return {"release": self.release, "keep": self.is_kept, "reasons": list(self.reasons)}


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The verdict on each release, the one published last first."""

    verdicts: tuple[Verdict, ...]

    @property
    def dropped(self) -> tuple[str, ...]:
        """What goes, the oldest first, so that a prune that is stopped leaves the newest."""
        return tuple(verdict.release for verdict in reversed(self.verdicts) if not verdict.is_kept)

    @property
    def digest(self) -> str:
        """Tells one set of releases that go from another."""
        return digest_of_dropped(self.dropped)

    def lines(self) -> tuple[str, ...]:
        kept = len(self.verdicts) - len(self.dropped)
        return (*map(str, self.verdicts), f"{kept} to keep, {len(self.dropped)} to drop")


def digest_of_dropped(releases: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(releases)).encode(errors="surrogatepass")).hexdigest()


def plan_retention(releases: Sequence[ListedRelease], rules: Sequence[Rule], now: float) -> RetentionPlan:
    """What to keep of ``releases``, given in the order in which they were published; ``now`` in seconds since 1970.

    A release is kept by any rule, and always while an alias names it, it is pinned or leased, or it is not recognised.
    Raises :class:`InvalidRetention` where there is no rule, which would drop all the others.
    """
    if not rules:
        raise InvalidRetention("no rule says what to keep: name at least one of last, every and newer than")
    reasons = {release.name: list(release.holders) for release in releases}
    recognised = [release for release in releases if release.is_recognised]
    for rule in rules:
        for name in _kept_by(rule, recognised, now):
            reasons[name].append(str(rule))
    return RetentionPlan(tuple(Verdict(release.name, tuple(reasons[release.name])) for release in reversed(releases)))


def last_published(history: Iterable[Act]) -> Mapping[str, Act]:
    """The last publication of each release that was not pruned since, in the order of those publications."""
    found: dict[str, Act] = {}
    for act in history:
        if act.act in ("publish", PRUNE):
            found.pop(act.release, None)
        if act.act == "publish":
            found[act.release] = act
    return found


def parse_age(text: str) -> float:
    """``90s``, ``30m``, ``12h``, ``7d`` or ``2w`` in seconds, more than 0. Raises ValueError with what is wrong."""
    match = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is not an age such as 90s, 30m, 12h, 7d or 2w")
    return float(int(match[1]) * _SECONDS[match[2]])


def format_age(seconds: float) -> str:
    """In the largest unit that divides it, up to days: ``7d``."""
    for unit in ("d", "h", "m"):
        if seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:g}s"


def _kept_by(rule: Rule, releases: Sequence[ListedRelease], now: float) -> Iterable[str]:
    match rule:
        case KeepLast(count):
            return [release.name for release in releases[-count:]]
        case KeepEvery(steps):
            return [release.name for release in releases if release.step is not None and release.step % steps == 0]
        case KeepNewerThan(age):
            return [name for name, time in _rising_times(releases) if now - time < age]


def _rising_times(releases: Sequence[ListedRelease]) -> Iterable[tuple[str, float]]:
    """Each release with its time, or that of an earlier one where a clock set back made it look older."""
    latest = float("-inf")
    for release in releases:
        latest = max(latest, release.published_at)
        yield release.name, latest


def _require_positive(value: float, what: str) -> None:
    if not value > 0:
        raise InvalidRetention(f"{what} must be more than 0, found {value}")
