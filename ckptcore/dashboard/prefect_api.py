"""Ask a Prefect server by its REST API: which runs there are, how far they are, and to start one.

Never imports Prefect, which takes seconds and a hundred megabytes. A server that does not answer soon is one that is
not there: what was asked raises :class:`PrefectUnavailable`, with a reason for people.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx

from ckptcore.clock import seconds_of
from ckptcore.dashboard.prefect_refusals import StartUnknown, is_sure, refusal
from ckptcore.errors import PrefectUnavailable
from ckptcore.rules.addresses import public_address
from ckptcore.rules.observed_runs import (
    Progress,
    RunKind,
    RunSeen,
    ServerSeen,
    clears,
    kind_of_state,
    standing_failures,
)
from ckptcore.rules.pipeline import RECONCILE

TIMEOUT_SECONDS = 3.0
TAG = "ckpt"
"""Everything that ``ckpt deploy`` makes has it."""
_PAGE = 200
_AT_WORK = ["RUNNING", "PENDING", "CANCELLING", "PAUSED"]
_ENDED = ["COMPLETED", "CANCELLED"]
_FAILED = ["FAILED", "CRASHED"]
_NAMES_SECONDS = 30.0

Json = Mapping[str, Any]


class PrefectApi:
    """One server. Safe to share between threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(
            base_url=url, timeout=TIMEOUT_SECONDS, headers=_headers(), auth=_basic(), follow_redirects=False
        )
        self._flows: dict[str, str] = {}
        self._deployments: dict[str, tuple[str, str]] = {}
        self._named_at = float("-inf")
        self._progressed: dict[str, Progress] = {}
        self._cleared: dict[str, RunSeen] = {}
        """The run that cleared a failure, by the id of the failure, where the server was asked for it."""

    def close(self) -> None:
        self._client.close()

    def look(self) -> ServerSeen:
        """What the server says now. Raises nothing: that it does not answer is an answer."""
        try:
            self._learn_names()
            at_work = self._runs(_AT_WORK, "START_TIME_DESC")
            progress = self._progress([run.id for run in at_work if run.kind is RunKind.RUNNING])
            at_work = [replace(run, progress=progress.get(run.id)) for run in at_work]
            ended = [*self._runs(_FAILED, "END_TIME_DESC"), *self._runs(_ENDED, "END_TIME_DESC", without=[RECONCILE])]
            ended += self._later_successes(ended)
            ended.sort(key=lambda run: run.ended_at or 0.0, reverse=True)
            late, scheduled = self._scheduled_count("before_"), self._scheduled_count("after_")
        except PrefectUnavailable as error:
            return ServerSeen(self.url, why=error.message, asked_at=time.time())
        deployments = {f"{flow}/{name}": key for key, (flow, name) in self._deployments.items()}
        return ServerSeen(self.url, True, "", time.time(), (*at_work, *ended), late, deployments, scheduled)

    def run(self, run_id: str) -> RunSeen:
        """One run as it is now. Raises :class:`PrefectUnavailable`."""
        return self._run(self._ask("GET", f"/flow_runs/{run_id}"))

    def runs_of(self, run_ids: Sequence[str]) -> tuple[RunSeen, ...]:
        """Those of the runs that the server still has. Raises :class:`PrefectUnavailable`."""
        if not run_ids:
            return ()
        found = self._ask("POST", "/flow_runs/filter", {"flow_runs": {"id": {"any_": list(run_ids)}}, "limit": _PAGE})
        return tuple(map(self._run, found))

    def step_seconds(self, run_ids: Sequence[str]) -> Mapping[str, Mapping[str, float]]:
        """How long each step of each run took, by the id of the run and the name of the task.

        Raises :class:`PrefectUnavailable`.
        """
        steps: dict[str, dict[str, float]] = {}
        offset = 0
        while run_ids:
            page = self._ask(
                "POST",
                "/task_runs/filter",
                {
                    "task_runs": {"flow_run_id": {"any_": list(run_ids)}},
                    "sort": "EXPECTED_START_TIME_ASC",
                    "limit": _PAGE,
                    "offset": offset,
                },
            )
            for task in page:
                name = str(task.get("name") or "").rpartition("-")[0] or str(task.get("name"))
                seconds = task.get("total_run_time")
                if isinstance(seconds, (int, float)):
                    of_run = steps.setdefault(str(task.get("flow_run_id")), {})
                    of_run[name] = of_run.get(name, 0.0) + float(seconds)
            offset += len(page)
            if len(page) < _PAGE:
                break
        return steps

    def table_of(self, run_id: str) -> tuple[Mapping[str, str], ...]:
        """The rows of the tables that a run left, those of all its names. Raises :class:`PrefectUnavailable`."""
        asked = {"artifacts": {"type": {"any_": ["table"]}, "flow_run_id": {"any_": [run_id]}}, "limit": _PAGE}
        rows: list[Mapping[str, str]] = []
        for found in self._ask("POST", "/artifacts/filter", asked):
            data = found.get("data")
            try:
                rows += json.loads(data) if isinstance(data, str) else data or ()
            except ValueError:
                continue
        return tuple(row for row in rows if isinstance(row, dict))

    def start(self, deployment: str, parameters: Json, tags: Iterable[str], *, key: str) -> RunSeen:
        """Start a run of ``FLOW/NAME``, or give the one that was started with this ``key`` before.

        Raises :class:`PrefectUnavailable` where there is none for sure, also where it is not deployed, and
        :class:`StartUnknown` where there may be one.
        """
        flow, _, name = deployment.partition("/")
        found = self._ask("GET", f"/deployments/name/{_quoted(flow)}/{_quoted(name)}")
        body = {
            "parameters": dict(parameters),
            "tags": list(tags),
            "enforce_parameter_schema": True,
            "idempotency_key": key,
        }
        try:
            return self._run(self._ask("POST", f"/deployments/{found['id']}/create_flow_run", body))
        except PrefectUnavailable as error:
            if is_sure(error.__cause__):
                raise
            unknown = StartUnknown(error.message)
            unknown.deployment_id = str(found["id"])
            raise unknown from error

    def _learn_names(self) -> None:
        if time.monotonic() - self._named_at < _NAMES_SECONDS:
            return
        tagged = {"deployments": {"tags": {"all_": [TAG]}}}
        deployments = self._all("/deployments/filter", tagged)
        flows = {str(flow["id"]): str(flow["name"]) for flow in self._all("/flows/filter", {})}
        self._flows = flows
        self._deployments = {
            str(each["id"]): (flows.get(str(each["flow_id"]), ""), str(each["name"])) for each in deployments
        }
        self._named_at = time.monotonic()

    def _runs(self, states: Sequence[str], sort: str, without: Sequence[str] = (), **more: Json) -> list[RunSeen]:
        asked: dict[str, Any] = {
            "flow_runs": {"tags": {"all_": [TAG]}, "state": {"type": {"any_": list(states)}}, **more},
            "sort": sort,
            "limit": _PAGE,
        }
        if without and (kept := sorted(set(self._flows.values()) - set(without))):
            asked["flows"] = {"name": {"any_": kept}}
        return [self._run(found) for found in self._ask("POST", "/flow_runs/filter", asked)]

    def _later_successes(self, ended: Sequence[RunSeen]) -> list[RunSeen]:
        """The runs that cleared failures and are not among the last that ended.

        All pipelines share those, reconciles that went well would crowd out all others, and failures stay for long. So
        one request asks for what came after the failures that still stand; what it finds is remembered.
        """
        there = {run.id for run in ended}
        self._cleared = {failed: run for failed, run in self._cleared.items() if failed in there}
        keys = {place: key for key, place in self._deployments.items()}
        standing = [
            run
            for run in standing_failures([*ended, *self._cleared.values()])
            if run.ended_at is not None and (run.flow, run.deployment) in keys
        ]
        if standing:
            since = datetime.fromtimestamp(min(run.ended_at or 0.0 for run in standing), UTC)
            deployments = sorted({keys[run.flow, run.deployment] for run in standing})
            found = self._runs(
                ["COMPLETED"],
                "END_TIME_DESC",
                deployment_id={"any_": deployments},
                end_time={"after_": since.isoformat()},
            )
            for failed in standing:
                if (run := next((run for run in found if clears(run, failed)), None)) is not None:
                    self._cleared[failed.id] = run
        return list({run.id: run for run in self._cleared.values() if run.id not in there}.values())

    def _run(self, found: Json) -> RunSeen:
        state = found.get("state") or {}
        flow, deployment = self._deployments.get(str(found.get("deployment_id")), ("", ""))
        return RunSeen(
            id=str(found["id"]),
            name=str(found.get("name") or ""),
            flow=flow or self._flows.get(str(found.get("flow_id")), ""),
            deployment=deployment,
            state=str(state.get("name") or found.get("state_name") or ""),
            kind=kind_of_state(str(state.get("type") or found.get("state_type") or "")),
            message=str(state.get("message") or ""),
            started_at=_time(found.get("start_time")),
            ended_at=_time(found.get("end_time")),
            tags=frozenset(map(str, found.get("tags") or ())),
        )

    def _progress(self, run_ids: Sequence[str]) -> dict[str, Progress]:
        found = self._told(run_ids) if run_ids else {}
        self._progressed = {run: told.after(self._progressed.get(run)) for run, told in found.items()}
        return self._progressed

    def _told(self, run_ids: Sequence[str]) -> dict[str, Progress]:
        """How far each run says that it is, as if it was seen for the first time."""
        asked = {
            "artifacts": {"type": {"any_": ["progress"]}, "flow_run_id": {"any_": list(run_ids)}},
            "sort": "UPDATED_DESC",
            "limit": _PAGE,
        }
        progress: dict[str, Progress] = {}
        for found in self._ask("POST", "/artifacts/filter", asked):
            try:
                percent = float(found["data"])
            except (KeyError, TypeError, ValueError):
                continue
            told = Progress(percent, str(found.get("description") or ""), time.time(), percent)
            progress.setdefault(str(found.get("flow_run_id")), told)
        return progress

    def _scheduled_count(self, side: str) -> int:
        """How many runs wait for a worker whose time is over, or for their time."""
        scheduled = {
            "tags": {"all_": [TAG]},
            "state": {"type": {"any_": ["SCHEDULED"]}},
            "expected_start_time": {side: datetime.now(UTC).isoformat()},
        }
        return int(self._ask("POST", "/flow_runs/count", {"flow_runs": scheduled}))

    def _all(self, path: str, asked: Json) -> list[Json]:
        found: list[Json] = []
        while True:
            page = self._ask("POST", path, {**asked, "limit": _PAGE, "offset": len(found)})
            found += page
            if len(page) < _PAGE:
                return found

    def _ask(self, method: str, path: str, body: Json | None = None) -> Any:
        try:
            answer = self._client.request(method, path, json=body)
            answer.raise_for_status()
            return answer.json()
        except httpx.TimeoutException as error:
            raise PrefectUnavailable(
                f"{public_address(self.url)} does not answer within {TIMEOUT_SECONDS:.0f} s"
            ) from error
        except httpx.HTTPStatusError as error:
            raise PrefectUnavailable(f"{public_address(self.url)}{path}: {refusal(error.response)}") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise PrefectUnavailable(f"{public_address(self.url)} cannot be reached: {error}") from error


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _time(text: object) -> float | None:
    return seconds_of(text) if isinstance(text, str) else None


def _headers() -> dict[str, str]:
    key = os.environ.get("PREFECT_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _basic() -> httpx.BasicAuth | None:
    """What Prefect's own client takes from the environment."""
    user, colon, password = os.environ.get("PREFECT_API_AUTH_STRING", "").partition(":")
    return httpx.BasicAuth(user, password) if colon else None
