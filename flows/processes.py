"""The processes beside ``ckpt up``: Prefect's server, a worker and the page, each ``python -m flows.processes ROLE``.

Both end when the process that started them ends, however it does: nothing is left behind that holds a port.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.2
_HEALTH_TIMEOUT_SECONDS = 5.0


def end_with_parent() -> None:
    """Let Linux send SIGTERM to this process when its parent dies."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)  # it died before it could be asked for


def is_healthy(url: str) -> bool:
    """Whether the API answers."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=_HEALTH_TIMEOUT_SECONDS) as answer:  # noqa: S310 - configured
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def serve(host: str, port: str) -> None:
    """Prefect's server, with all its services, until SIGTERM."""
    import uvicorn

    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host=host,
        port=int(port),
        log_level="warning",
        timeout_graceful_shutdown=2,
    )


def work(url: str, pool: str, limit: str) -> None:
    """A worker of the pool, as soon as there is one, with at most ``limit`` runs at a time."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.workers.process import ProcessWorker

    while not is_healthy(url):
        time.sleep(_POLL_SECONDS)
    with get_client(sync_client=True) as client:
        while True:
            try:
                client.read_work_pool(pool)
                break
            except ObjectNotFound:
                time.sleep(_POLL_SECONDS)
    worker: ProcessWorker = ProcessWorker(work_pool_name=pool, limit=int(limit), create_pool_if_not_found=False)
    asyncio.run(worker.start())


def show(config: str) -> None:
    """The page for operators, of the pipeline that the file describes."""
    from ckptcore.config import read_config
    from ckptcore.dashboard.app import serve as serve_page
    from ckptcore.dashboard.starting import credentials_of
    from ckptcore.watched import watched_in_configs

    settings = read_config(config).dashboard
    assert settings is not None  # who starts this has looked
    serve_page(
        watched_in_configs([config]),
        host=settings.host,
        port=settings.port,
        credentials=credentials_of(settings),
        allows_actions=settings.allow_actions,
    )


_ROLES: dict[str, Callable[..., None]] = {"server": serve, "worker": work, "dashboard": show}

if __name__ == "__main__":
    end_with_parent()
    _ROLES[sys.argv[1]](*sys.argv[2:])
