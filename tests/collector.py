"""A collector of OpenTelemetry's spans on this machine, which decodes what comes, and programs that are told of it."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.command import REPOSITORY

_CKPT = "import sys; from ckptcore.cli import main; sys.argv[0] = 'ckpt'; main()"


@dataclass(frozen=True)
class Spans:
    """Every span that came, by name, the first of each; ids as they are."""

    url: str
    spans: list[Any] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def facts(span: Any) -> dict[str, object]:
    return {found.key: getattr(found.value, str(found.value.WhichOneof("value"))) for found in span.attributes}


@contextmanager
def collecting() -> Iterator[Spans]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                collected.services.update(
                    found.value.string_value for found in resource.resource.attributes if found.key == "service.name"
                )
                for scope in resource.scope_spans:
                    collected.spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collected = Spans(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield collected
        finally:
            server.shutdown()
            thread.join()


def ckpt_code(*arguments: object, code: str = _CKPT, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=clean | {"PYTHONPATH": str(REPOSITORY)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
