"""A run is asked for, and the answer is lost, late or wrong: what is then known of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import httpx
import pytest

from ckptcore.dashboard.prefect_api import PrefectApi
from ckptcore.dashboard.prefect_refusals import StartUnknown
from ckptcore.dashboard.run_links import deployment_address
from ckptcore.errors import PrefectUnavailable

DEPLOYMENT = "5f3c1d0e-8a57-4b0c-9f43-0d6f0f7c2a11"


class Answers(BaseHTTPRequestHandler):
    """Finds any deployment, and says ``status`` to whoever starts one; 0 hangs up."""

    status = 201
    keys: list[str] = []  # noqa: RUF012 - the server makes a handler for each request

    def do_GET(self) -> None:
        self._say(200, {"id": DEPLOYMENT})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.keys.append(body["idempotency_key"])
        if self.status:
            self._say(self.status, {"id": str(uuid4()), "state": {"type": "SCHEDULED"}})

    def _say(self, status: int, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[PrefectApi]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        api = PrefectApi(f"http://127.0.0.1:{server.server_port}/api")
        yield api
        api.close()
        server.shutdown()


@pytest.mark.parametrize("status", [0, 500, 503, 408])
def test_what_may_have_started_is_unknown(api: PrefectApi, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(Answers, "status", status)
    monkeypatch.setattr(Answers, "keys", [])
    for _ in range(2):
        with pytest.raises(StartUnknown) as raised:
            api.start("promote/llama", {}, [], key="one")
    assert Answers.keys == ["one", "one"]
    assert deployment_address(api.url, raised.value.deployment_id).endswith(f"/deployments/deployment/{DEPLOYMENT}")


@pytest.mark.parametrize("status", [404, 409, 422])
def test_what_the_server_refuses_did_not_start(api: PrefectApi, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(Answers, "status", status)
    with pytest.raises(PrefectUnavailable) as raised:
        api.start("promote/llama", {}, [], key="one")
    assert not isinstance(raised.value, StartUnknown)


def test_two_orders_of_one_key_are_one_run_of_a_real_server(server: str) -> None:
    flow = httpx.post(f"{server}/flows/", json={"name": "keyed"}).json()["id"]
    httpx.post(f"{server}/deployments/", json={"name": "llama", "flow_id": flow}).raise_for_status()
    api = PrefectApi(server)
    first, second, other = (api.start("keyed/llama", {}, ["ckpt"], key=key) for key in ("one", "one", "other"))
    api.close()
    assert first.id == second.id != other.id
