"""What is made of a server's answers, from a server that is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from ckptcore.dashboard.prefect_api import TAG, PrefectApi
from ckptcore.rules.observed_runs import last_failure
from ckptcore.rules.pipeline import RECONCILE

PAGE = 200


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@dataclass
class Server:
    """Flow runs by the deployment that they are of, filtered as Prefect does."""

    runs: list[tuple[str, str, float]] = field(default_factory=list)
    """Deployment, type of the state, and when it ended."""
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    percent: float = 0.0

    def answer(self, _method: str, path: str, body: Any = None) -> Any:
        match path:
            case "/deployments/filter":
                return [{"id": name, "flow_id": "f", "name": name} for name in sorted({run[0] for run in self.runs})]
            case "/flows/filter":
                return [{"id": "f", "name": RECONCILE}, {"id": "g", "name": "audit"}]
            case "/flow_runs/count":
                return 0
            case "/flow_runs/filter":
                self.asked.append(body)
                return self._found(body)
            case "/artifacts/filter":
                return [{"flow_run_id": "merging 0.0", "data": self.percent, "created": at(0.0)}]
            case _:
                return []

    def _found(self, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        wanted = body["flow_runs"]
        assert wanted["tags"] == {"all_": [TAG]}
        if RECONCILE not in body.get("flows", {"name": {"any_": [RECONCILE]}})["name"]["any_"]:
            return []
        found = [
            {
                "id": f"{name} {ended}",
                "deployment_id": name,
                "end_time": at(ended),
                "state": {"type": kind, "name": kind},
            }
            for name, kind, ended in sorted(self.runs, key=lambda run: run[2], reverse=True)
            if kind in wanted["state"]["type"]["any_"]
            and name in wanted.get("deployment_id", {"any_": [name]})["any_"]
            and at(ended) >= wanted.get("end_time", {"after_": ""})["after_"]
        ]
        return found[:PAGE]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def api(server: Server, monkeypatch: pytest.MonkeyPatch) -> PrefectApi:
    api = PrefectApi("http://127.0.0.1:9/api")
    monkeypatch.setattr(api, "_ask", server.answer)
    return api


def test_a_failed_reconcile_is_over_once_a_later_one_goes_well(server: Server, api: PrefectApi) -> None:
    server.runs = [("llama", "FAILED", 1000.0), ("other", "COMPLETED", 1500.0)]
    failed = last_failure(api.look().runs)
    assert failed is not None
    assert failed.deployment == "llama"
    server.runs += [("llama", "COMPLETED", 2000.0)]
    assert last_failure(api.look().runs) is None
    server.asked.clear()
    assert last_failure(api.look().runs) is None
    assert len(server.asked) == 3, "what is known to be over is asked for no more"
    server.runs += [("llama", "CRASHED", 3000.0)]
    assert last_failure(api.look().runs) is not None


def test_old_failures_of_a_hundred_pipelines_do_not_come_back(server: Server, api: PrefectApi) -> None:
    names = [f"p{number}" for number in range(100)]
    server.runs = [(name, "FAILED", 1000.0 + number) for number, name in enumerate(names)]
    for turn in range(1, 4):
        server.runs += [(name, "COMPLETED", 1000.0 * turn + 500 + number) for number, name in enumerate(names)]
        found = api.look().runs
        assert last_failure(found) is None
    assert len(found) == 200, "of each the failure, and the one run that cleared it"
    assert len(server.asked) <= 3 * 3 + 1


def test_what_was_merged_before_anybody_looked_says_nothing_of_the_speed(server: Server, api: PrefectApi) -> None:
    server.runs, server.percent = [("merging", "RUNNING", 0.0)], 80.0
    api.look()
    server.percent = 90.0
    progress = api.look().runs[0].progress
    assert progress is not None
    assert progress.from_percent == 80.0
    assert progress.left_seconds(progress.since + 60) == 60.0
