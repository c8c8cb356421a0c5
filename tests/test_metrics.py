"""The metrics as Prometheus reads them: from real sources, a real registry and a real Prefect server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from ckptcore import Choice, run
from ckptcore.dashboard.prefect_api import PrefectApi
from ckptcore.metrics import MOST_ALIASES, exposition
from ckptcore.observing import Observer
from ckptcore.rules.observed import AliasSeen, PipelineSeen, Snapshot, Watched
from ckptcore.rules.observed_runs import RunKind, RunSeen, ServerSeen
from ckptcore.rules.pipeline import pipeline_tag
from tests.builders import write_trainer_run
from tests.dashboard.serving import serving
from tests.e2e.running import eventually
from tests.monitored import NAME, SAVED, monitored, run_everything, seen_in
from tests.promtool import promtool

TOKEN = "of twelve and more"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
Samples = Mapping[str, Mapping[tuple[str, ...], float]]


def scraped(snapshot: Snapshot, servers: Mapping[str, ServerSeen] = {}) -> Samples:
    """Every sample by its metric and its labels' values, but for pipeline and name, in the order of their keys."""
    body, content_type = exposition(snapshot, servers, "")
    assert content_type.startswith("text/plain")
    return samples_in(body)


def samples_in(body: bytes) -> Samples:
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for name, labels, value, *_ in family.samples:
            key = tuple(labels[label] for label in sorted(labels) if label not in ("pipeline", "name"))
            assert key not in samples.setdefault(name, {})
            samples[name][key] = value
    return samples


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return monitored(tmp_path_factory.mktemp("monitored"))


def test_sources_and_registries_as_they_are(config: Path) -> None:
    snapshot = seen_in(config)
    samples = scraped(snapshot)
    [published] = [each for each in snapshot.pipelines[0].versions if each.step == 2]
    states = {"published": 2, "complete": 1, "damaged": 1, "incomplete": 1, "writing": 1, "merging": 0, "retired": 0}
    assert samples["ckpt_versions"] == {(state,): count for state, count in states.items()}
    steps = {"published": 2, "complete": 3, "damaged": 4, "incomplete": 5, "writing": 6}
    assert samples["ckpt_newest_step"] == {(state,): step for state, step in steps.items()}
    ages = samples["ckpt_newest_age_seconds"]
    assert ages["writing",] < 60 < 3600 <= ages["damaged",] < 3700
    assert samples["ckpt_publication_lag_seconds"][()] == pytest.approx(3600, abs=90)
    assert samples["ckpt_stall_limit_seconds"][()] == 7200
    assert samples["ckpt_stalled"][()] == 0
    assert samples["ckpt_alias_step"] == {("latest",): 2, ("production",): 2}
    assert samples["ckpt_alias_broken"] == {("latest",): 0, ("production",): 0}
    assert samples["ckpt_releases"][()] == samples["ckpt_publications_total"][()] == 2
    registry = config.parent / "registry"
    lies = [path for path in (registry / NAME / "releases").rglob("*") if path.is_file()]
    assert samples["ckpt_registry_bytes"][()] == sum(path.stat().st_size for path in lies)
    disk = os.statvfs(registry)
    assert samples["ckpt_disk_size_bytes"] == {(str(registry),): disk.f_blocks * disk.f_frsize}
    assert samples["ckpt_pipeline_info"] == {("latest", str(registry), str(config.parent / "run")): 1}
    assert published.release
    shard = registry / NAME / "releases" / published.release / "model.safetensors"
    assert samples["ckpt_step_bytes_total"]["merge",] == 2 * shard.stat().st_size
    assert set(samples["ckpt_step_seconds_total"]) == {(v,) for v in ("detect", "verify", "plan", "merge", "validate")}
    took = samples["ckpt_last_step_seconds"]["merge",]
    assert samples["ckpt_last_step_bytes_per_second"]["merge",] == pytest.approx(shard.stat().st_size / took)
    assert samples["process_resident_memory_bytes"][()] > 10e6


def test_promtool_and_openmetrics_read_them(config: Path) -> None:
    body, _ = exposition(seen_in(config), {"http://127.0.0.1:9/api": ServerSeen("http://127.0.0.1:9/api")}, "")
    assert promtool("check", "metrics", given=body) == ""
    body, content_type = exposition(seen_in(config), {}, OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    families = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    assert "ckpt_versions" in {family.name for family in families}


def test_names_from_a_disk_are_labels_and_nothing_else(tmp_path: Path) -> None:
    hostile = os.fsdecode(b'run"\n# HELP x\nx{a="b"} 1\n\\ \xff')
    source, registry = tmp_path / hostile, tmp_path / "registry"
    write_trainer_run(source, {1: SAVED})
    run(Choice(str(write_trainer_run(tmp_path / "run", {1: SAVED}))), registry, NAME)
    (registry / NAME / 'a"} 1\nckpt_stalled 1').symlink_to("releases/step-1_id-0_000000000000")
    snapshot = Observer([Watched("k", NAME, source=str(source), registry=str(registry))]).look()
    samples = scraped(snapshot)
    assert not {name for name in samples if not name.startswith(("ckpt_", "process_"))}
    assert "ckpt_stalled" not in samples
    [[_, _, where]] = samples["ckpt_pipeline_info"]
    assert where == str(source).encode(errors="backslashreplace").decode()
    assert samples["ckpt_alias_broken"]['a"} 1\nckpt_stalled 1',] == 1
    promtool("check", "metrics", given=exposition(snapshot, {}, "")[0])


def test_whoever_makes_an_alias_for_each_release_does_not_fill_prometheus() -> None:
    aliases = tuple(AliasSeen(f"a{number}", "r", step=number) for number in range(1000))
    samples = scraped(Snapshot(1.0, 1, (PipelineSeen(Watched("k", "k", registry="/r"), aliases=aliases),)))
    assert len(samples["ckpt_alias_step"]) == MOST_ALIASES


SERVER = "http://user:secret@127.0.0.1:4200/api"
WATCHED = Watched("llama", "llama", pipeline="llama", source="/run", registry="/r", server=SERVER)


def test_a_dead_server_takes_its_own_metrics_away_and_no_others(config: Path) -> None:
    snapshot = seen_in(config)
    server = snapshot.pipelines[0].watched.server
    dead = PrefectApi(server)
    try:
        samples = scraped(snapshot, {server: dead.look()})
    finally:
        dead.close()
    assert {name for name in samples if name.startswith("ckpt_prefect_")} == {"ckpt_prefect_up"}
    assert samples["ckpt_prefect_up"] == {(server,): 0}
    assert samples["ckpt_versions"]["published",] == 2


def test_no_secret_of_an_address_is_told() -> None:
    body, _ = exposition(Snapshot(), {SERVER: ServerSeen(SERVER, True)}, "")
    assert b"secret" not in body
    assert b'ckpt_prefect_up{server="http://127.0.0.1:4200/api"} 1.0' in body


def test_what_a_server_says_is_counted_under_names_of_a_list() -> None:
    tags = frozenset({pipeline_tag("llama")})
    runs = tuple(
        RunSeen("i", "n", flow, "llama", state, RunKind.FAILED, message, ended_at=4e9, tags=tags)
        for flow, state, message in [
            ("merge-and-publish", "Refused", "Whatever: a refusal of a later version"),
            ("merge-and-publish", "Failed", "Flow run encountered an exception: Busy: another process"),
            ("merge-and-publish", "Failed", "Flow run encountered an exception: KeyError: 'Busy'"),
            ("of-somebody-else", "Failed", ""),
        ]
    )
    samples = scraped(Snapshot(1.0, 1, (PipelineSeen(WATCHED),)), {SERVER: ServerSeen(SERVER, True, runs=runs)})
    assert samples["ckpt_prefect_recent_refusals"] == {("other",): 1, ("Busy",): 1}
    flows = {flow for flow, _ in samples["ckpt_prefect_recent_runs"]}
    assert flows == {"merge-and-publish", "other"}


@pytest.mark.prefect_server
def test_runs_as_a_server_has_them(server: str, tmp_path: Path) -> None:
    config = monitored(tmp_path, server, "of its own")
    run_everything(config)
    api = PrefectApi(server)
    try:
        samples = scraped(seen_in(config), {server: api.look()})
    finally:
        api.close()
    merge = "merge-and-publish"
    assert samples["ckpt_prefect_up"] == {(server,): 1}
    assert samples["ckpt_prefect_late_runs"][server,] >= 1
    assert samples["ckpt_prefect_scheduled_runs"][server,] >= 1
    runs = samples["ckpt_prefect_runs"]
    assert (runs[merge, "running"], runs[merge, "waiting"]) == (1, 0)
    recent = samples["ckpt_prefect_recent_runs"]
    assert (recent[merge, "done"], recent[merge, "failed"], recent["audit", "failed"]) == (1, 4, 1)
    assert samples["ckpt_prefect_recent_refusals"] == {
        ("SelectionError",): 2,
        ("StorageError",): 1,
        ("ReleaseInvalid",): 1,
    }
    assert samples["ckpt_prefect_failing"]["audit",] == 1


def test_the_dashboard_serves_them_to_who_knows_its_secret(config: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "--config", config, secret=TOKEN) as served, httpx.Client(base_url=served.url) as client:
        refused = client.get("/metrics")
        assert refused.status_code == 401
        assert "ckpt_" not in refused.text
        assert client.get("/metrics", headers={"Authorization": "Bearer another token"}).status_code == 401
        eventually(
            lambda: ("published",) in _told(client).get("ckpt_newest_step", {}), within_s=60, what="a first look"
        )
        told = _told(client)
    assert told["ckpt_newest_step"]["published",] == 2
    assert told["ckpt_prefect_up"] == {("http://127.0.0.1:9/api",): 0}


def _told(client: httpx.Client) -> Samples:
    answer = client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.headers["content-type"].startswith("text/plain")
    promtool("check", "metrics", given=answer.content)
    return samples_in(answer.content)
