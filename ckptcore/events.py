"""What the pipeline tells a Prefect server about versions, as events by plain HTTP; none of it imports Prefect.

``ckpt.version.written`` is ``announcing``'s, which stands alone for the trainer's sake; here are the calls that report
a failure, and the event of a version that will never be whole.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from ckptcore import announcing
from ckptcore.errors import EventUnacceptable, StorageError
from ckptcore.rules.issues import Issue
from ckptcore.rules.versions import Version
from ckptcore.storage.refusals import reported

WRITTEN = announcing.EVENT
DAMAGED = "ckpt.version.damaged"

# An event lies in the server's database and in every notification; the whole list is one `ckpt verify` away.
_MOST_ISSUES = 20

_LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)
_FAR = timedelta(days=366)

Event = dict[str, Any]


def announce_now(path: str | os.PathLike[str], unique_id: int, url: str | None = None) -> tuple[Event, bool]:
    """Mark the version and send its event, in the foreground; the event, and whether a server took it.

    ``url`` defaults to ``PREFECT_API_URL``; without one there is only the mark. Raises :class:`StorageError`, also
    where the server does not answer or refuses: the mark is there then, and the same call may be made again.
    """
    with reported("cannot announce", path):
        event = announcing.write_mark(os.fspath(path), unique_id).event
    address = url or os.environ.get("PREFECT_API_URL")
    if not address:
        return event, False
    send(event, address)
    return event, True


def send(event: Event, url: str) -> None:
    """POST the event once; sending it again is harmless. Raises :class:`StorageError` where it is not taken, and
    :class:`EventUnacceptable` where it never will be."""
    try:
        announcing.send(event, url)
    except announcing.Unacceptable as error:
        raise EventUnacceptable(f"{url}: the event is not sent: {error}") from error
    except OSError as error:
        raise StorageError(f"{url}: the event is not sent: {error}") from error


def send_once(event: Event, url: str) -> None:
    """:func:`send` the event unless the server still has it, which tells events apart by their ids for half an hour
    only, and not across its restarts."""
    if not _is_there(event, url):
        send(event, url)


def _is_there(event: Event, url: str) -> bool:
    # Without limits of time the server would look for half a year, up to its own now, which is before that of a sender
    # whose clock is ahead.
    any_time = {"since": _LONG_AGO.isoformat(), "until": (datetime.now(UTC) + _FAR).isoformat()}
    wanted = {"filter": {"id": {"id": [event["id"]]}, "occurred": any_time}, "limit": 1}
    try:
        return bool(json.loads(announcing.post(url, "/events/filter", wanted))["events"])
    except (announcing.Refused, ValueError, LookupError, TypeError):
        return False  # it takes events and tells of none; whether it takes this one, sending it says
    except OSError as error:
        raise StorageError(f"{url}: it is not known whether the event was sent: {error}") from error


def damaged_event(version: Version, digest: str, issues: Iterable[Issue]) -> Event:
    """The event of a damaged version; the same bytes, by ``digest``, give the same id, so that one alert is raised."""
    listed = list(issues)
    resource_id = f"ckpt.version.{version.directory}/{version.unique_id}"
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{DAMAGED}#{resource_id}#{digest}")),
        "occurred": datetime.now(UTC).isoformat(),
        "event": DAMAGED,
        "resource": {
            "prefect.resource.id": resource_id,
            "prefect.resource.name": version.label,
            "ckpt.run": version.run,
            **({} if version.component is None else {"ckpt.component": version.component}),
        },
        "payload": version.to_json()
        | {"issues": [str(issue) for issue in listed[:_MOST_ISSUES]], "issue_count": len(listed)},
    }
