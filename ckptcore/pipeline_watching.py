"""Watch the sources of a pipeline as its file says."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from ckptcore.errors import StorageError
from ckptcore.pipeline import Pipeline
from ckptcore.rules.addresses import public_address
from ckptcore.rules.retention import parse_age
from ckptcore.watching import SourceWatch, Watcher

ONCE_SECONDS = 60.0
"""How long a call that is to end tries a server that takes no event."""


def watch_pipeline(
    pipeline: Pipeline,
    stop: threading.Event,
    *,
    tell: Callable[[str], None],
    url: str | None = None,
    once: bool = False,
) -> None:
    """Watch until ``stop`` is set, or with ``once`` until nothing is left to judge or to send.

    With ``once``, raises :class:`StorageError` where the server takes no event for a minute.
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
    tried_since: float | None = None
    while watcher.look() and not stop.wait(every_s):
        if not watcher.has_unsent:
            tried_since = None
            continue
        tried_since = time.monotonic() if tried_since is None else tried_since
        if time.monotonic() - tried_since >= ONCE_SECONDS:
            raise StorageError(
                f"the server at {public_address(address or '')} took no event for {ONCE_SECONDS:.0f} s; versions are "
                "marked, and reconcile publishes them when it is there again"
            )
