"""Where a run is shown in Prefect's own pages."""

from __future__ import annotations

from uuid import UUID

from ckptcore.rules.addresses import public_address


def run_address(server: str, flow_run: str) -> str:
    """The address of a run's page, "" where there is no server or what is recorded is no id of a run.

    ``server`` is the address of an API, ``http://host:4200/api``; its pages lie beside it.
    """
    return _page(server, "runs/flow-run", flow_run)


def deployment_address(server: str, deployment_id: str) -> str:
    """The address of a deployment's page, with all its runs; "" as for a run."""
    return _page(server, "deployments/deployment", deployment_id)


def _page(server: str, place: str, found: str) -> str:
    server = public_address(server)
    pages = server.removesuffix("/api")
    if not found or pages == server or not server.startswith(("http://", "https://")):
        return ""
    try:
        return f"{pages}/{place}/{UUID(found)}"
    except ValueError:
        return ""
