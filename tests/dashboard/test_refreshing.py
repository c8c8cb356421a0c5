"""The threads that look: whatever they meet, they say so and go on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ckptcore.dashboard import refreshing
from ckptcore.dashboard.prefect_api import PrefectApi
from ckptcore.dashboard.refreshing import Refresher
from ckptcore.rules.observed import Watched
from ckptcore.rules.observed_runs import ServerSeen
from tests.e2e.running import eventually

URL = "http://127.0.0.1:9/api"


def test_a_release_without_a_manifest_keeps_no_disk_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is never known, so that something is left to see for ever."""
    (tmp_path / "llama" / "releases" / "step-1_id-0_0123456789ab").mkdir(parents=True)
    monkeypatch.setattr(refreshing, "EVERY_SECONDS", 60.0)
    refresher = Refresher([Watched("llama", "llama", registry=str(tmp_path))])
    looks = set[float]()
    refresher.start()
    try:
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            looks.add(refresher.snapshot.at)
            time.sleep(0.01)
    finally:
        refresher.stop()
    assert not refresher.snapshot.pipelines[0].is_measured
    assert len(looks) <= 8, "at 0.2 s there are twenty"


def test_a_server_that_sends_another_shape_is_a_trouble_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([{"runs": "of another version"}, {"runs": "of another version"}])

    def look(_api: PrefectApi) -> ServerSeen:
        answer = next(answers, None)
        return ServerSeen(URL, True, "") if answer is None else ServerSeen(answer["id"])

    monkeypatch.setattr(PrefectApi, "look", look)
    refresher = Refresher([Watched("llama", "llama", server=URL)])
    refresher.start()
    try:
        eventually(lambda: refresher.servers[URL].asked_at > 0, within_s=10, what="an answer")
        seen = refresher.servers[URL]
        assert not seen.is_reachable
        assert "not understood: KeyError" in seen.why
        eventually(lambda: refresher.servers[URL].is_reachable, within_s=10, what="a server that is well again")
    finally:
        refresher.stop()
