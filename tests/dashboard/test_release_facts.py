"""What a page tells of a release."""

from __future__ import annotations

import time

from ckptcore.dashboard import release_facts
from ckptcore.rules.release import Act


def test_the_history_says_who_asked_and_whose_process_did_it() -> None:
    at = "2027-01-01T00:00:00Z"
    asked = Act(at, "promote", "r", "production", user="worker", host="node", by="ada")
    own = Act(at, "pin", "r", user="bob", host="desk")
    told = release_facts.history([asked, own], "r", time.time())
    assert '<bdi class="asked">ada</bdi> through <bdi>worker@node</bdi>' in told
    assert "<bdi>bob@desk</bdi>" in told
