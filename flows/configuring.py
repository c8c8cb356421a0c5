"""Which server a command talks to, settled before Prefect is imported."""

from __future__ import annotations

import os

from ckptcore.errors import InvalidConfig
from ckptcore.pipeline import Pipeline

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # It contacts a third party's host from the browser.
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
}


def be_quiet() -> None:
    """Tell Prefect to send nothing anywhere; an environment that says otherwise is left as it is."""
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)


def configured_url(pipeline: Pipeline) -> str | None:
    """The API of a server that runs already; the file's before the environment's."""
    return pipeline.server.url or os.environ.get("PREFECT_API_URL") or None


def configure(pipeline: Pipeline) -> None:
    """Let Prefect talk to the pipeline's server. Raises :class:`InvalidConfig` where none is configured."""
    be_quiet()
    url = configured_url(pipeline)
    if url is None:
        raise InvalidConfig("no server is configured: set server.url or PREFECT_API_URL, or let ckpt up start one")
    os.environ["PREFECT_API_URL"] = url
