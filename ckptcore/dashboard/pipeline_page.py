"""One pipeline: its answers at length, its versions and releases, its aliases, and what was done lately."""

from __future__ import annotations

import time

from ckptcore.dashboard.acting import Actions
from ckptcore.dashboard.context import Context
from ckptcore.dashboard.frame import frame, not_here, pipeline_address, release_address, version_address
from ckptcore.dashboard.markup import Markup, joined, name_of, shown, tag
from ckptcore.dashboard.overview import (
    alias_list,
    disk_line,
    facts,
    failure_line,
    judged,
    run_line,
    strip,
)
from ckptcore.dashboard.words import ago, level_chip, size, stage_chip, version
from ckptcore.rules.observed import PipelineSeen

_MOST_ROWS = 20


def pipeline_page(context: Context, key: str) -> None:
    if context.refresher.snapshot.at and context.refresher.snapshot.pipeline(key) is None:
        not_here(context, "pipeline", key)
        return

    def part(make: object) -> Markup:
        assert callable(make)
        seen = context.refresher.snapshot.pipeline(key)
        now = time.time()
        return tag("p", "Looking for the first time …", class_="muted") if seen is None else make(seen, now)

    with frame(context, key, [(key, None)]) as live:
        live.add(lambda: part(lambda seen, now: _head(context, seen, now)))
        Actions(context, key, live.person).buttons()
        live.add(lambda: part(lambda seen, now: _left(context, seen, now)), "two")


def _head(context: Context, seen: PipelineSeen, now: float) -> Markup:
    verdict = judged(context, seen, now)
    places = [("from", seen.watched.source), ("to", seen.watched.registry)]
    return tag(
        "header",
        tag("h1", name_of(seen.key), level_chip(verdict.level)),
        tag("p", shown(verdict.sentence), class_=f"sentence level-{verdict.level}"),
        tag(
            "p",
            joined((tag("span", f"{word} ", tag("code", shown(place))) for word, place in places if place), " "),
            class_="muted places",
        ),
        tag("p", tag("a", "Timeline", href=pipeline_address(seen.key, "timeline"), class_="more", data_timeline=True)),
        class_="page-head",
    )


def _left(context: Context, seen: PipelineSeen, now: float) -> Markup:
    troubles = [tag("p", shown(trouble), class_="failure") for trouble in seen.troubles[:10]]
    answers = tag(
        "section",
        tag("h2", "Now"),
        facts(seen, now),
        strip(seen),
        run_line(context, seen, now),
        failure_line(context, seen, now),
        *troubles,
        disk_line(seen, now),
        class_="card",
    )
    aliases = tag(
        "section", tag("h2", "Aliases"), alias_list(seen, now, most=None) or _none("No alias yet."), class_="card"
    )
    return joined([tag("div", answers, aliases), tag("div", _versions(seen, now), _releases(seen, now))])


def _none(text: str) -> Markup:
    return tag("p", text, class_="muted")


def _versions(seen: PipelineSeen, now: float) -> Markup:
    rows = [
        tag(
            "tr",
            tag(
                "td",
                tag(
                    "a",
                    version(each.step, each.unique_id),
                    href=version_address(seen.key, each.step, each.unique_id),
                    class_="go",
                ),
            ),
            tag("td", stage_chip(each.stage)),
            tag("td", size(each.size_bytes) if each.size_bytes else "", class_="number"),
            tag("td", ago(each.seen_at, now), class_="number"),
            tag("td", shown(each.reason), class_="sentence", title=shown(each.reason)),
            data_row=True,
        )
        for each in seen.versions[:_MOST_ROWS]
    ]
    if not rows:
        return tag("section", tag("h2", "Versions"), _none("There is no version yet."), class_="card")
    all_of_them = tag("a", f"All {len(seen.versions):,}", href=pipeline_address(seen.key, "timeline"), class_="more")
    table = tag("table", tag("tbody", *rows), class_="grid")
    return tag("section", tag("h2", "Versions ", all_of_them), tag("div", table, class_="scroll"), class_="card")


def _releases(seen: PipelineSeen, now: float) -> Markup:
    aliases: dict[str, list[str]] = {}
    for alias in seen.aliases:
        aliases.setdefault(alias.release, []).append(alias.alias)
    rows = [
        tag(
            "tr",
            tag(
                "td",
                tag("a", name_of(each.name), href=release_address(seen.key, each.name), class_="go mono"),
                *(tag("span", shown(alias), class_="tag") for alias in aliases.get(each.name, ())),
                tag("span", "pinned", class_="tag plain") if each.is_pinned else None,
            ),
            tag("td", "" if each.size_bytes is None else size(each.size_bytes), class_="number"),
            tag("td", ago(each.published_at, now), class_="number"),
            data_row=True,
        )
        for each in seen.releases[:_MOST_ROWS]
    ]
    if not rows:
        return tag("section", tag("h2", "Releases"), _none("Nothing is published yet."), class_="card")
    left = len(seen.releases) - len(rows)
    more = _none(f"and {left:,} before") if left > 0 else None
    table = tag("table", tag("tbody", *rows), class_="grid")
    return tag("section", tag("h2", "Releases"), tag("div", table, class_="scroll"), more, class_="card")
