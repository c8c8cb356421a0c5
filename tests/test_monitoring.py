"""Grafana's dashboard and Prometheus' alerts ask for nothing that is not there: each query runs on what is exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ckptcore.dashboard.prefect_api import PrefectApi
from ckptcore.metrics import exposition
from ckptcore.rules.observed import Snapshot
from tests.command import REPOSITORY
from tests.monitored import monitored, run_everything, seen_in
from tests.promtool import promtool

GRAFANA = REPOSITORY / "deployments" / "grafana"
PROMETHEUS = REPOSITORY / "deployments" / "prometheus"
DASHBOARD = json.loads((GRAFANA / "ckpt.json").read_text())
ALERTS = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
SCRAPED = 'instance="127.0.0.1:4280", job="ckpt"'
"""What Prometheus adds to each sample."""
Sample = tuple[str, Mapping[str, str], float]
OWN_METRICS = {"up"}
VARIABLES = {"$pipeline": ".*", "$name": ".*", "$__rate_interval": "5m"}


def queries() -> Iterator[tuple[str, str]]:
    """Title and expression of every query of the dashboard."""
    for panel in DASHBOARD["panels"]:
        for number, target in enumerate(panel.get("targets", [])):
            yield f"{panel['title']} {number}", target["expr"]


def plain(expression: str) -> str:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, "a variable that is not known here"
    return expression


@pytest.fixture(scope="module")
def exported(server: str, tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """Every sample of a pipeline in which everything has happened: metric, labels, value."""
    config = monitored(tmp_path_factory.mktemp("monitored"), server)
    run_everything(config)
    api = PrefectApi(server)
    try:
        body, _ = exposition(seen_in(config), {server: api.look()}, "")
    finally:
        api.close()
    families = text_string_to_metric_families(body.decode())
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def series_of(exported: list[Sample]) -> list[dict[str, str]]:
    """The samples as promtool takes them, each standing still for an hour."""
    series = []
    for name, labels, value in exported:
        told = ", ".join([SCRAPED, *(f"{key}={json.dumps(text)}" for key, text in labels.items())])
        series.append({"series": f"{name}{{{told}}}", "values": f"{value!r}x60"})
    return series


@pytest.mark.prefect_server
def test_every_query_of_the_dashboard_gives_something(exported: list[Sample], tmp_path: Path) -> None:
    asked = dict(queries())
    assert len(asked) > 25
    rules = {
        "groups": [
            {"name": "g", "rules": [{"record": f"q:{n}", "expr": plain(e)} for n, e in enumerate(asked.values())]}
        ]
    }
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    promtool("check", "rules", tmp_path / "rules.yaml")
    expected = [
        {"expr": f"count({plain(query)}) > bool 0", "eval_time": "30m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for query in asked.values()
    ]
    document: dict[str, Any] = {
        "rule_files": [],
        "tests": [{"interval": "1m", "input_series": series_of(exported), "promql_expr_test": expected}],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document, width=100_000))
    promtool("test", "rules", tmp_path / "test.yaml")


@pytest.mark.prefect_server
def test_what_alerts_and_variables_ask_for_is_exported(exported: list[Sample]) -> None:
    labels: dict[str, set[str]] = {}
    for name, found, _ in exported:
        labels.setdefault(name, {"instance", "job"}).update(found)
    values = {(name, key, text) for name, found, _ in exported for key, text in found.items()}
    variables = [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    for query in [*variables, *(rule["expr"] for rule in ALERTS)]:
        selectors = re.findall(r"\b(ckpt_\w+|up)\b(?:\{([^}]*)\})?", query)
        assert selectors, query
        for metric, matchers in selectors:
            if metric in OWN_METRICS:
                continue
            assert metric in labels, query
            for key, operator, text in re.findall(r'(\w+)(=~?)"([^"]*)"', matchers):
                assert key in labels[metric], query
                assert operator == "=~" or (metric, key, text) in values, query
    for query in variables:
        [(metric, label)] = re.findall(r"label_values\((\w+).*, (\w+)\)", query)
        assert label in labels[metric]
    for rule in ALERTS:
        [metric, *_] = re.findall(r"ckpt_\w+|\bup\b", rule["expr"])
        told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert metric in OWN_METRICS or told <= labels[metric], rule["alert"]


def test_alerts_fire_when_they_should() -> None:
    promtool("check", "rules", PROMETHEUS / "alerts.yaml")
    promtool("test", "rules", "alerts_test.yaml", cwd=PROMETHEUS)
    tested = yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in tested for case in test["alert_rule_test"] if case.get("exp_alerts")}
    silent = {case["alertname"] for test in tested for case in test["alert_rule_test"] if not case.get("exp_alerts")}
    assert fired == silent == {rule["alert"] for rule in ALERTS}


def test_prometheus_takes_the_configuration() -> None:
    promtool("check", "config", PROMETHEUS / "prometheus.yaml")


def test_every_alert_and_every_metric_is_explained() -> None:
    explained = (REPOSITORY / "docs" / "monitoring.md").read_text()
    assert [rule["alert"] for rule in ALERTS if f"`{rule['alert']}`" not in explained] == []
    body, _ = exposition(Snapshot(), {}, "")
    families = [family.name for family in text_string_to_metric_families(body.decode())]
    ours = [name for name in families if name.startswith("ckpt_")]
    assert len(ours) > 25
    assert [name for name in ours if f"`{name}" not in explained] == []


def test_grafana_can_load_the_dashboard() -> None:
    """Every panel has a place of its own and asks the data source that is chosen; provisioning names its directory."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set[tuple[int, int]]()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}"
    for path in sorted(GRAFANA.rglob("*.yaml")):
        assert yaml.safe_load(path.read_text())["apiVersion"] == 1
