"""All versions of a pipeline over time, by stage, and how long each step of publishing took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from nicegui import ui

from ckptcore.dashboard.context import Context
from ckptcore.dashboard.durations import Durations, Row, durations_of
from ckptcore.dashboard.frame import frame, not_here, pipeline_address, release_address, version_address
from ckptcore.dashboard.markup import Markup, joined, name_of, shown, tag
from ckptcore.dashboard.words import (
    STAGE_WORDS,
    ago,
    day,
    duration,
    moment,
    muted,
    size,
    stage_chip,
    stage_mark,
    version,
)
from ckptcore.rules.observed import PipelineSeen, Stage, VersionSeen

ROWS_A_PAGE = 100
_MOST_TICKS = 1000
_DURATIONS_SECONDS = 5.0


def timeline_page(context: Context, key: str, query: Mapping[str, str]) -> None:
    if context.refresher.snapshot.pipeline(key) is None:
        not_here(context, "pipeline", key)
        return
    wanted = next((stage for stage in Stage if stage == query.get("stage")), None)
    page = query.get("page", "")
    number = int(page) if page.isdecimal() and len(page) < 10 else 1
    by_step = query.get("by") == "step"
    durations = Durations()

    def seen() -> PipelineSeen:
        return context.refresher.snapshot.pipeline(key) or PipelineSeen(context.refresher.watched[0])

    async def measure() -> None:
        """Ask the server for what was published since the last time; a page never waits for it."""
        nonlocal durations
        releases = seen().releases
        if releases and releases[0].name == durations.newest and not durations.why:
            return
        durations = await asyncio.to_thread(durations_of, seen(), context.refresher.api(seen().watched))
        live.refresh()

    with frame(context, f"{key}: timeline", [(key, pipeline_address(key)), ("timeline", None)]) as live:
        live.add(lambda: _chart(seen(), by_step))
        live.add(lambda: _durations(seen(), durations))
        live.add(lambda: _versions(seen(), wanted, number))
    ui.timer(_DURATIONS_SECONDS, measure)


def _chart(seen: PipelineSeen, by_step: bool) -> Markup:
    """A lane for each stage, a tick for each version."""
    shown_versions = [each for each in seen.versions if _place(each, by_step) is not None][:_MOST_TICKS]
    other = tag("a", "by time" if by_step else "by step", href="?" if by_step else "?by=step", class_="more")
    head = tag("h2", "Versions by step " if by_step else "Versions over time ", other)
    if not shown_versions:
        return tag("section", head, muted("There is no version yet."), class_="card")
    places = [_place(each, by_step) or 0.0 for each in shown_versions]
    low, high = min(places), max(places)
    wide = (high - low) or 1.0
    lanes = []
    for stage in Stage:
        ticks = [
            tag(
                "a",
                href=version_address(seen.key, each.step, each.unique_id),
                class_=f"tick stage-{stage}",
                style=f"left:{(place - low) / wide * 100:.2f}%",
                title=f"{version(each.step, each.unique_id)} · {STAGE_WORDS[stage]} · {moment(each.seen_at)} UTC",
            )
            for each, place in zip(shown_versions, places, strict=True)
            if each.stage is stage
        ]
        if ticks or stage in (Stage.WRITING, Stage.COMPLETE, Stage.PUBLISHED):
            label = tag("span", stage_mark(stage), STAGE_WORDS[stage], class_=f"lane-name stage-{stage}")
            count = tag("span", f"{seen.counts.get(stage, 0):,}", class_="muted number")
            lanes.append(tag("div", label, count, tag("div", *ticks, class_="track"), class_="lane"))
    marks = [low + wide * part / 4 for part in range(5)] if high > low else [low]
    texts = [f"{mark:.0f}" if by_step else _axis_text(mark, wide) for mark in marks]
    axis = tag(
        "div",
        tag("span"),
        tag("span"),
        tag("div", *(tag("span", text) for text in texts), class_="axis"),
        class_="lane",
    )
    left = len(seen.versions) - len(shown_versions)
    more = (
        tag("p", f"The newest {_MOST_TICKS:,}; {left:,} more are in the table.", class_="muted") if left > 0 else None
    )
    return tag("section", head, tag("div", *lanes, axis, class_="lanes"), more, class_="card")


def _place(each: VersionSeen, by_step: bool) -> float | None:
    return each.seen_at if not by_step else None if each.step is None else float(each.step)


def _axis_text(at: float, wide: float) -> str:
    return day(at) if wide > 4 * 86_400 else moment(at)[5:16]


def _durations(seen: PipelineSeen, durations: Durations) -> Markup:
    """For each of the last releases: from its last byte to its publication, and what the steps of its run took."""
    head = tag("h2", "How long publishing takes")
    if not seen.releases:
        return tag("section", head, muted("Nothing is published yet."), class_="card")
    steps = durations.names
    legend = joined(tag("span", tag("i", class_=f"step-{at}"), shown(step)) for at, step in enumerate(steps))
    longest = max((sum(row.steps.values()) for row in durations.rows.values()), default=0.0)
    rows = []
    for release in seen.releases[: durations.MOST]:
        row, address = durations.rows.get(release.name), release_address(seen.key, release.name)
        made = seen.version(release.step, release.unique_id)
        took = (
            release.published_at - made.changed_at
            if made is not None and made.changed_at is not None and not made.is_saved_again
            else None
        )
        rate = (
            release.size_bytes / row.steps["merge"]
            if row is not None and release.size_bytes and row.steps.get("merge", 0.0) > 0
            else None
        )
        rows.append(
            tag(
                "tr",
                tag(
                    "td",
                    tag("a", version(release.step, release.unique_id), href=address),
                ),
                tag("td", duration(took) if took is not None and took >= 0 else "", class_="number"),
                *(_run_cells(row, steps, longest, rate) if steps else ()),
            )
        )
    heads = ("version", "written to published", *(("steps of the run", "run", "merge") if steps else ()))
    table = tag(
        "table",
        tag("thead", tag("tr", *(_head(text) for text in heads))),
        tag("tbody", *rows),
        class_="grid durations",
    )
    why = (
        tag("p", f"The steps of the runs are not known: {shown(durations.why)}.", class_="muted")
        if durations.why
        else None
    )
    return tag(
        "section", head, why, tag("p", legend, class_="legend"), tag("div", table, class_="scroll"), class_="card"
    )


def _run_cells(row: Row | None, steps: Sequence[str], longest: float, rate: float | None) -> tuple[Markup, ...]:
    return (
        tag("td", None if row is None else _bar(row.steps, steps, longest), class_="steps"),
        tag("td", None if row is None else duration(sum(row.steps.values())), class_="number"),
        tag("td", f"{size(rate)}/s" if rate else None, class_="number"),
    )


def _bar(steps: Mapping[str, float], names: Sequence[str], longest: float) -> Markup:
    """The steps side by side, as long as they took beside the longest run."""
    parts = [
        tag(
            "span",
            class_=f"step-{at}",
            style=f"width:{steps[name] / longest * 100:.2f}%",
            title=f"{shown(name)}: {duration(steps[name])}",
        )
        for at, name in enumerate(names)
        if steps.get(name) and longest
    ]
    told = ", ".join(f"{shown(name)} {duration(steps[name])}" for name in steps)
    return tag("div", *parts, class_="stacked", title=told)


def _versions(seen: PipelineSeen, wanted: Stage | None, number: int) -> Markup:
    found = [each for each in seen.versions if wanted in (None, each.stage)]
    pages = max(1, -(-len(found) // ROWS_A_PAGE))
    number = min(max(1, number), pages)
    now = time.time()
    chips = [
        tag(
            "a",
            stage_mark(stage),
            tag("b", f"{seen.counts[stage]:,}"),
            f" {STAGE_WORDS[stage]}",
            href="?" if stage is wanted else f"?{urlencode({'stage': str(stage)})}",
            class_=f"filter stage-{stage}",
            aria_pressed="true" if stage is wanted else "false",
        )
        for stage in Stage
        if seen.counts.get(stage)
    ]
    rows = [_row(seen, each, now) for each in found[(number - 1) * ROWS_A_PAGE : number * ROWS_A_PAGE]]
    heads = ("version", "stage", "bytes", "files", "changed", "published", "release", "what is wrong")
    table = tag(
        "table",
        tag("thead", tag("tr", *(_head(text) for text in heads))),
        tag("tbody", *rows),
        class_="grid",
    )
    unread = (
        tag("p", f"{seen.unread_steps:,} steps are still to be looked at.", class_="muted")
        if seen.unread_steps
        else None
    )
    return tag(
        "section",
        tag("h2", "All versions"),
        tag("div", *chips, class_="filters"),
        unread,
        tag("div", table, class_="scroll") if rows else muted("None."),
        _pager(number, pages, wanted),
        class_="card",
    )


_NUMBERS = frozenset({"written to published", "run", "merge", "bytes", "files", "changed", "published"})


def _head(text: str) -> Markup:
    return tag("th", text, class_="number" if text in _NUMBERS else None)


def _row(seen: PipelineSeen, each: VersionSeen, now: float) -> Markup:
    address = version_address(seen.key, each.step, each.unique_id)
    release = (
        tag("a", name_of(each.release), href=release_address(seen.key, each.release), class_="mono")
        if each.release and each.stage is not Stage.RETIRED
        else tag("span", shown(each.release), class_="muted mono")
    )
    again = tag("span", "saved again", class_="tag plain") if each.is_saved_again else None
    return tag(
        "tr",
        tag("td", tag("a", version(each.step, each.unique_id), href=address, class_="go"), again),
        tag("td", stage_chip(each.stage)),
        tag("td", size(each.size_bytes) if each.size_bytes else "", class_="number"),
        tag("td", each.file_count or "", class_="number"),
        tag(
            "td", ago(each.changed_at, now) if each.changed_at else tag("span", "gone", class_="muted"), class_="number"
        ),
        tag("td", ago(each.published_at, now) if each.published_at else "", class_="number"),
        tag("td", release),
        tag("td", shown(each.reason), class_="sentence", title=shown(each.reason)),
        data_row=True,
    )


def _pager(number: int, pages: int, wanted: Stage | None) -> Markup:
    if pages == 1:
        return Markup("")

    def link(text: str, to: int) -> Markup:
        query: dict[str, object] = {"page": to} | ({} if wanted is None else {"stage": str(wanted)})
        return tag("a", text, href=f"?{urlencode(query)}", class_="more")

    return tag(
        "p",
        link("← newer", number - 1) if number > 1 else None,
        tag("span", f" {number} of {pages} ", class_="muted"),
        link("older →", number + 1) if number < pages else None,
        class_="pager",
    )
