"""One release: what it was made from, what names it and named it, how it differs from others, and its values.

Opening it reads the manifest, the history and, for a comparison by digests, the headers of two releases. Values are
read when somebody asks, one reading at a time, and can be stopped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from nicegui import events, ui

from ckptcore.dashboard.acting import Actions
from ckptcore.dashboard.cells import count_of, digest, key_link, shape_of, size_of, text_of
from ckptcore.dashboard.changes_panel import against_field, changes_kind, counted, histogram
from ckptcore.dashboard.context import Context
from ckptcore.dashboard.frame import Live, frame, not_here, pipeline_address, release_address, version_address
from ckptcore.dashboard.job_line import Following, job_line
from ckptcore.dashboard.jobs import Job
from ckptcore.dashboard.linking import Query
from ckptcore.dashboard.markup import Markup, joined, name_of, tag
from ckptcore.dashboard.norm_line import Point
from ckptcore.dashboard.release_facts import aliases_over_time, files, history, made_from
from ckptcore.dashboard.results import ChangesRead, HealthRead, HistoryRead, ReleaseRead
from ckptcore.dashboard.run_links import run_address
from ckptcore.dashboard.table_panel import TELL_CLICK, Kind, Shown, TablePanel
from ckptcore.dashboard.values_panel import norms, values_head, values_kind
from ckptcore.dashboard.words import ago, size, version
from ckptcore.rules.observed import PipelineSeen, ReleaseSeen
from ckptcore.rules.tables import Table

MOST_BEFORE = 9
"""So many releases before this one are read at one press of a button."""
_MOST_POINTS = 60
_TELL_CHOICE = "(event) => emit('against:' + event.target.value)"


def release_page(context: Context, key: str, release: str, given: Mapping[str, str]) -> None:
    seen = context.refresher.snapshot.pipeline(key)
    if seen is None or seen.release(release) is None:
        not_here(context, "release", f"{release} of {key}")
        return
    with frame(context, release, [(key, pipeline_address(key)), (release, None)]) as live:
        _ReleasePage(context, key, release, live, given)


class _ReleasePage:
    """The page of one release in one browser."""

    def __init__(self, context: Context, key: str, release: str, live: Live, given: Mapping[str, str]) -> None:
        self._context, self._key, self._name, self._live = context, key, release, live
        self._query = Query(release_address(key, release), given)
        self._read: Job[ReleaseRead] | None = None
        self._history: Job[HistoryRead] | None = None
        self._compared: Job[ChangesRead] | None = None
        self._measured: Job[ChangesRead] | None = None
        self._health: Job[HealthRead] | None = None
        self._ask()
        live.add(self._head)
        actions = Actions(context, key, live.person)
        if actions.are_possible:
            with ui.element("div").classes("actions"):
                actions.button("Promote…", lambda: actions.promote(release))
                actions.button("Pin…", lambda: actions.pin(release))
        live.add(self._reading).on("click", self._clicked, js_handler=TELL_CLICK)
        live.add(self._facts, "two even")
        with (
            ui.element("section").classes("card").props('id="changes"'),
            ui.element("div").classes("two even narrow-left"),
        ):
            changes = live.add(self._changes).on("click", self._clicked_changes, js_handler=TELL_CLICK)
            changes.on("change", self._clicked_changes, js_handler=_TELL_CHOICE)
            with ui.element("div"):
                kind = changes_kind(self._query, self._changed)
                self._changed_table = TablePanel(kind, self._query, self._changed_tensors, self._choose_changed)
        with ui.element("section").classes("card").props('id="values"'), ui.element("div").classes("two even"):
            live.add(self._values).on("click", self._clicked_values, js_handler=TELL_CLICK)
            with ui.element("div"):
                kind = values_kind(self._query)
                self._health_table = TablePanel(
                    kind, self._query, self._health_tensors, self._choose_health, self._chosen
                )
        with ui.element("section").classes("card").props('id="tensors"'):
            live.add(self._tensors_title)
            self._table = TablePanel(self._kind(), self._query, self._tensors, self._choose_tensor, self._tensor)
        self._following = Following(self._jobs, self._refresh)

    # What is asked for.

    def _seen(self) -> tuple[PipelineSeen | None, ReleaseSeen | None]:
        seen = self._context.refresher.snapshot.pipeline(self._key)
        return seen, None if seen is None else seen.release(self._name)

    def _ask(self) -> None:
        """Begin what the page needs and nobody has to press a button for."""
        seen, found = self._seen()
        if seen is None or found is None:
            return
        place = {"registry": seen.watched.registry, "name": seen.watched.name}
        jobs = self._context.jobs
        self._read = jobs.ask({"what": "release", "release": self._name, **place}, ReleaseRead)
        if self._history is None or not self._history.is_open:
            # The history tells of nothing that does not show in these.
            stamp = [[each.alias, each.release, each.since] for each in seen.aliases]
            stamp += [[each.name, each.is_pinned, None] for each in seen.releases]
            self._history = jobs.ask({"what": "history", "stamp": stamp, **place}, HistoryRead)
        request = self._diff_request("comparison")
        self._compared = None if request is None else jobs.ask(request, ChangesRead)
        request = self._diff_request("diff")
        self._measured = None if request is None else jobs.known(request)
        self._health = jobs.known(self._health_request(seen, found))

    def _against(self) -> str:
        """The alias or release that was chosen, else the release that was published just before this one."""
        seen, found = self._seen()
        if seen is None or found is None:
            return ""
        chosen = self._query.get("against")
        if chosen and (seen.release(chosen) is not None or any(each.alias == chosen for each in seen.aliases)):
            return chosen
        before = [each for each in seen.releases if each.published_at < found.published_at]
        others = before or [each for each in seen.releases if each.name != self._name]
        return others[0].name if others else ""

    def _other(self) -> ReleaseSeen | None:
        """The release that this one is compared with."""
        seen, _ = self._seen()
        if seen is None:
            return None
        against = self._against()
        named = next((each.release for each in seen.aliases if each.alias == against), against)
        return seen.release(named) if named != self._name else None

    def _diff_request(self, what: str) -> dict[str, object] | None:
        (seen, found), other = self._seen(), self._other()
        if seen is None or found is None or other is None:
            return None
        place = {"registry": seen.watched.registry, "name": seen.watched.name}
        sides = {"a": other.name, "b": self._name, "stamp": [other.published_at, found.published_at]}
        return {"what": what, **place, **sides}

    def _health_request(self, seen: PipelineSeen, release: ReleaseSeen) -> dict[str, object]:
        place = {"registry": seen.watched.registry, "name": seen.watched.name}
        return {"what": "health", "release": release.name, "stamp": release.published_at, **place}

    def _jobs(self) -> tuple[Job[Any] | None, ...]:
        self._ask()
        return self._read, self._history, self._compared, self._measured, self._health, *self._healths()

    def _before(self) -> list[ReleaseSeen]:
        """The releases just before this one whose values were not read, as many as are read at once."""
        seen, found = self._seen()
        if seen is None or found is None:
            return []
        before = [each for each in seen.releases if each.published_at < found.published_at][:MOST_BEFORE]
        return [each for each in before if self._context.jobs.known(self._health_request(seen, each)) is None]

    def _healths(self) -> list[Job[HealthRead]]:
        """The readings of values of all releases of the name."""
        seen, _ = self._seen()
        if seen is None:
            return []
        known = (self._context.jobs.known(self._health_request(seen, each)) for each in seen.releases[:_MOST_POINTS])
        return [job for job in known if job is not None]

    def _refresh(self) -> None:
        self._live.refresh()
        for table in (self._changed_table, self._health_table, self._table):
            table.refresh()

    # What somebody does.

    def _clicked(self, event: events.GenericEventArguments) -> None:
        seen, _ = self._seen()
        if event.args == "again" and seen is not None:
            place = {"registry": seen.watched.registry, "name": seen.watched.name}
            self._context.jobs.forget({"what": "release", "release": self._name, **place})
            self._ask()
            self._refresh()

    def _clicked_changes(self, event: events.GenericEventArguments) -> None:
        verb, _, what = str(event.args).partition(":")
        diff, comparison = self._diff_request("diff"), self._diff_request("comparison")
        jobs = self._context.jobs
        if verb == "against":
            self._query.change(against=what)
        elif verb == "measure" and diff is not None:
            jobs.ask(diff, ChangesRead, reads_values=True)
        elif verb == "stop" and self._measured is not None:
            jobs.stop(self._measured)
        elif verb == "again" and diff is not None and comparison is not None:
            if self._measured is not None:
                jobs.forget(diff)
                jobs.ask(diff, ChangesRead, reads_values=True)
            else:
                jobs.forget(comparison)
        self._ask()
        self._refresh()

    def _clicked_values(self, event: events.GenericEventArguments) -> None:
        seen, found = self._seen()
        if seen is None or found is None:
            return
        jobs, request = self._context.jobs, self._health_request(seen, found)
        match event.args:
            case "health":
                jobs.ask(request, HealthRead, reads_values=True)
            case "again":
                jobs.forget(request)
                jobs.ask(request, HealthRead, reads_values=True)
            case "before":
                before = self._before()
                for release in (found, *before):
                    jobs.ask(self._health_request(seen, release), HealthRead, reads_values=True)
            case "stop":
                for job in self._healths():
                    jobs.stop(job)
        self._ask()
        self._refresh()

    def _chosen(self) -> str:
        return self._query.get("norm")

    def _choose_changed(self, row: int) -> None:
        self._choose(self._changed_tensors(), row)

    def _choose_health(self, row: int) -> None:
        self._choose(self._health_tensors(), row)

    def _choose(self, table: Table | None, row: int) -> None:
        assert table is not None
        key = table.value("key", row)
        self._query.change(norm="" if key == self._chosen() else key)
        self._refresh()

    def _tensor(self) -> str:
        return self._query.get("tensor")

    def _choose_tensor(self, row: int) -> None:
        table = self._tensors()
        assert table is not None
        self._query.change(tensor=table.value("key", row))
        self._refresh()

    # What is drawn.

    def _head(self) -> Markup:
        seen, found = self._seen()
        if seen is None or found is None:
            return tag("p", "It is gone by now: it was pruned.", class_="notice")
        now = time.time()
        named = [tag("span", name_of(each.alias), class_="tag") for each in seen.aliases if each.release == self._name]
        pinned = tag("span", "pinned", class_="tag plain") if found.is_pinned else None
        flow_run = "" if self._read is None or not self._read.is_done else self._read.result.head["flow_run"]
        link = run_address(seen.watched.server, flow_run)
        facts = [
            tag("span", "published ", ago(found.published_at, now)),
            None if found.size_bytes is None else tag("span", size(found.size_bytes)),
            tag(
                "span",
                "made from ",
                tag(
                    "a",
                    version(found.step, found.unique_id),
                    href=version_address(self._key, found.step, found.unique_id),
                    class_="more",
                ),
            ),
            tag("a", "its run in Prefect", href=link, class_="more", rel="noreferrer") if link else None,
        ]
        return tag(
            "header",
            tag("h1", name_of(self._name, class_="mono"), joined([*named, pinned])),
            tag("p", *facts, class_="muted places"),
            class_="page-head",
        )

    def _reading(self) -> Markup:
        return job_line(self._read, "the manifest")

    def _facts(self) -> Markup:
        now = time.time()
        left, right = list[Markup](), list[Markup]()
        if self._read is not None and self._read.is_done:
            left.append(made_from(self._read.result, self._key))
            left.append(files(self._read.result))
        if self._history is not None and self._history.is_done:
            right.append(aliases_over_time(self._history.result.acts, self._name, now))
            right.append(history(self._history.result.acts, self._name, now))
        return joined([tag("div", *left), tag("div", *right)])

    def _changed(self) -> ChangesRead | None:
        """What is known of the differences: with values where they were measured, else by digests."""
        for job in (self._measured, self._compared):
            if job is not None and job.is_done:
                return job.result
        return None

    def _changes(self) -> Markup:
        seen, found = self._seen()
        if seen is None or found is None:
            return Markup("")
        if len(seen.releases) < 2:
            return joined(
                [tag("h2", "Changes"), tag("p", "There is no other release to compare it with.", class_="muted")]
            )
        title = tag("h2", "Changes", against_field(seen, self._name, self._against()))
        other, read = self._other(), self._changed()
        if other is None:
            return joined([title, tag("p", "That names this very release.", class_="muted")])
        link = tag("a", name_of(other.name), href=release_address(self._key, other.name), class_="mono more")
        since = tag("p", "From ", link, " to this one:", class_="muted")
        if read is None:
            return joined([title, since, job_line(self._compared, "headers and digests")])
        parts = [title, since, counted(read)]
        if self._measured is not None and not self._measured.is_done:
            parts.append(job_line(self._measured, "the values of both", can_stop=True))
        elif read.head["to_read"]:
            told = (
                f"By how much is known once the values of {read.head['to_read']:,} tensors were read, of both releases."
            )
            button = tag("button", "Measure the changes", data_do="measure", class_="plain")
            parts.append(tag("p", told, class_="muted"))
            parts.append(tag("p", button, class_="buttons"))
        if read.head["is_measured"]:
            parts.append(histogram(read))
        return joined(parts)

    def _changed_tensors(self) -> Table | None:
        read = self._changed()
        return None if read is None or self._other() is None else read.tensors

    def _health_tensors(self) -> Table | None:
        return self._health.result.tensors if self._health is not None and self._health.is_done else None

    def _values(self) -> Markup:
        seen, found = self._seen()
        if seen is None or found is None:
            return Markup("")
        before = self._before()
        more = sum(each.size_bytes or 0 for each in before)
        offer = f"Read the {len(before)} before it too, {size(more)}" if before else ""
        open_count = sum(job.is_open for job in self._healths())
        head = values_head(self._health, found.size_bytes or 0, open_count, offer)
        if self._health is None or not self._health.is_done:
            return head
        chosen = self._chosen()
        points = [
            Point(
                version(each.step, each.unique_id),
                release_address(self._key, each.name),
                self._norm(seen, each, chosen),
                each.name == self._name,
            )
            for each in reversed(seen.releases[:_MOST_POINTS])
        ]
        return joined([head, norms(chosen, points)])

    def _norm(self, seen: PipelineSeen, release: ReleaseSeen, key: str) -> float | None:
        job = self._context.jobs.known(self._health_request(seen, release))
        if job is None or not job.is_done:
            return None
        read: HealthRead = job.result
        return read.norm_of(key) if key else read.norm

    def _tensors(self) -> Table | None:
        return self._read.result.tensors if self._read is not None and self._read.is_done else None

    def _tensors_title(self) -> Markup:
        table = self._tensors()
        if table is None:
            return tag("h2", "Tensors")
        total = size(sum(table.columns["size"].values))
        title = tag("h2", "Tensors", tag("span", f"{len(table):,}, {total}", class_="muted small"))
        chosen = self._tensor()
        keys = table.columns["key"].values
        if not chosen or chosen not in keys:
            return title
        sha256 = table.value("sha256", keys.index(chosen)).hex()
        facts = tag("p", name_of(chosen, class_="mono"), " SHA-256 ", digest(sha256, 64), class_="muted chosen-name")
        return joined([title, facts])

    def _kind(self) -> Kind:
        return Kind(
            "t",
            (
                Shown("key", key_link(self._query, "tensor")),
                Shown("dtype", text_of("dtype")),
                Shown("shape", shape_of, "nowrap"),
                Shown("size", size_of),
                Shown("file", text_of("file"), "mono nowrap wide"),
                Shown("sha256", _short_digest, "wide"),
                Shown("overflows", count_of("overflows", hides_zero=True), "wide"),
            ),
            "Find a tensor by name, dtype or file",
            "It holds no tensor.",
        )


def _short_digest(table: Table, row: int) -> Markup:
    return digest(table.value("sha256", row).hex())
