"""SASL OAUTHBEARER before real brokers: all clients prove who they are by tokens of a file or a provider."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import BrokersUnreachableError, Connection, KafkaConnectionError
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.local_cluster.settings import free_ports
from evenload.ray_trainer.reading.reader import DatasetReader
from evenload.telemetry_collector.collector import sample_once

NUM_SAMPLES = 500
CONFIG = LoaderConfig(stall_timeout_s=60)
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_LOGIN = f"{_OAUTH}.OAuthBearerLoginModule"
_VALIDATOR = f"{_OAUTH}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"


def token_of(name: str, *, lasts_s: float = 3600.0) -> str:
    """One that Kafka's validator for tests accepts: it isn't signed."""
    now_s = time.time()
    parts = ({"alg": "none"}, {"sub": name, "iat": now_s - 1, "exp": now_s + lasts_s})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""])


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two brokers that may also be reached by whoever has a token, for as long as that counts."""
    ports = free_ports(2)
    with temporary_cluster(
        num_brokers=2,
        properties_by_broker={
            broker_id: {
                "listeners": f"OAUTH://127.0.0.1:{port}",
                "advertised.listeners": f"OAUTH://127.0.0.1:{port}",
                "listener.security.protocol.map": "OAUTH:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{_LOGIN} required;",
                "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": _VALIDATOR,
                "connections.max.reauth.ms": "3600000",
            }
            for broker_id, port in enumerate(ports, start=1)
        },
    ) as cluster:
        cluster.oauth_servers = ",".join(f"127.0.0.1:{port}" for port in ports)  # type: ignore[attr-defined]
        yield cluster


@pytest.fixture
def provider() -> Iterator[str]:
    """The URL of an OpenID provider that knows `loader`."""
    proof = f"Basic {base64.b64encode(b'loader:hush').decode()}"

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            is_known = self.headers["Authorization"] == proof
            answer = json.dumps({"access_token": token_of("loader"), "expires_in": 3600}).encode()
            self.send_response(200 if is_known else 401)
            self.end_headers()
            self.wfile.write(answer if is_known else b"{}")

        def log_message(self, *_: Any) -> None:
            """Not on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()
        thread.join()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(token_of("loader"))
    return path


def described(cluster: LocalCluster, **oauth: Any) -> Connection:
    return Connection.model_validate(
        {
            "bootstrap_servers": cluster.oauth_servers,  # type: ignore[attr-defined]
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth": oauth,
            "capacity_bytes_by_broker": cluster.connection.capacity_bytes_by_broker,
        }
    )


def use_all_clients(connection: Connection, name: str) -> None:
    """Load, measure, verify, read and produce."""
    samples = {"n": np.arange(NUM_SAMPLES), "x": np.zeros((NUM_SAMPLES, 50), np.uint8)}
    manifest = load_dataset(samples, name, connection=connection, config=CONFIG)
    assert verify(connection, manifest).is_clean
    assert all(broker.used_bytes for broker in sample_once(connection).brokers.values())
    with closing(
        DatasetReader(name, global_batch_size=64, hold_whole=False, connection=connection)
    ) as reader:
        assert sum(batch.num_samples for batch in reader) == NUM_SAMPLES
    topic = f"{name}-produced"
    with open_admin(connection) as admin:
        admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}})
    with BalancedProducer(connection.confluent_config(), connection=connection) as producer:
        for _ in range(10):
            producer.produce(topic, b"x")
        assert producer.flush(60) == 0


def test_all_clients_prove_who_they_are_by_a_token_of_a_file(
    cluster: LocalCluster, token_file: Path, topic_name: str
) -> None:
    use_all_clients(described(cluster, token_path=token_file), topic_name)


def test_all_clients_prove_who_they_are_by_a_token_of_a_provider(
    cluster: LocalCluster, provider: str, topic_name: str
) -> None:
    connection = described(cluster, token_url=provider, client_id="loader", client_secret="hush")
    use_all_clients(connection, topic_name)


def test_a_renewed_file_counts_without_a_new_description(cluster: LocalCluster, token_file: Path) -> None:
    connection = described(cluster, token_path=token_file)
    with open_admin(connection) as admin:
        assert admin.describe_cluster()
    token_file.write_text("no-token-of-these-brokers")
    with pytest.raises(BrokersUnreachableError, match="of this token or security protocol"):
        open_admin(connection, timeout_s=5)
    token_file.write_text(token_of("loader"))
    with open_admin(connection) as admin:
        assert admin.describe_cluster()


def test_without_a_token_the_reason_is_said(cluster: LocalCluster, token_file: Path, provider: str) -> None:
    token_file.write_text(token_of("loader", lasts_s=-60))
    with pytest.raises(KafkaConnectionError, match="expired"):
        open_admin(described(cluster, token_path=token_file), timeout_s=5)
    wrong = described(cluster, token_url=provider, client_id="loader", client_secret="wrong")
    with pytest.raises(KafkaConnectionError, match="answered with status 401"):
        open_admin(wrong, timeout_s=5)
