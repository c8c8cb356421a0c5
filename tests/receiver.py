"""A server on this machine that takes what is posted to it, and answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """``statuses`` are the answers to the first requests, 204 to all later ones."""

    url: str = ""
    statuses: Sequence[int] = ()
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    """Path, headers and parsed body of each request, in the order of arrival."""

    @property
    def event_ids(self) -> list[str]:
        return [event["id"] for event in self.events]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for path, _, events in self.requests if path.endswith("/events") for event in events]


@contextmanager
def receiving(statuses: Sequence[int] = ()) -> Iterator[Receiver]:
    receiver = Receiver(statuses=statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            number = len(receiver.requests)
            receiver.requests.append((self.path, dict(self.headers), json.loads(body)))
            self.send_response(receiver.statuses[number] if number < len(receiver.statuses) else 204)
            self.send_header("Location", f"{receiver.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - the base class looks for this name

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}/api"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
