"""The application: every page under its address, guarded, on NiceGUI's server, until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nicegui import app, ui
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ckptcore.dashboard.auth import NOBODY_ASKED, Credentials, Guard, require_safe
from ckptcore.dashboard.context import Context
from ckptcore.dashboard.frame import not_here
from ckptcore.dashboard.headers import SecurityHeaders
from ckptcore.dashboard.overview import overview_page
from ckptcore.dashboard.pipeline_page import pipeline_page
from ckptcore.dashboard.refreshing import Refresher
from ckptcore.dashboard.release_page import release_page
from ckptcore.dashboard.theme import asset
from ckptcore.dashboard.timeline import timeline_page
from ckptcore.dashboard.version_page import Asked, version_page
from ckptcore.metrics import exposition
from ckptcore.rules.observed import Watched

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 4280
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><rect width="24" height="24" rx="6" fill="#2f6fde"/>'
    '<path d="M6 12.5l4 4l8-9" fill="none" stroke="#fff" stroke-width="2.6" stroke-linecap="round"/></svg>'
)


def serve(
    watched: Sequence[Watched],
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    credentials: Credentials = NOBODY_ASKED,
    allows_actions: bool = False,
) -> None:
    """Show what is watched until SIGINT or SIGTERM. Raises :class:`InvalidConfig` for an unsafe host."""
    require_safe(host, credentials)
    refresher = Refresher(watched)
    context = Context(refresher, allows_actions, credentials.are_needed)
    add_routes(context)
    app.add_middleware(Guard, credentials=credentials)
    app.add_middleware(SecurityHeaders)  # around the guard: its form is an answer too
    app.on_startup(refresher.start)
    app.on_shutdown(refresher.stop)
    app.on_shutdown(context.jobs.close)
    # Internal to NiceGUI: a server that is started from a test is one for people all the same.
    os.environ.pop("PYTEST_CURRENT_TEST", None)

    def elsewhere(request: Request) -> None:
        not_here(context, "page", request.url.path)

    ui.run(
        elsewhere,
        host=host,
        port=port,
        title="ckpt",
        favicon=_ICON,
        dark=None,
        language="en-US",
        reload=False,
        show=False,
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=10.0,
        uvicorn_logging_level="warning",
    )


def add_routes(context: Context) -> None:
    """Every address of the dashboard."""

    @app.get("/assets/{name}", include_in_schema=False)
    def assets(name: str) -> Response:
        found = asset(name)
        if found is None:
            return PlainTextResponse("There is no such file.", 404)
        return Response(found[0], media_type=found[1], headers={"Cache-Control": "public, max-age=31536000, immutable"})

    @app.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> Response:
        refresher = context.refresher
        accept = request.headers.get("accept", "")
        body, content_type = exposition(refresher.snapshot, refresher.servers, accept)
        return Response(body, headers={"Content-Type": content_type})

    @ui.page("/")
    def overview() -> None:
        overview_page(context)

    @ui.page("/p/{key}")
    def pipeline(key: str) -> None:
        pipeline_page(context, key)

    @ui.page("/p/{key}/timeline")
    def timeline(key: str, request: Request) -> None:
        timeline_page(context, key, request.query_params)

    @ui.page("/v/{key}/{step}/{unique_id}")
    def version(key: str, step: str, unique_id: str, request: Request) -> None:
        if _is_number(unique_id) and (step == "none" or _is_number(step)):
            asked = Asked(key, None if step == "none" else int(step), int(unique_id))
            version_page(context, asked, request.query_params)
        else:
            not_here(context, "version", f"{step}/{unique_id}")

    @ui.page("/r/{key}/{release}")
    def release(key: str, release: str, request: Request) -> None:
        release_page(context, key, release, request.query_params)


def _is_number(text: str) -> bool:
    """Whether it is a number as names of files spell one; Python reads more, and very long ones slowly."""
    return text.isascii() and text.isdecimal() and len(text) < 20
