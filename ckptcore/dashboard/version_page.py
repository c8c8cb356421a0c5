"""One version: what was written for it, and whether that is whole and right."""

from __future__ import annotations

from ckptcore.dashboard.context import Context
from ckptcore.dashboard.frame import frame, not_here, pipeline_address
from ckptcore.dashboard.markup import Markup, shown, tag
from ckptcore.dashboard.words import stage_chip, version


def version_page(context: Context, key: str, step: int | None, unique_id: int) -> None:
    seen = context.refresher.snapshot.pipeline(key)
    if seen is None or seen.version(step, unique_id) is None:
        not_here(context, "version", f"{version(step, unique_id)} of {key}")
        return
    with frame(
        context, version(step, unique_id), [(key, pipeline_address(key)), (version(step, unique_id), None)]
    ) as live:
        live.add(lambda: _head(context, key, step, unique_id))


def _head(context: Context, key: str, step: int | None, unique_id: int) -> Markup:
    seen = context.refresher.snapshot.pipeline(key)
    found = None if seen is None else seen.version(step, unique_id)
    if found is None:
        return tag("p", "It is gone by now.", class_="notice")
    return tag(
        "header",
        tag("h1", version(step, unique_id), stage_chip(found.stage)),
        tag("p", shown(found.reason), class_="sentence") if found.reason else None,
        class_="page-head",
    )
