"""A pipeline in which everything has happened that a metric tells of: versions of every state, runs of every end."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from ckptcore import Choice, promote, run
from ckptcore.observing import Observer
from ckptcore.rules.observed import Snapshot
from ckptcore.watched import watched_in_configs
from tests.builders import SavedCheckpoint, write_trainer_run

NAME = 'lla"ma {x}'
"""Allowed as a name, by the registry and by Prefect; every format needs to escape some of it."""
SAVED = SavedCheckpoint().tensor("w", [float(number) for number in range(24)], grid=(2,))


def monitored(directory: Path, server: str = "", name: str = NAME) -> Path:
    """The pipeline's file. Step 1 and 2 are published, 3 is complete, 4 damaged, 5 incomplete, 6 being written."""
    source, registry = write_trainer_run(directory / "run", dict.fromkeys(range(1, 7), SAVED)), directory / "registry"
    at = {step: source / f"checkpoint-{step}" / "model_state" for step in range(1, 7)}
    rank_file = at[4] / "1_0.distcp"
    rank_file.write_bytes(rank_file.read_bytes()[:-8])
    for step in (5, 6):
        (at[step] / "1_0.distcp").unlink()
    hour_ago = time.time() - 3600
    for path in (path for step in range(1, 6) for path in [*at[step].parent.rglob("*"), at[step].parent]):
        os.utime(path, (hour_ago, hour_ago))
    run(Choice(str(source), step=1), registry, name)
    _yesterday(registry / name / "history.jsonl")
    run(Choice(str(source), step=2), registry, name)
    promote(registry, f"{name}@latest", "production")
    document = {
        "name": name,
        "registry": str(registry),
        "stall": "2h",
        "sources": [{"path": str(source)}],
        "server": {"url": server or "http://127.0.0.1:9/api"},
    }
    config = directory / "ckpt.yaml"
    config.write_text(yaml.safe_dump(document))
    return config


def _yesterday(history: Path) -> None:
    """What was done is a day ago: a registry that grows needs time to do so."""
    [act] = map(json.loads, history.read_text().splitlines())
    act["at"] = (datetime.fromisoformat(act["at"]) - timedelta(days=1)).isoformat().replace("+00:00", "Z")
    history.write_text(json.dumps(act) + "\n")


def seen_in(config: Path) -> Snapshot:
    """All that is there to be seen of the pipeline."""
    observer = Observer(watched_in_configs([config]))
    observer.look()
    while not observer.has_seen_all:
        observer.look()
    return observer.snapshot


def run_everything(config: Path) -> None:
    """Deploy the pipeline to the configured server, and give it one run of each end and each kind of waiting."""
    # Prefect takes seconds to import, which most tests do without.
    from prefect.client.orchestration import get_client
    from prefect.states import Completed, Crashed, Failed, Running, Scheduled

    from ckptcore.config import read_config
    from ckptcore.rules.pipeline import REFUSED
    from flows.deploying import deploy

    pipeline = read_config(config)
    deploy(pipeline, str(config.parent))
    now = datetime.now(UTC)
    states: dict[str, list[Any]] = {
        f"merge-and-publish/{pipeline.name}": [
            Completed(),
            Failed(name=REFUSED, message="SelectionError: nothing is selected\n  tensor 'w'"),
            Failed(name=REFUSED, message="SelectionError: nothing is selected"),
            Failed(message='Flow run encountered an exception: StorageError: "/mnt" is gone'),
            Crashed(message="Flow run process exited with non-zero status code -9."),
            Running(),
            Scheduled(scheduled_time=now - timedelta(minutes=10)),
            Scheduled(scheduled_time=now + timedelta(hours=1)),
        ],
        f"audit/{pipeline.name}": [Failed(name=REFUSED, message="ReleaseInvalid: 2 issue(s)")],
    }
    with get_client(sync_client=True) as client:
        for deployment, ends in states.items():
            found = client.read_deployment_by_name(deployment)
            for state in ends:
                flow_run = client.create_flow_run_from_deployment(
                    found.id, state=state if state.is_scheduled() else None
                )
                if not state.is_scheduled():
                    client.set_flow_run_state(flow_run.id, state, force=True)
