"""What a server that is away, refuses us, or is no server of Prefect does to a command: one sentence, never a secret.

What Prefect's client raises then may quote the address with its password, and the whole of a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect.exceptions import PrefectException
from pydantic import ValidationError

from ckptcore.errors import PrefectUnavailable
from ckptcore.rules.addresses import public_address

_DO = {
    httpx.codes.UNAUTHORIZED: "set PREFECT_API_AUTH_STRING as the server has it",
    httpx.codes.FORBIDDEN: "set PREFECT_API_AUTH_STRING to one that may change deployments",
}
_LOOK = "see that the address is that of the API, such as http://host:4200/api"


@contextmanager
def told_of_server(url: str) -> Iterator[None]:
    """Turn what comes of the server at ``url`` into :class:`PrefectUnavailable`."""
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, PrefectException, RuntimeError, ValidationError, ValueError) as error:
        found, what_to_do = _found(error)
        raise PrefectUnavailable(f"the server at {public_address(url)} {found}; {what_to_do}") from error


def _found(error: BaseException) -> tuple[str, str]:
    status = next((each for each in _chain(error) if isinstance(each, httpx.HTTPStatusError)), None)
    if status is not None:
        code = status.response.status_code
        if code >= httpx.codes.INTERNAL_SERVER_ERROR:
            return f"answers {code}", "see its log, and try again"
        return f"answers {code}", _DO.get(httpx.codes(code) if code in _DO else httpx.codes.OK, _LOOK)
    transport = next((each for each in _chain(error) if isinstance(each, httpx.TransportError)), None)
    if transport is not None or "Failed to reach API" in str(error):
        why = type(transport or error).__name__
        return f"cannot be reached ({why})", "start it, or set server.url or PREFECT_API_URL to one that runs"
    # A page that is no JSON, or JSON of something else. Its text is nobody's to print.
    return f"gives no answer of Prefect's API ({type(error).__name__})", _LOOK


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
