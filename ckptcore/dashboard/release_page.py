"""One release: what it was made from, what names it and named it, how it differs from others, and its values.

What of it is read, and when, is ``release_asking``'s.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from nicegui import events, ui

from ckptcore.dashboard.acting import Actions
from ckptcore.dashboard.cells import count_of, digest, key_link, shape_of, size_of, text_of
from ckptcore.dashboard.changes_panel import against_field, changes_kind, counted, histogram
from ckptcore.dashboard.context import Context
from ckptcore.dashboard.frame import Live, frame, not_here, pipeline_address, release_address, version_address
from ckptcore.dashboard.job_line import Following, job_line
from ckptcore.dashboard.jobs import result_of
from ckptcore.dashboard.linking import Query
from ckptcore.dashboard.markup import Markup, joined, name_of, tag
from ckptcore.dashboard.norm_line import Point
from ckptcore.dashboard.release_asking import MOST_POINTS, AskedOfRelease
from ckptcore.dashboard.release_facts import aliases_over_time, files, history, made_from
from ckptcore.dashboard.run_links import run_address
from ckptcore.dashboard.table_panel import TELL_CLICK, Kind, Shown, TablePanel
from ckptcore.dashboard.values_panel import norms, values_head, values_kind
from ckptcore.dashboard.words import ago, size, version
from ckptcore.rules.tables import Table

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
        self._asked = AskedOfRelease(context, key, release, self._query)
        live.add(self._head)
        actions = Actions(context, key, live.person)
        if actions.are_possible:
            with ui.element("div").classes("actions"):
                actions.button("Promote…", lambda: actions.promote(release))
                actions.button("Pin…", lambda: actions.pin(release))
        live.add(self._reading).on("click", self._clicked, js_handler=TELL_CLICK)
        live.add(self._facts, "two even").on("click", self._clicked_facts, js_handler=TELL_CLICK)
        with (
            ui.element("section").classes("card").props('id="changes"'),
            ui.element("div").classes("two even narrow-left"),
        ):
            changes = live.add(self._changes).on("click", self._clicked_changes, js_handler=TELL_CLICK)
            changes.on("change", self._clicked_changes, js_handler=_TELL_CHOICE)
            with ui.element("div"):
                kind = changes_kind(self._query, self._asked.changed)
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
        self._following = Following(self._asked.jobs, self._refresh)

    def _refresh(self) -> None:
        self._live.refresh()
        for table in (self._changed_table, self._health_table, self._table):
            table.refresh()

    # What somebody does.

    def _clicked(self, event: events.GenericEventArguments) -> None:
        if event.args == "again":
            self._asked.read_again()
        self._ask_and_refresh()

    def _clicked_facts(self, event: events.GenericEventArguments) -> None:
        if event.args == "again":
            self._asked.read_history_again()
        self._ask_and_refresh()

    def _clicked_changes(self, event: events.GenericEventArguments) -> None:
        verb, _, what = str(event.args).partition(":")
        match verb:
            case "against":
                self._query.change(against=what)
            case "measure":
                self._asked.measure()
            case "stop":
                self._asked.stop_measuring()
            case "again":
                self._asked.compare_again()
        self._ask_and_refresh()

    def _clicked_values(self, event: events.GenericEventArguments) -> None:
        match event.args:
            case "health":
                self._asked.read_values()
            case "again":
                self._asked.read_values(again=True)
            case "before":
                self._asked.read_values(and_before=True)
            case "stop":
                self._asked.stop_reading_values()
        self._ask_and_refresh()

    def _ask_and_refresh(self) -> None:
        self._asked.ask()
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
        seen, found = self._asked.seen()
        if seen is None or found is None:
            return tag("p", "It is gone by now: it was pruned.", class_="notice")
        now = time.time()
        named = [tag("span", name_of(each.alias), class_="tag") for each in seen.aliases if each.release == self._name]
        pinned = tag("span", "pinned", class_="tag plain") if found.is_pinned else None
        read = result_of(self._asked.read)
        flow_run = "" if read is None else read.head["flow_run"]
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
        return job_line(self._asked.read, "the manifest")

    def _facts(self) -> Markup:
        now = time.time()
        left, right = list[Markup](), list[Markup]()
        if (read := result_of(self._asked.read)) is not None:
            left.append(made_from(read, self._key))
            left.append(files(read))
        if (known := result_of(self._asked.history)) is not None:
            right.append(aliases_over_time(known.acts, self._name, now))
            right.append(history(known.acts, self._name, now))
        elif (line := job_line(self._asked.history, "the history")) != "":
            right.append(tag("section", tag("h2", "History"), line, class_="card"))
        return joined([tag("div", *left), tag("div", *right)])

    def _changes(self) -> Markup:
        seen, found = self._asked.seen()
        if seen is None or found is None:
            return Markup("")
        if len(seen.releases) < 2:
            return joined(
                [tag("h2", "Changes"), tag("p", "There is no other release to compare it with.", class_="muted")]
            )
        title = tag("h2", "Changes", against_field(seen, self._name, self._asked.against()))
        other, read = self._asked.other(), self._asked.changed()
        if other is None:
            return joined([title, tag("p", "That names this very release.", class_="muted")])
        link = tag("a", name_of(other.name), href=release_address(self._key, other.name), class_="mono more")
        since = tag("p", "From ", link, " to this one:", class_="muted")
        if read is None:
            return joined([title, since, job_line(self._asked.compared, "headers and digests")])
        parts = [title, since, counted(read)]
        if self._asked.measured is not None and not self._asked.measured.is_done:
            parts.append(job_line(self._asked.measured, "the values of both", can_stop=True))
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
        read = self._asked.changed()
        return None if read is None or self._asked.other() is None else read.tensors

    def _health_tensors(self) -> Table | None:
        read = result_of(self._asked.health)
        return None if read is None else read.tensors

    def _values(self) -> Markup:
        seen, found = self._asked.seen()
        if seen is None or found is None:
            return Markup("")
        before = self._asked.before()
        more = sum(each.size_bytes or 0 for each in before)
        offer = f"Read the {len(before)} before it too, {size(more)}" if before else ""
        open_count = sum(job.is_open for job in self._asked.healths())
        head = values_head(self._asked.health, found.size_bytes or 0, open_count, offer)
        if result_of(self._asked.health) is None:
            return head
        chosen = self._chosen()
        points = [
            Point(
                version(each.step, each.unique_id),
                release_address(self._key, each.name),
                self._asked.norm(each, chosen),
                each.name == self._name,
            )
            for each in reversed(seen.releases[:MOST_POINTS])
        ]
        return joined([head, norms(chosen, points)])

    def _tensors(self) -> Table | None:
        read = result_of(self._asked.read)
        return None if read is None else read.tensors

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
