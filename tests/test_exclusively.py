"""A server that goes away costs a run a wait before its merge, and nothing after it."""

from __future__ import annotations

import threading
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from ckptcore.detecting import newest_complete
from ckptcore.rules.pipeline import merge_limit
from ckptcore.rules.versions import Version
from tasks.exclusively import alone_with
from tests.builders import SavedCheckpoint
from tests.forwarding import forwarding

pytestmark = pytest.mark.prefect_server

NAME = "alone"


@pytest.fixture
def version(tmp_path: Path) -> Version:
    SavedCheckpoint().tensor("w", np.zeros(4, dtype=np.float32)).write(tmp_path / "plain")
    return newest_complete(tmp_path / "plain")


def active_slots(version: Version) -> int:
    with get_client(sync_client=True) as client:
        limit = client.read_global_concurrency_limit_by_name(merge_limit(NAME, version.directory, version.unique_id))
        return int(limit.active_slots)


def test_the_server_is_away_when_the_slot_is_given_back(server: str, version: Version) -> None:
    address = urlsplit(server)

    @flow
    def publish() -> str:
        with alone_with(version, NAME):
            forwarder.close()
        forwarder.open()
        return "published"

    with (
        forwarding(str(address.hostname), int(address.port or 0)) as forwarder,
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{forwarder.port}/api"}),
    ):
        assert publish() == "published"
    assert active_slots(version) == 0  # Prefect ends what is left when the flow ends


def test_the_server_is_away_when_the_slot_is_taken(server: str, version: Version) -> None:
    address = urlsplit(server)

    @flow
    def publish() -> int:
        forwarder.close()
        threading.Timer(5, forwarder.open).start()
        with alone_with(version, NAME):
            return active_slots(version)

    with (
        forwarding(str(address.hostname), int(address.port or 0)) as forwarder,
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{forwarder.port}/api"}),
    ):
        assert publish() == 1
    assert active_slots(version) == 0
