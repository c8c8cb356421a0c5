"""The overview: each pipeline with what an operator asks first, what is wrong before what is fine.

A few pipelines are cards; many are rows of a table, with the same answers.
"""

from __future__ import annotations

import time

from ckptcore.dashboard.context import Context
from ckptcore.dashboard.frame import frame, pipeline_address, release_address, version_address
from ckptcore.dashboard.markup import Markup, joined, name_of, shown, tag
from ckptcore.dashboard.words import ago, day, duration, level_chip, level_mark, since, size, stage_mark, until, version
from ckptcore.rules.judging import Judgement, Level, judge
from ckptcore.rules.observed import DiskSeen, PipelineSeen, VersionSeen
from ckptcore.rules.observed_runs import RunSeen, current, last_failure

MOST_CARDS = 12
_STRIP = 36
_MOST_ALIASES = 4


def overview_page(context: Context) -> None:
    with frame(context, "", []) as live:
        live.add(lambda: _summary(context))
        live.add(lambda: _pipelines(context))


def judged(context: Context, seen: PipelineSeen, now: float) -> Judgement:
    """What there is to say of the pipeline, its runs included."""
    runs = context.refresher.runs(seen.watched)
    failed = last_failure(runs)
    return judge(seen, now, is_running=current(runs) is not None, failure="" if failed is None else failed.sentence)


def _summary(context: Context) -> Markup:
    snapshot, now = context.refresher.snapshot, time.time()
    levels = [judged(context, seen, now).level for seen in snapshot.pipelines]
    chips = [
        tag(
            "button",
            level_mark(level),
            tag("b", levels.count(level)),
            {Level.WRONG: " wrong", Level.WAITING: " waiting", Level.BUSY: " at work", Level.FINE: " fine"}.get(
                level, " empty"
            ),
            class_=f"filter level-{level}",
            data_filter=str(level),
        )
        for level in Level
        if level in levels
    ]
    find = (
        tag("input", type="search", placeholder="Find a pipeline ( / )", data_search=True, aria_label="Find a pipeline")
        if len(levels) > 1
        else None
    )
    unread = sum(seen.unread_steps for seen in snapshot.pipelines)
    reading = tag("span", f"{unread:,} steps are still to be looked at", class_="muted") if unread else None
    return tag("header", tag("h1", "Pipelines"), tag("div", *chips, class_="filters"), reading, find, class_="summary")


def _pipelines(context: Context) -> Markup:
    snapshot, now = context.refresher.snapshot, time.time()
    if not context.refresher.watched:
        return _empty("Nothing is watched here yet", "Name a ckpt.yaml, or --source and --registry directories.")
    if not snapshot.at:
        return _empty("Looking for the first time", "The disks are being listed; this takes a moment.")
    found = [(judged(context, seen, now), seen) for seen in snapshot.pipelines]
    found.sort(key=lambda pair: (pair[0].rank, pair[1].key))
    if len(found) > MOST_CARDS:
        return _table(context, found, now)
    return tag("div", *(_card(context, seen, verdict, now) for verdict, seen in found), class_="cards")


def _empty(title: str, text: str) -> Markup:
    return tag("section", tag("h2", title), tag("p", text), class_="card lone")


def _card(context: Context, seen: PipelineSeen, verdict: Judgement, now: float) -> Markup:
    key = seen.key
    head = tag(
        "header",
        tag("h2", tag("a", name_of(key), href=pipeline_address(key), class_="go")),
        level_chip(verdict.level),
    )
    return tag(
        "article",
        head,
        tag("p", shown(verdict.sentence), class_=f"sentence level-{verdict.level}"),
        facts(seen, now),
        strip(seen),
        alias_list(seen, now),
        run_line(context, seen, now),
        failure_line(context, seen, now),
        disk_line(seen, now),
        class_=f"card pipeline level-{verdict.level}",
        data_row=True,
        data_level=str(verdict.level),
        data_find=shown(f"{key} {seen.watched.pipeline} {verdict.sentence}".lower()),
    )


def facts(seen: PipelineSeen, now: float) -> Markup:
    """Newest version seen, complete and published, each with its age; how far publishing is behind; the stall clock."""
    waits, took = seen.waits_seconds(now), seen.took_seconds
    complete = seen.newest_complete
    if waits is not None and complete is not None and complete.changed_at is not None:
        lag = tag("span", "waits for ", since(complete.changed_at, now), class_="level-waiting")
    elif took is not None:
        lag = tag("span", f"{duration(took)} after it was written", class_="muted")
    else:
        lag = tag("span", "–", class_="muted")
    published = seen.newest_published
    rows = [
        _fact("newest", seen, seen.newest, None if seen.newest is None else seen.newest.seen_at, now),
        _fact("complete", seen, complete, None if complete is None else complete.seen_at, now),
        _fact("published", seen, published, None if published is None else published.published_at, now),
        tag("div", tag("dt", "lag"), tag("dd", lag)),
    ]
    quiet, limit = seen.quiet_seconds(now), seen.watched.stall_seconds
    if limit is not None and quiet is not None:
        is_late = quiet > limit
        clock = tag("span", since(now - quiet, now), f" of {_span(limit)}", class_="level-wrong" if is_late else "")
        rows.append(tag("div", tag("dt", "stall"), tag("dd", clock, bar(min(1.0, quiet / limit), is_late))))
    return tag("dl", *rows, class_="facts")


def _fact(word: str, seen: PipelineSeen, found: VersionSeen | None, at: float | None, now: float) -> Markup:
    if found is None:
        return tag("div", tag("dt", word), tag("dd", tag("span", "none", class_="muted")))
    link = tag(
        "a",
        stage_mark(found.stage),
        version(found.step, found.unique_id),
        href=version_address(seen.key, found.step, found.unique_id),
    )
    return tag("div", tag("dt", word), tag("dd", link, tag("span", ago(at, now), class_="age")))


def _span(seconds: float) -> str:
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.0f} s"


def strip(seen: PipelineSeen) -> Markup:
    """The last versions, the oldest left, one mark each."""
    marks = [
        tag(
            "a",
            stage_mark(each.stage),
            href=version_address(seen.key, each.step, each.unique_id),
            title=f"{version(each.step, each.unique_id)}: {each.stage}",
        )
        for each in reversed(seen.versions[:_STRIP])
    ]
    more = len(seen.versions) - len(marks)
    before = tag("span", f"{more:,} before", class_="muted") if more > 0 else None
    return tag("div", before, *marks, class_="strip") if marks else Markup("")


def alias_list(seen: PipelineSeen, now: float, most: int | None = _MOST_ALIASES) -> Markup:
    if not seen.aliases:
        return Markup("")
    rows = [
        tag(
            "div",
            tag("dt", name_of(each.alias)),
            tag(
                "dd",
                tag(
                    "a",
                    "→ ",
                    version(each.step, 0) if each.step is not None else shown(each.release),
                    href=release_address(seen.key, each.release),
                    title=shown(each.release),
                )
                if each.exists
                else tag("span", "→ a release that is gone", class_="level-wrong"),
                tag("span", ago(each.since, now), class_="age") if each.since else None,
            ),
        )
        for each in seen.aliases[:most]
    ]
    left = len(seen.aliases) - len(rows)
    if left > 0:
        rows.append(tag("div", tag("dt", ""), tag("dd", f"and {left} more", class_="muted")))
    return tag("dl", *rows, class_="facts aliases")


def run_line(context: Context, seen: PipelineSeen, now: float) -> Markup:
    """What is running, and how far it is."""
    run = current(context.refresher.runs(seen.watched))
    if run is None:
        return Markup("")
    done = run.progress
    what = tag("span", shown(run.name), class_="run-name")
    begun = since(run.started_at, now) if run.started_at else None
    if done is None:
        return tag("div", level_mark(Level.BUSY), what, tag("span", begun, class_="age"), class_="run")
    left = done.left_seconds(now)
    ends = tag("span", until(now + left, now), " left") if left is not None else None
    text = tag("span", shown(done.text), class_="muted")
    return tag(
        "div",
        level_mark(Level.BUSY),
        what,
        tag("span", f"{done.percent:.0f} %", class_="age"),
        bar(done.percent / 100),
        tag("div", text, ends, class_="under"),
        class_="run",
    )


def failure_line(context: Context, seen: PipelineSeen, now: float) -> Markup:
    failed = last_failure(context.refresher.runs(seen.watched))
    if failed is None:
        return Markup("")
    return tag("p", "Last failure ", ago(failed.ended_at, now), ": ", shown(failed.sentence), class_="failure")


def disk_line(seen: PipelineSeen, now: float) -> Markup:
    """What the releases take, what is free, and when it is full."""
    disk = seen.disk
    if disk is None:
        return Markup("")
    least = "" if seen.is_measured else "at least "
    used = (disk.total_bytes - disk.free_bytes) / disk.total_bytes if disk.total_bytes else 0.0
    return tag(
        "div",
        tag("span", f"{least}{size(seen.used_bytes)} used", title="by the releases of this name"),
        tag("span", f"{size(disk.free_bytes)} free", fills(disk, now), class_="muted"),
        bar(used, used > 0.9),
        class_="disk",
    )


def fills(disk: DiskSeen, now: float) -> Markup:
    at = disk.fills_up_at(now)
    if at is None or at - now > 3 * 365 * 86_400:
        return Markup("")
    class_ = "level-wrong" if at - now < 7 * 86_400 else ""
    return tag("span", f", full {day(at)}", class_=class_, title="if it grows as it did with the last releases")


def bar(share: float, is_wrong: bool = False) -> Markup:
    """A bar that is filled by the share."""
    share = min(1.0, max(0.0, share))
    drawn = tag("span", style=f"width:{share * 100:.1f}%")
    return tag("div", drawn, class_=f"meter{' level-wrong' if is_wrong else ''}", role="img", aria_label=f"{share:.0%}")


def _table(context: Context, found: list[tuple[Judgement, PipelineSeen]], now: float) -> Markup:
    heads = ["", "pipeline", "newest", "complete", "published", "lag", "alias", "run", "used", "what there is to say"]
    rows = [_row(context, seen, verdict, now) for verdict, seen in found]
    head = tag("thead", tag("tr", *(tag("th", text) for text in heads)))
    return tag("div", tag("table", head, tag("tbody", *rows), class_="grid pipelines"), class_="scroll")


def _row(context: Context, seen: PipelineSeen, verdict: Judgement, now: float) -> Markup:
    alias = next((each for each in seen.aliases if each.alias == "production"), next(iter(seen.aliases), None))
    named = (
        tag("span", name_of(alias.alias), " → ", version(alias.step, 0) if alias.step is not None else "?")
        if alias
        else tag("span", "–", class_="muted")
    )
    published = seen.newest_published
    complete = seen.newest_complete
    waits = seen.waits_seconds(now)
    lag = (
        since(complete.changed_at, now)
        if waits is not None and complete is not None and complete.changed_at is not None
        else tag("span", "–", class_="muted")
    )
    run = current(context.refresher.runs(seen.watched))
    return tag(
        "tr",
        tag("td", level_mark(verdict.level)),
        tag("td", tag("a", name_of(seen.key), href=pipeline_address(seen.key), class_="go")),
        _cell(seen, seen.newest, None if seen.newest is None else seen.newest.seen_at, now),
        _cell(seen, complete, None if complete is None else complete.seen_at, now),
        _cell(seen, published, None if published is None else published.published_at, now),
        tag("td", lag),
        tag("td", named),
        tag("td", _run_cell(run)),
        tag("td", size(seen.used_bytes), class_="number"),
        tag("td", shown(verdict.sentence), class_=f"sentence level-{verdict.level}", title=shown(verdict.sentence)),
        data_row=True,
        data_level=str(verdict.level),
        data_find=shown(f"{seen.key} {seen.watched.pipeline} {verdict.sentence}".lower()),
    )


def _cell(seen: PipelineSeen, found: VersionSeen | None, at: float | None, now: float) -> Markup:
    if found is None:
        return tag("td", tag("span", "–", class_="muted"))
    link = tag(
        "a",
        stage_mark(found.stage),
        "–" if found.step is None else found.step,
        href=version_address(seen.key, found.step, found.unique_id),
    )
    return tag("td", link, tag("span", ago(at, now), class_="age"), class_="version")


def _run_cell(run: RunSeen | None) -> Markup:
    if run is None:
        return tag("span", "–", class_="muted")
    if run.progress is None:
        return tag("span", shown(run.flow), class_="level-busy")
    return joined([tag("span", f"{run.progress.percent:.0f} %"), bar(run.progress.percent / 100)])
