"""docker-compose.yml can't be started where the tests run, but its form can be checked."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenload.jvm.broker_plugin import plugin_properties
from evenload.local_cluster.jars import KAFKA_VERSION

COMPOSE = Path(__file__).parents[3] / "docker-compose.yml"
DOCKER = COMPOSE.parent / "deploy" / "docker"


@pytest.fixture
def compose() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())


def test_it_satisfies_the_compose_specification() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_every_broker_votes_under_its_own_name_and_advertises_the_port_it_publishes(
    compose: dict[str, Any],
) -> None:
    for number in (1, 2, 3):
        broker = compose["services"][f"broker-{number}"]
        environment = broker["environment"]
        assert environment["KAFKA_NODE_ID"] == str(number)
        assert f"{number}@broker-{number}:9093" in environment["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")
        assert f"OUTSIDE://localhost:2909{number}" in environment["KAFKA_ADVERTISED_LISTENERS"]
        assert broker["ports"] == [f"127.0.0.1:2909{number}:2909{number}"]


def test_images_are_built_of_exact_versions_and_the_ones_that_are_pinned(compose: dict[str, Any]) -> None:
    built = {service["build"]["dockerfile"] for service in compose["services"].values() if "build" in service}
    assert built == {str(path.relative_to(COMPOSE.parent)) for path in DOCKER.iterdir()}
    bases = {
        path.name: re.findall(r"^FROM (\S+)", path.read_text(), re.MULTILINE) for path in DOCKER.iterdir()
    }
    assert all(re.search(r":\d+\.\d+\.\d+", base) for found in bases.values() for base in found)
    assert f":{importlib.metadata.version('ray')}-" in bases["trainer.Dockerfile"][0]
    assert bases["broker.Dockerfile"][-1] == f"apache/kafka:{KAFKA_VERSION}"


def test_brokers_hand_on_to_the_collector_what_clients_push(compose: dict[str, Any]) -> None:
    told = plugin_properties(KAFKA_VERSION, "http://collector:9405")
    for number in (1, 2, 3):
        environment = compose["services"][f"broker-{number}"]["environment"]
        # As Kafka's image reads it.
        assert (
            told.items()
            <= {
                name.removeprefix("KAFKA_").lower().replace("_", "."): value
                for name, value in environment.items()
            }.items()
        )


def test_prometheus_scrapes_the_port_that_the_collector_serves(compose: dict[str, Any]) -> None:
    scraped = yaml.safe_load((COMPOSE.parent / "deploy/prometheus/prometheus.yml").read_text())
    collector = compose["services"]["collector"]
    assert scraped["scrape_configs"][0]["static_configs"] == [{"targets": ["collector:9405"]}]
    assert "--port 9405" in collector["command"]
    assert collector["ports"] == ["127.0.0.1:9405:9405"]
    assert "--allowed-host collector " in collector["command"]


def test_what_is_mounted_from_here_is_here(compose: dict[str, Any]) -> None:
    mounted = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith("./")
    ]
    assert len(mounted) == 3
    assert all((COMPOSE.parent / folder).is_dir() for folder in mounted)
