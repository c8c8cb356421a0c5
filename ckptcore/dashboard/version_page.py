"""One version: what was written for it, whether that is whole and right, where each tensor lies, and what became of it.

Opening it reads the headers, as ``verify`` does, in a process of its own; the plan is made when somebody asks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nicegui import events, ui

from ckptcore.dashboard.acting import Actions
from ckptcore.dashboard.cells import count_of, key_link, shape_of, size_of, text_of
from ckptcore.dashboard.context import Context
from ckptcore.dashboard.findings_panel import files, findings
from ckptcore.dashboard.frame import Live, frame, not_here, pipeline_address, release_address, version_address
from ckptcore.dashboard.job_line import Following, job_line
from ckptcore.dashboard.jobs import Job, result_of
from ckptcore.dashboard.linking import Query
from ckptcore.dashboard.markup import Markup, name_of, shown, tag
from ckptcore.dashboard.plan_panel import plan_panel
from ckptcore.dashboard.release_asking import release_request
from ckptcore.dashboard.results import PiecesRead, PlanRead, ReleaseRead, VersionRead
from ckptcore.dashboard.run_links import run_address
from ckptcore.dashboard.sharding_panel import sharding
from ckptcore.dashboard.table_panel import TELL_CLICK, Kind, Shown, TablePanel
from ckptcore.dashboard.words import ago, size, stage_chip, version
from ckptcore.rules.observed import PipelineSeen, VersionSeen
from ckptcore.rules.tables import Table
from ckptcore.rules.versions import version_label


@dataclass(frozen=True, slots=True)
class Asked:
    """The version that an address names."""

    key: str
    step: int | None
    unique_id: int

    @property
    def label(self) -> str:
        return version(self.step, self.unique_id).replace("\N{NO-BREAK SPACE}", " ")


def version_page(context: Context, asked: Asked, given: Mapping[str, str]) -> None:
    seen = context.refresher.snapshot.pipeline(asked.key)
    if seen is None or seen.version(asked.step, asked.unique_id) is None:
        not_here(context, "version", f"{asked.label} of {asked.key}")
        return
    with frame(context, asked.label, [(asked.key, pipeline_address(asked.key)), (asked.label, None)]) as live:
        _VersionPage(context, asked, live, given)


class _VersionPage:
    """The page of one version in one browser."""

    def __init__(self, context: Context, asked: Asked, live: Live, given: Mapping[str, str]) -> None:
        self._context, self._asked, self._live = context, asked, live
        self._query = Query(version_address(asked.key, asked.step, asked.unique_id), given)
        self._job: Job[VersionRead] | None = None
        self._read: VersionRead | None = None
        self._stamp: object = None
        self._pieces: Job[PiecesRead] | None = None
        self._plan: Job[PlanRead] | None = None
        self._release: Job[ReleaseRead] | None = None
        self._ask()
        self._ask_pieces()
        live.add(self._head)
        self._offer_actions()
        live.add(self._reading).on("click", self._clicked, js_handler=TELL_CLICK)
        live.add(self._found)
        with ui.element("div").classes("two wide-left"):
            with ui.element("section").classes("card"):
                live.add(self._tensors_title)
                self._table = TablePanel(self._kind(), self._query, self._tensors, self._choose, self._chosen)
            with ui.element("div"):
                live.add(self._sharding).on("click", self._clicked_sharding, js_handler=TELL_CLICK)
                live.add(self._planned).on("click", self._clicked_plan, js_handler=TELL_CLICK)
                live.add(self._published).on("click", self._clicked_release, js_handler=TELL_CLICK)
        self._following = Following(self._jobs, self._refresh)

    # What is asked for.

    def _seen(self) -> tuple[PipelineSeen | None, VersionSeen | None]:
        seen = self._context.refresher.snapshot.pipeline(self._asked.key)
        return seen, None if seen is None else seen.version(self._asked.step, self._asked.unique_id)

    def _ask(self) -> None:
        """Read the version where it is not read as it is now, and nothing of it is being read."""
        seen, found = self._seen()
        if seen is None or found is None or found.changed_at is None:
            return
        stamp = (found.changed_at, found.size_bytes, found.file_count, found.issue_count, found.stage)
        if self._job is None or (stamp != self._stamp and not self._job.is_open):
            self._stamp = stamp
            self._job = self._context.jobs.ask(self._request("version"), VersionRead)
        if found.release and (release := seen.release(found.release)) is not None:
            self._release = self._context.jobs.ask(release_request(seen, release), ReleaseRead)

    def _request(self, what: str, **more: object) -> dict[str, object]:
        seen, _ = self._seen()
        assert seen is not None
        watched = seen.watched
        place = {"source": watched.source, "component": watched.component}
        version = {"step": self._asked.step, "unique_id": self._asked.unique_id, "stamp": self._stamp}
        return {"what": what, **place, **version, **more}

    def _ask_pieces(self) -> None:
        seen, _ = self._seen()
        if self._chosen() and seen is not None and seen.watched.source:
            self._pieces = self._context.jobs.ask(self._request("pieces", key=self._chosen()), PiecesRead)

    def _jobs(self) -> tuple[Job[Any] | None, ...]:
        self._ask()
        return self._job, self._pieces, self._plan, self._release

    def _refresh(self) -> None:
        self._read = result_of(self._job) or self._read
        self._live.refresh()
        self._table.refresh()

    def _offer_actions(self) -> None:
        """The button that merges it again, where anything may be done."""
        actions, (_, found) = Actions(self._context, self._asked.key, self._live.person), self._seen()
        if actions.are_possible and found is not None and found.changed_at is not None:
            with ui.element("div").classes("actions"):
                actions.button("Merge again…", lambda: actions.merge_again(self._seen()[1]))

    # What somebody does.

    def _clicked(self, event: events.GenericEventArguments) -> None:
        if event.args == "again":
            self._context.jobs.forget(self._request("version"))
            self._job = self._context.jobs.ask(self._request("version"), VersionRead)
            self._refresh()

    def _clicked_sharding(self, event: events.GenericEventArguments) -> None:
        if event.args == "again":
            self._context.jobs.forget(self._request("pieces", key=self._chosen()))
            self._ask_pieces()
            self._refresh()

    def _clicked_plan(self, event: events.GenericEventArguments) -> None:
        seen, found = self._seen()
        if seen is None or found is None:
            return
        request = self._request("plan", config=seen.watched.config, name=seen.watched.name)
        if event.args == "stop" and self._plan is not None:
            self._context.jobs.stop(self._plan)
        elif event.args in ("plan", "again"):
            if event.args == "again":
                self._context.jobs.forget(request)
            self._plan = self._context.jobs.ask(request, PlanRead)
        self._refresh()

    def _clicked_release(self, event: events.GenericEventArguments) -> None:
        seen, found = self._seen()
        release = None if seen is None or found is None else seen.release(found.release)
        if event.args == "again" and seen is not None and release is not None:
            self._context.jobs.forget(release_request(seen, release))
            self._ask()
            self._refresh()

    def _chosen(self) -> str:
        return self._query.get("tensor")

    def _choose(self, row: int) -> None:
        table = self._tensors()
        assert table is not None
        self._query.change(tensor=table.value("key", row))
        self._ask_pieces()
        self._refresh()
        ui.run_javascript("document.getElementById('sharding')?.scrollIntoView({ block: 'nearest' })")

    # What is drawn.

    def _head(self) -> Markup:
        seen, found = self._seen()
        if seen is None or found is None:
            return tag("p", "It is gone by now.", class_="notice")
        watched, now = seen.watched, time.time()
        run = next(
            (
                each
                for each in self._context.refresher.runs(watched)
                if each.name == f"{watched.name}: {version_label(found.step, found.unique_id)}"
            ),
            None,
        )
        flow_run = run.id if run is not None else self._flow_run()
        link = run_address(watched.server, flow_run)
        facts = [
            tag("span", size(found.size_bytes), f" in {found.file_count:,} files") if found.file_count else None,
            tag("span", "written ", ago(found.changed_at, now)) if found.changed_at else None,
            tag("span", "published ", ago(found.published_at, now)) if found.published_at else None,
            tag("a", "its run in Prefect", href=link, class_="more", rel="noreferrer") if link else None,
        ]
        place = self._read.head["directory"] if self._read is not None else watched.source
        again = "Other bytes lie there now than its release was made from." if found.is_saved_again else ""
        return tag(
            "header",
            tag("h1", version(found.step, found.unique_id), stage_chip(found.stage)),
            tag("p", shown(found.reason), class_="sentence level-wrong") if found.reason else None,
            tag("p", again, class_="sentence level-waiting") if again else None,
            tag("p", *facts, class_="muted places"),
            tag("p", tag("code", shown(place)), class_="muted places"),
            class_="page-head",
        )

    def _flow_run(self) -> str:
        read = result_of(self._release)
        return "" if read is None else read.head["flow_run"]

    def _reading(self) -> Markup:
        _, found = self._seen()
        if found is not None and found.changed_at is None:
            gone = "The source holds it no more: the trainer deleted it. What was published of it is below."
            return tag("p", gone, class_="notice quiet")
        return job_line(self._job, "the headers of its files")

    def _found(self) -> Markup:
        if self._read is None:
            return Markup("")
        return tag("div", files(self._read), findings(self._read, self._query), class_="stack")

    def _tensors(self) -> Table | None:
        return None if self._read is None else self._read.tensors

    def _tensors_title(self) -> Markup:
        if self._read is None:
            return tag("h2", "Tensors")
        total = size(sum(self._read.tensors.columns["size"].values))
        told = f"{len(self._read.tensors):,}, {total} unsharded"
        return tag("h2", "Tensors", tag("span", told, class_="muted small"))

    def _sharding(self) -> Markup:
        absent = frozenset[str]() if self._read is None else self._read.absent
        return sharding(self._chosen(), self._pieces, absent)

    def _planned(self) -> Markup:
        seen, found = self._seen()
        if seen is None or found is None or found.changed_at is None:
            return Markup("")
        read = result_of(self._release)
        return plan_panel(self._plan, seen.watched.config, "" if read is None else read.head["plan_digest"])

    def _published(self) -> Markup:
        seen, found = self._seen()
        title = tag("h2", "Release")
        if seen is None or found is None:
            return Markup("")
        if not found.release:
            return tag("section", title, tag("p", "It is not published.", class_="muted"), class_="card")
        if seen.release(found.release) is None:
            words = "It was published as ", name_of(found.release, class_="mono"), ", which was pruned since."
            return tag("section", title, tag("p", *words, class_="muted"), class_="card")
        link = tag("a", name_of(found.release), href=release_address(seen.key, found.release), class_="mono more")
        read = result_of(self._release)
        if read is None:
            return tag("section", title, tag("p", link), job_line(self._release, "its manifest"), class_="card")
        head = read.head
        total = sum(size_bytes for _, size_bytes, _ in head["files"])
        facts = [
            ("holds", f"{len(read.tensors):,} tensors, {size(total)} in {len(head['files']):,} files"),
            ("manifest", tag("code", f"{head['manifest'][1][:12]}…", title=head["manifest"][1])),
            ("made", shown(head["created_at"])),
        ]
        listed = tag("dl", *(tag("div", tag("dt", word), tag("dd", what)) for word, what in facts), class_="facts")
        return tag("section", title, tag("p", link), listed, class_="card")

    def _kind(self) -> Kind:
        return Kind(
            "t",
            (
                Shown("key", key_link(self._query, "tensor")),
                Shown("dtype", text_of("dtype")),
                Shown("shape", shape_of, "nowrap"),
                Shown("size", size_of),
                Shown("pieces", count_of("pieces")),
                Shown("ranks", count_of("ranks"), "wide"),
                Shown("replicas", count_of("replicas", hides_zero=True), "wide"),
            ),
            "Find a tensor by name or dtype",
            "The metadata names no tensor, or cannot be read.",
        )
