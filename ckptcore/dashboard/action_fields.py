"""The fields of the forms of actions, and what is taken from them."""

from __future__ import annotations

from collections.abc import Mapping

from nicegui import ui

from ckptcore.dashboard.form import Refused
from ckptcore.dashboard.words import version
from ckptcore.errors import CheckpointError
from ckptcore.rules.observed import PipelineSeen
from ckptcore.rules.release import check_alias

MOST_OPTIONS = 500


def select_field(label: str, options: Mapping[str, str], value: str | None) -> ui.select:
    chosen = value if value in options else None
    field = ui.select(dict(options), label=label, value=chosen, with_input=len(options) > 12)
    return field.classes("wide").props("outlined dense options-dense")


def reason_field() -> ui.input:
    return ui.input("Reason (kept in the history)").classes("wide").props("outlined dense maxlength=500")


def releases_of(seen: PipelineSeen) -> dict[str, str]:
    return {
        each.name: f"{version(each.step, each.unique_id)} · {each.name}{' (pinned)' if each.is_pinned else ''}"
        for each in seen.releases[:MOST_OPTIONS]
    }


def chosen_of(field: ui.select) -> str:
    if not field.value:
        raise Refused(f"Choose one: {field.props.get('label', '')}.")
    return str(field.value)


def alias_of(text: str) -> str:
    try:
        return check_alias(text.strip())
    except CheckpointError as error:
        raise Refused(error.message) from error
