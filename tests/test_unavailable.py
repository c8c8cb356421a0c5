"""A server that is away or answers otherwise than Prefect's: one sentence, status 1, and no secret of the address."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.command import assert_refused, ckpt_process


@contextmanager
def answering(status: int, body: bytes) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - names of the library

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        yield page.server_port
        page.shutdown()


@pytest.mark.parametrize("arguments", [(), ("--remove",)])
@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (None, b"", "cannot be reached"),
        (401, b"{}", "PREFECT_API_AUTH_STRING"),
        (403, b"{}", "answers 403"),
        (500, b"{}", "answers 500"),
        (200, b"<html>secret</html>", "such as http://host:4200/api"),
        (200, b"[1, 2]", "such as http://host:4200/api"),
    ],
)
def test_one_sentence(
    tmp_path: Path,
    status: int | None,
    body: bytes,
    told: str,
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "0")
    with answering(status or 200, body) as port:
        address = f"http://me:secret@127.0.0.1:{port if status else 9}/api"
        text = f"name: a\nregistry: r\nsources: [{{path: x}}]\nserver: {{url: '{address}'}}\n"
        (tmp_path / "ckpt.yaml").write_text(text)
        outcome = ckpt_process("deploy", *arguments, cwd=tmp_path)
    assert_refused(outcome, told, "127.0.0.1")
    assert "secret" not in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
