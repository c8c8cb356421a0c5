"""kill -9 of the flow, the worker, both, the server and the database, while a flow is stopped in each of the steps.

Seven versions are published at once, and each of the seven steps stops one of them, so that a kill hits all steps.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import pytest

from ckptcore.registry import releases_on, resolve, shelf_of
from tests.e2e.mishaps import Stops, database, has_postgresql, reading
from tests.e2e.running import Training, Up, eventually, published_steps, running
from tests.e2e.stopping.sitecustomize import STEPS
from tests.receiver import receiving

pytestmark = [pytest.mark.e2e, pytest.mark.kills]

NAME = "tiny"
DATABASE_AWAY_S = 8.0
SERVER_AWAY_S = 120.0


def kill_flows(up: Up) -> None:
    for process in up.flows().values():
        os.kill(process, signal.SIGKILL)


def kill_both(up: Up) -> None:
    # The worker first, or it would live to tell the server.
    os.kill(up.children()["worker"], signal.SIGKILL)
    kill_flows(up)


VICTIMS: dict[str, Callable[[Up], None]] = {
    "flow": kill_flows,
    "worker": lambda up: up.kill("worker"),
    "flow and worker": kill_both,
    "server": lambda up: os.kill(up.children()["server"], signal.SIGKILL),
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_in_each_step(victim: str, tmp_path: Path, tell: Callable[[str], None]) -> None:
    tell(_try(victim, VICTIMS[victim], tmp_path))


def test_the_server_is_away_for_longer_than_a_run_may_be_silent(tmp_path: Path, tell: Callable[[str], None]) -> None:
    def kill(up: Up) -> None:
        up.process.send_signal(signal.SIGSTOP)  # so that it starts no other
        os.kill(up.children()["server"], signal.SIGKILL)

    def come_back(up: Up) -> None:
        time.sleep(SERVER_AWAY_S)
        up.process.send_signal(signal.SIGCONT)

    tell(_try("server, for two minutes", kill, tmp_path, come_back))


@pytest.mark.skipif(not has_postgresql(), reason="needs PostgreSQL")
def test_the_database_is_killed_in_each_step(tmp_path: Path, tell: Callable[[str], None]) -> None:
    with database() as held:

        def kill(_: Up) -> None:
            held.kill()

        def come_back(_: Up) -> None:
            time.sleep(DATABASE_AWAY_S)
            held.start()

        environment = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": held.url}
        tell(_try("database", kill, tmp_path, come_back, environment))


def _try(
    victim: str,
    kill: Callable[[Up], None],
    directory: Path,
    come_back: Callable[[Up], None] = lambda _: None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The row of the table."""
    training, registry, stops = Training(directory / "run"), directory / "registry", Stops(directory / "stops")
    stops.ask_for(*STEPS)
    steps = range(1, len(STEPS) + 1)
    with ExitStack() as running_:
        receiver = running_.enter_context(receiving())
        notified = {"webhook": receiver.url, "alerts": ["failed", "refused", "crashed"]}
        up = running_.enter_context(
            running(
                directory,
                environment=stops.environment | dict(environment),
                notifications=[notified],
                limits={"merges": len(STEPS), "queued": len(STEPS)},
                checks={"smoke": "tests.smoke_functions:good"},
            )
        )
        reader = running_.enter_context(reading(registry, NAME))
        for step in steps:
            training.write(step)
            training.announce(step, up.url)
        stopped = stops.wait_for(*STEPS)
        step_of = _steps_by_process(up)
        assert releases_on(shelf_of(registry, NAME)) == ()
        assert not os.path.lexists(registry / NAME / "latest")

        killed_at = time.time()
        kill(up)
        stops.let_go()
        come_back(up)
        published = _published_at(registry, len(steps))
        eventually(lambda: all(run["end_time"] for run in up.merges()), within_s=900, what="every run in a final state")
        eventually(lambda: not up.active_slots(), within_s=300, what="every slot given back")
        states = Counter(str(run["state_name"]) for run in up.merges())
        match victim:
            case "flow" | "flow and worker":
                assert states == {"Crashed": len(steps), "Completed": len(steps)}
            case "worker":
                # Prefect ends the flows of a worker that is gone, and one may have published by then.
                assert states["Crashed"] <= len(steps) <= states["Crashed"] + states["Completed"]
                assert set(states) == {"Crashed", "Completed"}
            case "server, for two minutes":
                # Silence is taken for death by then, of runs that live, publish and say so in the end.
                eventually(
                    lambda: {run["state_name"] for run in up.merges()} == {"Completed"}, within_s=300, what="their end"
                )
                states = Counter(str(run["state_name"]) for run in up.merges())
                assert states == {"Completed": len(steps)}
            case _:
                assert states == {"Completed": len(steps)}
        eventually(lambda: len(receiver.requests) >= states["Crashed"], within_s=300, what="the alerts")
        alerts = Counter((body["alert"], body["resource"]) for _, _, body in receiver.requests)
        assert set(alerts.values()) <= {1}
        assert {alert for alert, _ in alerts} <= {"crashed"}
        # Of runs that were called Crashed and lived, the server may or may not have told.
        assert len(alerts) == states["Crashed"] or (victim.startswith("server,") and len(alerts) <= len(steps))
        assert sorted(published_steps(registry, NAME)) == list(steps)
        assert resolve(registry, NAME).name.startswith(f"step-{steps[-1]}_")
        assert reader.problems == []
        assert not list((registry / NAME / ".staging").iterdir())
    seconds = {name: published[step_of[process]] - killed_at for name, process in stopped.items()}
    return _row(victim, seconds, states)


def _steps_by_process(up: Up) -> dict[int, int]:
    """The training step that each flow's process publishes."""
    runs = {run["id"]: run for run in up.runs()}
    parameters = {process: runs[run]["parameters"] for run, process in up.flows().items() if run in runs}
    return {
        process: int(Path(each["directory"]).parent.name.removeprefix("checkpoint-"))
        for process, each in parameters.items()
        if each.get("directory")
    }


def _published_at(registry: Path, count: int) -> dict[int, float]:
    """When each step came into the history."""
    seen: dict[int, float] = {}

    def all_seen() -> bool:
        for step in published_steps(registry, NAME):
            seen.setdefault(step, time.time())
        return len(seen) == count

    eventually(all_seen, within_s=900, what=f"{count} releases")
    return seen


def _row(victim: str, seconds: Mapping[str, float], states: Mapping[str, int]) -> str:
    """A row of the table in docs/reliability.md."""
    ended = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"| {' | '.join([victim, *(f'{seconds[step]:.0f} s' for step in STEPS), ended])} |"
