"""The rules of deploy/prometheus and the dashboard of deploy/grafana, beside the metrics of a real scrape.

Prometheus' own promtool checks and tests the rules. These tests are skipped where it is not installed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import headrace
from headrace.monitoring.exposition import make_registry, serving_metrics
from headrace.streaming_sql.workspace import Workspace
from headrace.support import counters
from tests.documents import blocks

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULE_TESTS = ROOT / "tests" / "unit" / "alerts.yml"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "headrace.json").read_text())
PROMTOOL = shutil.which("promtool")
# What Prometheus adds to the names of histograms and counters.
SUFFIXES = ("_bucket", "_count", "_sum", "_total")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool, of Debian's package prometheus, is not here")


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def panels_of(alert: str) -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if alert in panel.get("description", "").split()]


def metrics_in(*expressions: str) -> set[str]:
    return {name for text in expressions for name in re.findall(r"headrace_\w+", text)}


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def promtool(*arguments: str) -> None:
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def exported(tmp_path: Path) -> Iterator[set[str]]:
    """The names of the metrics that Prometheus gets from a process with streams and a store."""
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        registry = make_registry(Workspace(tmp_path), store)
        with serving_metrics(registry, 0) as url, urllib.request.urlopen(url) as answer:
            text = answer.read().decode()
    yield {family.name for family in text_string_to_metric_families(text)}
    counters.disable()


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", "--lint-fatal", str(RULES))


@needs_promtool
def test_the_rules_alert_when_they_should_and_not_otherwise() -> None:
    promtool("test", "rules", str(RULE_TESTS))


def test_each_rule_has_a_test_in_which_it_alerts() -> None:
    tests = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    alerting = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert alerting == set(rules())


def test_rules_and_dashboard_name_only_metrics_that_are_exported(exported: set[str]) -> None:
    named = metrics_in(
        *(rule["expr"] for rule in rules().values()),
        *(query for panel in DASHBOARD["panels"] for query in queries(panel)),
        *(each["query"] for each in DASHBOARD["templating"]["list"]),
    )
    assert len(named) > 20
    for name in named:
        plain = next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
        assert name in exported or plain in exported, name


def test_each_rule_has_a_panel_with_its_metrics() -> None:
    for alert, rule in rules().items():
        (panel,) = panels_of(alert)
        assert metrics_in(*queries(panel)) & metrics_in(rule["expr"]), alert
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@needs_promtool
def test_the_queries_of_the_dashboard_can_be_parsed(tmp_path: Path) -> None:
    queried = [query.replace("$__rate_interval", "5m") for panel in DASHBOARD["panels"] for query in queries(panel)]
    recorded = [{"record": f"panel:query_{number}", "expr": query} for number, query in enumerate(queried)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    promtool("check", "rules", str(file))


@needs_promtool
def test_promtool_accepts_the_configuration_in_the_document(tmp_path: Path) -> None:
    (configuration,) = blocks("docs/monitoring.md", "yaml")
    (tmp_path / "prometheus.yml").write_text(configuration)
    shutil.copy(RULES, tmp_path)
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


def test_the_document_names_each_rule() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `Headrace")] == list(rules())
