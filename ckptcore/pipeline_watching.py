"""Watch the sources of a pipeline as its file says."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ckptcore.pipeline import Pipeline
from ckptcore.rules.retention import parse_age
from ckptcore.watching import SourceWatch, Watcher


def watch_pipeline(
    pipeline: Pipeline,
    stop: threading.Event,
    *,
    tell: Callable[[str], None],
    url: str | None = None,
    once: bool = False,
) -> None:
    """Watch until ``stop`` is set, or with ``once`` until nothing is left to judge or to send.

    ``url`` defaults to the pipeline's server, then to ``PREFECT_API_URL``; without any, versions are only marked.
    """
    # Two sources may take different tensors of one directory.
    places = dict.fromkeys((source.path, source.component) for source in pipeline.sources)
    watches = [SourceWatch(path, component, pipeline.watch.settle) for path, component in places]
    address = url or pipeline.server.url or os.environ.get("PREFECT_API_URL") or None
    if address is None:
        tell("no server is configured: versions are marked, and no event is sent")
    watcher, every_s = Watcher(watches, address, tell), parse_age(pipeline.watch.every)
    if not once:
        watcher.run(stop, every_s=every_s, slowest_s=parse_age(pipeline.watch.slowest))
        return
    while watcher.look() and not stop.wait(every_s):
        pass
