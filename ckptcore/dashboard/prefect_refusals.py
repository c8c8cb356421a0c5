"""What it means that a Prefect server said no, or nothing: in words, and whether what was asked was done."""

from __future__ import annotations

import httpx

from ckptcore.errors import PrefectUnavailable


class StartUnknown(PrefectUnavailable):
    """A run was asked for, and no answer says whether there is one. ``deployment_id`` is the deployment's."""

    deployment_id = ""


def is_sure(cause: BaseException | None) -> bool:
    """Whether what was asked was surely not done: the server said no, or was never reached."""
    if isinstance(cause, httpx.HTTPStatusError):
        return cause.response.is_client_error and cause.response.status_code not in (408, 429)
    return isinstance(cause, (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL))


def refusal(answer: httpx.Response) -> str:
    """What the server says against it, in one line."""
    try:
        detail = answer.json().get("detail", "")
    except (ValueError, AttributeError):
        detail = ""
    return f"status {answer.status_code}{f': {detail}' if detail else ''}"
