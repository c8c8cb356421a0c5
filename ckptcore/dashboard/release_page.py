"""One release: what it was made from, what names it, and how it differs from others."""

from __future__ import annotations

from ckptcore.dashboard.context import Context
from ckptcore.dashboard.frame import frame, not_here, pipeline_address
from ckptcore.dashboard.markup import Markup, name_of, tag
from ckptcore.dashboard.words import size


def release_page(context: Context, key: str, release: str) -> None:
    seen = context.refresher.snapshot.pipeline(key)
    if seen is None or seen.release(release) is None:
        not_here(context, "release", f"{release} of {key}")
        return
    with frame(context, release, [(key, pipeline_address(key)), (release, None)]) as live:
        live.add(lambda: _head(context, key, release))


def _head(context: Context, key: str, release: str) -> Markup:
    seen = context.refresher.snapshot.pipeline(key)
    found = None if seen is None else seen.release(release)
    if found is None:
        return tag("p", "It is gone by now.", class_="notice")
    measured = "" if found.size_bytes is None else size(found.size_bytes)
    return tag("header", tag("h1", name_of(release)), tag("p", measured, class_="muted"), class_="page-head")
