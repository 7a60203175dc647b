"""`evenload up --telemetry`: what the embedded cluster is given, without starting it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from evenload import local_cluster
from evenload.cli import cluster as cluster_module
from evenload.cli import main
from evenload.jvm import jar
from evenload.local_cluster.cluster import LocalCluster

Up = Callable[..., Result]
PLUGIN = "io.evenload.kafka.telemetry.TelemetryExporterPlugin"


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Up:
    """Do all of `up` but starting servers: settings are written as they would be."""

    def write(cluster: LocalCluster, *_: Any) -> LocalCluster:
        cluster.folder.mkdir(parents=True, exist_ok=True)
        cluster._make_or_update_settings()
        return cluster

    monkeypatch.setenv("EVENLOAD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EVENLOAD_COLLECTOR_TOKEN_FILE", raising=False)
    monkeypatch.setattr(local_cluster.LocalCluster, "start", write)
    monkeypatch.setattr(cluster_module, "_show_cluster", lambda *_: None)
    monkeypatch.setattr(jar, "evenload_jar", lambda _: tmp_path / "evenload.jar")
    return lambda *arguments: CliRunner().invoke(main, ["up", *arguments])


def kept(tmp_path: Path) -> dict[str, str]:
    return dict(LocalCluster.load(tmp_path / "home").broker_properties)


def test_telemetry_is_kept_until_it_is_taken_out(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert up().exit_code == 0
    assert kept(tmp_path) == {}
    monkeypatch.setenv("EVENLOAD_COLLECTOR_TOKEN_FILE", "/secret")
    assert up("--telemetry").exit_code == 0
    first = kept(tmp_path)
    assert first["evenload.telemetry.url"] == "http://127.0.0.1:9405"
    assert first["evenload.telemetry.token.file"] == "/secret"
    assert first["metric.reporters"].endswith(f",{PLUGIN}")
    monkeypatch.delenv("EVENLOAD_COLLECTOR_TOKEN_FILE")
    assert up().exit_code == 0
    assert kept(tmp_path) == first
    assert up("--telemetry", "https://collector:1").exit_code == 0
    assert kept(tmp_path)["evenload.telemetry.url"] == "https://collector:1"
    assert "evenload.telemetry.token.file" not in kept(tmp_path)
    assert up("--no-telemetry").exit_code == 0
    assert kept(tmp_path) == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--telemetry", "--no-telemetry"], "say one of them"),
        (["--telemetry", "collector:9405"], "is not http://HOST:PORT"),
        (["--telemetry", "http://"], "is not http://HOST:PORT"),
        (["--telemetry", "--kafka-version", "3.6.0"], "from Kafka 3.7.0 on, and this is 3.6.0"),
    ],
)
def test_what_cant_be_is_refused(up: Up, tmp_path: Path, arguments: list[str], said: str) -> None:
    result = up(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert not (tmp_path / "home" / "cluster" / "cluster.json").exists()
