"""All versions of a pipeline over time, by stage, and how long each step of publishing took."""

from __future__ import annotations

from collections.abc import Mapping

from ckptcore.dashboard.context import Context
from ckptcore.dashboard.frame import frame, not_here, pipeline_address
from ckptcore.dashboard.markup import tag


def timeline_page(context: Context, key: str, query: Mapping[str, str]) -> None:
    seen = context.refresher.snapshot.pipeline(key)
    if seen is None:
        not_here(context, "pipeline", key)
        return
    with frame(context, f"{key}: timeline", [(key, pipeline_address(key)), ("timeline", None)]) as live:
        live.add(lambda: tag("p", query.get("page", ""), class_="muted"))
