"""What an operator may do: a form, a sentence to confirm, then a run of a Prefect deployment, followed to its end.

Nothing is done here: the run does it, by the same rules as every command, and the history says who asked. Each order
carries what its reader saw, so that an alias which moved meanwhile is left alone, and nothing is pruned unseen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import uuid4

from nicegui import ui

from ckptcore.dashboard.action_fields import MOST_OPTIONS, alias_of, chosen_of, reason_field, releases_of, select_field
from ckptcore.dashboard.context import Context
from ckptcore.dashboard.form import Form, Order, Refused
from ckptcore.dashboard.markup import Markup, joined, shown, tag
from ckptcore.dashboard.prefect_refusals import StartUnknown
from ckptcore.dashboard.pruning import Planned, drawn, planned_of
from ckptcore.dashboard.run_links import deployment_address, run_address
from ckptcore.dashboard.sessions import require_session
from ckptcore.dashboard.words import version
from ckptcore.errors import CheckpointError, PrefectUnavailable
from ckptcore.rules.observed import PipelineSeen, VersionSeen
from ckptcore.rules.observed_runs import RunKind, RunSeen
from ckptcore.rules.pipeline import MERGE, PIN, PROMOTE, PRUNE, ROLLBACK, by_tag, pipeline_tag

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
"""A run whose server does not answer for so long is followed no more."""


class _Unknown(Exception):
    """Nobody can say what came of an order; ``page`` is where to look."""

    def __init__(self, why: str, page: str, *, is_started: bool) -> None:
        super().__init__(why)
        self.page, self.is_started = page, is_started


class Actions:
    """The buttons of one page for one pipeline; there are none where nothing may be done."""

    def __init__(self, context: Context, key: str, person: str) -> None:
        self._context = context
        self._key = key
        self._person = person

    @property
    def are_possible(self) -> bool:
        """Whether this dashboard may act, and the pipeline is deployed somewhere."""
        seen = self._context.refresher.snapshot.pipeline(self._key)
        return self._context.allows_actions and seen is not None and bool(seen.watched.pipeline and seen.watched.server)

    def buttons(self) -> None:
        """All of them, in a row."""
        if not self.are_possible:
            return
        with ui.element("div").classes("actions"):
            self.button("Promote…", self.promote)
            self.button("Roll back…", self.roll_back)
            self.button("Pin…", self.pin)
            self.button("Merge again…", self.merge_again)
            if self._seen().watched.has_retention:
                self.button("Prune…", self.prune)

    def button(self, text: str, act: Callable[[], None]) -> None:
        ui.button(text, on_click=lambda: act(), color=None).props("no-caps flat dense").classes("action")

    def promote(self, release: str = "") -> None:
        """Ask for a release and an alias."""
        seen = self._seen()
        with Form("Promote a release") as form:
            chosen = select_field("Release", releases_of(seen), release or None)
            names = [shown(alias.alias) for alias in seen.aliases]
            alias = ui.input("Alias", value="production", autocomplete=names).classes("wide").props("outlined dense")
            reason = reason_field()

            def order() -> Order:
                found, name = chosen_of(chosen), alias_of(str(alias.value or ""))
                current = self._current(name)
                return Order(
                    f"{PROMOTE}/{seen.watched.pipeline}",
                    {
                        "name": seen.watched.name,
                        "release": found,
                        "alias": name,
                        "expect_current": current,
                        "reason": reason.value,
                    },
                    f"{name} of {seen.watched.name} moves from {current or 'nothing'} to {found}.",
                )

            form.offer(order, self._confirm)

    def roll_back(self, alias: str = "") -> None:
        """Ask for an alias to be taken back to what it named before."""
        seen = self._seen()
        with Form("Roll an alias back") as form:
            names = {each.alias: f"{shown(each.alias)} → {shown(each.release)}" for each in seen.aliases}
            default = alias or ("production" if "production" in names else None)
            chosen = select_field("Alias", names, default)
            reason = reason_field()

            def order() -> Order:
                name = chosen_of(chosen)
                current = self._current(name)
                return Order(
                    f"{ROLLBACK}/{seen.watched.pipeline}",
                    {
                        "name": seen.watched.name,
                        "alias": name,
                        "expect_current": current,
                        "reason": reason.value,
                    },
                    f"{name} of {seen.watched.name} goes back from {current} to what it named before.",
                )

            form.offer(order, self._confirm)

    def pin(self, release: str = "") -> None:
        """Ask for a release to be kept, or to be let go."""
        seen = self._seen()
        with Form("Pin a release") as form:
            chosen = select_field("Release", releases_of(seen), release or None)
            reason = reason_field()

            def order() -> Order:
                found = seen.release(chosen_of(chosen))
                if found is None:
                    raise Refused("The release is gone by now.")
                keep = not found.is_pinned
                kept, left = "is kept, whatever the rules of a prune say", "is pinned no more: a prune may remove it"
                return Order(
                    f"{PIN}/{seen.watched.pipeline}",
                    {
                        "name": seen.watched.name,
                        "release": found.name,
                        "keep": keep,
                        "reason": reason.value,
                    },
                    f"{found.name} of {seen.watched.name} {kept if keep else left}.",
                )

            form.offer(order, self._confirm)

    def merge_again(self, wanted: VersionSeen | None = None) -> None:
        """Ask for a version to be merged and published, whatever came of it before."""
        seen = self._seen()
        there = [each for each in seen.versions if each.changed_at is not None][:MOST_OPTIONS]
        options = {
            f"{each.step}/{each.unique_id}": f"{version(each.step, each.unique_id)} ({each.stage})" for each in there
        }
        with Form("Merge a version again") as form:
            chosen = select_field("Version", options, None if wanted is None else f"{wanted.step}/{wanted.unique_id}")

            def order() -> Order:
                picked = chosen_of(chosen)
                found = next((each for each in there if f"{each.step}/{each.unique_id}" == picked), None)
                if found is None:
                    raise Refused("The version is gone by now.")
                step: dict[str, Any] = {} if found.step is None else {"step": found.step}
                return Order(
                    f"{MERGE}/{seen.watched.name}",
                    step | {"unique_id": found.unique_id},
                    f"{found.label} is verified, merged and published as {seen.watched.name}. Where its release "
                    "stands already, nothing is done.",
                )

            form.offer(order, self._confirm)

    def prune(self) -> None:
        """Show what a prune would remove, and only then offer to do it."""
        seen = self._seen()
        with Form("Prune releases") as form:
            ui.label("A dry run shows first what the rules of retention would remove.")

            def order() -> Order:
                return Order(
                    f"{PRUNE}/{seen.watched.pipeline}", {"dry_run": True}, "Nothing is removed by the dry run."
                )

            async def after(ended: RunSeen) -> None:
                if ended.kind is not RunKind.DONE or form.is_closed:
                    return
                try:
                    planned = await self._planned(ended)
                except CheckpointError as error:
                    told = f"What the dry run would remove cannot be read: {error.message}"
                    form.show(tag("p", shown(told), class_="failure", role="alert"))
                    return
                form.show(drawn(planned))
                if planned.drop_count:
                    really = Order(
                        f"{PRUNE}/{seen.watched.pipeline}",
                        {"dry_run": False, "expect": dict(planned.expect)},
                        f"{planned.drop_count:,} release(s) of {', '.join(planned.names)} are removed for good, just "
                        "those that were shown: where anything else would go by now, it is refused.",
                    )
                    form.offer(lambda: really, self._confirm, text="Remove them…")

            form.offer(order, lambda form, order: self._confirm(form, order, after), text="Dry run…")

    def _seen(self) -> PipelineSeen:
        seen = self._context.refresher.snapshot.pipeline(self._key)
        assert seen is not None, self._key  # a page of what is not watched has no buttons
        return seen

    def _current(self, alias: str) -> str:
        return next((each.release for each in self._seen().aliases if each.alias == alias), "")

    def _confirm(self, form: Form, order: Order, after: Callable[[RunSeen], Awaitable[None]] | None = None) -> None:
        """Show the sentence, and start the run where it is confirmed."""
        form.show(tag("p", shown(order.sentence), class_="confirm"))
        key = str(uuid4())  # of all tries of what was confirmed: together they start one run

        async def start() -> None:
            form.wait("The run is being started …")
            try:
                ended = await self._run(form, order, key)
            except _Unknown as unknown:
                form.show(self._unknown(unknown))
                if not unknown.is_started:
                    form.confirm(start)
                return
            except CheckpointError as error:
                form.show(tag("p", shown(error.message), class_="failure", role="alert"))
                form.close_only()
                return
            self._context.refresher.hurry()
            form.show(self._result(ended))
            form.close_only()
            if after is not None:
                await after(ended)

        form.confirm(start)

    async def _run(self, form: Form, order: Order, key: str) -> RunSeen:
        """Start the run, and follow it to its end.

        Raises :class:`PrefectUnavailable` and :class:`SignedOut` where nothing was done, else :class:`_Unknown`.
        """
        require_session(ui.context.client.request.scope)
        api = self._context.refresher.api(self._seen().watched)
        assert api is not None  # are_possible
        tags = [by_tag(self._person), "ckpt", pipeline_tag(self._seen().watched.pipeline)]
        server, heard_at = self._seen().watched.server, time.monotonic()
        try:
            started = await asyncio.to_thread(partial(api.start, order.deployment, order.parameters, tags, key=key))
        except StartUnknown as error:
            page = deployment_address(server, error.deployment_id)
            raise _Unknown(error.message, page, is_started=False) from error
        while started.kind in (RunKind.WAITING, RunKind.RUNNING) and not form.is_closed:
            form.wait(f"{started.name}: {started.state.lower()} …")
            await asyncio.sleep(POLL_SECONDS)
            try:
                started = await asyncio.to_thread(api.run, started.id)
                heard_at = time.monotonic()
            except PrefectUnavailable as error:
                if time.monotonic() - heard_at > PATIENCE_SECONDS:
                    raise _Unknown(error.message, run_address(server, started.id), is_started=True) from error
        return started

    async def _planned(self, ended: RunSeen) -> Planned:
        """What the dry run planned. Raises :class:`PrefectUnavailable`."""
        api = self._context.refresher.api(self._seen().watched)
        assert api is not None  # are_possible
        return planned_of(await asyncio.to_thread(api.table_of, ended.id))

    def _unknown(self, unknown: _Unknown) -> Markup:
        """That it is not known, where to look, and what pressing the button again does."""
        told = f"It is unknown {'how the run goes' if unknown.is_started else 'whether a run was started'}: {unknown}."
        link = tag("a", "Look in Prefect", href=unknown.page, class_="more") if unknown.page else None
        again = None if unknown.is_started else " Trying again here starts no second run."
        return joined([tag("p", shown(told), again, class_="level-waiting", role="alert"), tag("p", link)])

    def _result(self, ended: RunSeen) -> Markup:
        page = run_address(self._seen().watched.server, ended.id)
        link = tag("a", "The run in Prefect", href=page, class_="more") if page else None
        if ended.kind is RunKind.DONE:
            text = tag("p", "Done.", class_="level-fine", role="status")
        else:
            text = tag("p", shown(ended.sentence), class_="failure", role="alert")
        return joined([text, tag("p", link)])
