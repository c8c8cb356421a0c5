"""The threads that look: whatever they meet, they say so and go on."""

from __future__ import annotations

import pytest

from ckptcore.dashboard.prefect_api import PrefectApi
from ckptcore.dashboard.refreshing import Refresher
from ckptcore.rules.observed import Watched
from ckptcore.rules.observed_runs import ServerSeen
from tests.e2e.running import eventually

URL = "http://127.0.0.1:9/api"


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
