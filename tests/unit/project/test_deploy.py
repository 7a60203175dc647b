"""What is in deploy/ can't be run where the tests run, but Prometheus' and Grafana's own parsers read it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard

from evenload.telemetry_collector.export.instruments import INSTRUMENTS
from evenload.telemetry_collector.service.page.findings import ALMOST_FULL, FULL_SOON_S, SPREAD_MAX

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy/prometheus"
GRAFANA = ROOT / "deploy/grafana"
OPERATING = ROOT / "docs/operating.md"
RULES = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARDS = {path.name: json.loads(path.read_text()) for path in (GRAFANA / "dashboards").glob("*.json")}

# What the service exports about itself and its producers, beside INSTRUMENTS: their labels by name.
OF_THE_SERVICE = {
    "evenload_broker_announced_bytes": {"broker_id"},
    "evenload_broker_felt_latency_seconds": {"broker_id", "client"},
    "evenload_broker_replication_throttle_bytes_per_second": {"broker_id"},
    "evenload_client_pushes_total": set(),
    "evenload_clients_pushed_out_total": set(),
    "evenload_even_routes": set(),
    "evenload_function_put_aside_routes": {"function"},
    "evenload_producer_queue_time_seconds": {"client"},
    "evenload_pushing_producers": {"client"},
    "evenload_reassigning_partitions": set(),
    "evenload_route_fallbacks_total": set(),
    "evenload_service_requests_total": {"route", "status"},
    "evenload_service_routes": set(),
    "evenload_throttled_producers": {"client"},
    "evenload_topic_throttled_replicas": {"topic"},
    "evenload_unreadable_client_pushes_total": set(),
}
# What the governor exports, of which tests/unit/governor/service/test_http.py asks it for the values.
OF_THE_GOVERNOR: dict[str, set[str]] = {
    "evenload_governor_jobs": {"state"},
    "evenload_governor_longest_wait_seconds": set(),
    "evenload_governor_policy_put_aside": set(),
    "evenload_governor_ready": set(),
}
EXPORTED = OF_THE_SERVICE | OF_THE_GOVERNOR | {each.name: set(each.labels) for each in INSTRUMENTS}
OF_PROMETHEUS = {"up"}


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            yield f"{name}: {panel['title']}", panel


def expressions() -> dict[str, str]:
    of_panels = {
        f"{title} {target['refId']}": target["expr"]
        for title, panel in panels()
        for target in panel["targets"]
    }
    return of_panels | {rule["alert"]: rule["expr"] for rule in RULES}


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def keep(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(expression), keep)
    return found


@pytest.mark.parametrize("expression", expressions().values(), ids=expressions())
def test_an_expression_asks_only_for_what_is_exported(expression: str) -> None:
    asked = selectors(expression)
    assert asked
    assert {selector.name for selector in asked} <= set(EXPORTED) | OF_PROMETHEUS


def run(promtool: str, *arguments: str) -> None:
    done = subprocess.run(
        [promtool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_its_configuration_and_the_rules(promtool: str) -> None:
    run(promtool, "check", "config", "--lint=all", "--lint-fatal", "prometheus.yml")
    run(promtool, "check", "rules", "--lint=all", "--lint-fatal", "alerts.yml")


def test_prometheus_can_show_a_token_and_check_a_certificate(
    promtool: str, tmp_path: Path, certificate: Path
) -> None:
    for line in ("authorization", "scheme", "tls_config"):
        assert (PROMETHEUS / "prometheus.yml").read_text().count(f"    # {line}: ") == 1
    wanted = re.sub(
        "# (authorization|scheme|tls_config): ", r"\1: ", (PROMETHEUS / "prometheus.yml").read_text()
    )
    (tmp_path / "prometheus.yml").write_text(wanted)
    shutil.copy(PROMETHEUS / "alerts.yml", tmp_path)
    shutil.copy(certificate.with_name("ca.pem"), tmp_path / "authorities.pem")
    (tmp_path / "read-token").write_text("secret")
    run(promtool, "check", "config", "--lint=all", "--lint-fatal", str(tmp_path / "prometheus.yml"))


def test_alerts_fire_when_they_should_and_not_otherwise(promtool: str) -> None:
    run(promtool, "test", "rules", "alerts.test.yml")


def test_every_alert_is_tested() -> None:
    tested = (PROMETHEUS / "alerts.test.yml").read_text()
    assert [
        rule["alert"]
        for rule in RULES
        if f'"{rule["alert"]}"' not in tested and f": {rule['alert']}" not in tested
    ] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_how_urgent_it_is_and_where_help_is(rule: dict[str, Any]) -> None:
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    words = re.findall("[A-Z][a-z]+", rule["alert"].removeprefix("Evenload"))
    assert rule["annotations"]["runbook"] == f"docs/operating.md#{'-'.join(words).lower()}"


def test_every_alert_has_its_heading_in_the_operating_page() -> None:
    headings = re.findall(r"^#+ (.+)$", OPERATING.read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {rule["annotations"]["runbook"].partition("#")[2] for rule in RULES} <= anchors


def test_page_and_pager_have_the_same_bounds() -> None:
    by_name = {rule["alert"]: rule["expr"] for rule in RULES}
    assert by_name["EvenloadBrokerWillBeFull"].count(f"{FULL_SOON_S / 3600:g} * 3600)") == 2
    assert by_name["EvenloadBrokerAlmostFull"].endswith(f"> {ALMOST_FULL}")
    assert by_name["EvenloadBrokersUneven"].endswith(f"> {SPREAD_MAX}")


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_grafana_reads_a_dashboard_as_it_was_written(dashboard: dict[str, Any]) -> None:
    read = json.loads(
        json.dumps(Dashboard.from_json(dashboard).to_json(), default=lambda value: value.to_json())
    )
    assert [panel["title"] for panel in read["panels"]] == [panel["title"] for panel in dashboard["panels"]]
    assert read["uid"] == dashboard["uid"]
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"][
        0
    ]
    for panel in dashboard["panels"]:
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {source["uid"]}


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_panels_lie_beside_each_other(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.parametrize("panel", [pytest.param(panel, id=title) for title, panel in panels()])
def test_a_legend_names_only_labels_that_are_there(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        shown = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
        assert all(shown <= EXPORTED[selector.name or ""] for selector in selectors(target["expr"]))
