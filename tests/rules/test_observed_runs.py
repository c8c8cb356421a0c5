"""What runs say of a pipeline: which is current, which failure still counts, and how long a merge takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckptcore.rules.observed import Watched
from ckptcore.rules.observed_runs import (
    Progress,
    RunKind,
    RunSeen,
    ServerSeen,
    current,
    kind_of_state,
    last_failure,
)
from ckptcore.rules.pipeline import AUDIT, MERGE, by_tag, person_of, pipeline_tag, run_tags


def run(flow: str, kind: RunKind, ended_at: float | None = None, deployment: str = "llama") -> RunSeen:
    tags = frozenset({pipeline_tag("llama")})
    return RunSeen("1", "a run", flow, deployment, "Failed", kind, "first\nsecond", ended_at=ended_at, tags=tags)


def test_a_failure_counts_until_the_same_goes_well() -> None:
    failed = run(MERGE, RunKind.FAILED, 10.0)
    assert last_failure([failed]) == failed
    assert last_failure([failed, run(AUDIT, RunKind.DONE, 20.0)]) == failed
    assert last_failure([run(MERGE, RunKind.DONE, 20.0), failed]) is None
    assert last_failure([run(MERGE, RunKind.DONE, 5.0), failed]) == failed
    assert failed.sentence == f"{MERGE} failed: first"


@pytest.mark.parametrize(("step", "is_over"), [(100, False), (200, True), (300, True), (None, True)])
def test_a_merge_of_an_older_version_clears_no_failure_of_a_newer(step: int | None, is_over: bool) -> None:
    failed, well = (
        replace(run(MERGE, kind, ended_at), tags=frozenset(run_tags("llama", of)))
        for kind, ended_at, of in ((RunKind.FAILED, 10.0, 200), (RunKind.DONE, 20.0, step))
    )
    assert (last_failure([well, failed]) is None) is is_over


def test_the_run_that_publishes_comes_before_others() -> None:
    others = [run(AUDIT, RunKind.RUNNING), run(MERGE, RunKind.RUNNING), run(MERGE, RunKind.WAITING)]
    assert current(others) == others[1]
    assert current(others[:1]) == others[0]
    assert current(others[2:]) is None


def test_runs_belong_to_the_name_that_they_publish_or_to_the_whole_pipeline() -> None:
    mine, other, all_of_it = (
        run(MERGE, RunKind.DONE, 1.0),
        run(MERGE, RunKind.DONE, 1.0, "llama-ema"),
        run(AUDIT, RunKind.DONE, 1.0, "llama"),
    )
    server = ServerSeen("http://x", True, runs=(mine, other, all_of_it))
    assert server.of(Watched("llama", "llama", pipeline="llama")) == (mine, all_of_it)
    assert server.of(Watched("x", "x", pipeline="another")) == ()


@pytest.mark.parametrize(("percent", "left"), [(25.0, 30.0), (0.0, None), (100.0, None)])
def test_what_is_left_takes_as_long_as_what_is_done(percent: float, left: float | None) -> None:
    assert Progress(percent, "", since=100.0).left_seconds(110.0) == left


@pytest.mark.parametrize(("percent", "left"), [(90.5, None), (92.0, 40.0), (95.0, 10.0)])
def test_a_merge_that_goes_on_is_as_fast_as_it_was_seen_to_be(percent: float, left: float | None) -> None:
    first = Progress(90.0, "", since=100.0, from_percent=90.0)
    later = Progress(percent, "", since=110.0, from_percent=percent).after(first)
    assert later.left_seconds(110.0) == left


def test_a_run_that_begins_anew_is_seen_for_the_first_time() -> None:
    first = Progress(90.0, "", since=100.0, from_percent=90.0)
    again = Progress(5.0, "", since=110.0, from_percent=5.0)
    assert again.after(first) == again


def test_states_and_people() -> None:
    assert kind_of_state("CRASHED") is RunKind.FAILED
    assert kind_of_state("SOMETHING_NEW") is RunKind.RUNNING
    assert person_of(["ckpt", by_tag("ada")]) == "ada"
    assert person_of(["ckpt"]) == ""
