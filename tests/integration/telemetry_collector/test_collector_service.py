"""`evenload collector` as operators run it, before real brokers: producers and loads measure through it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.config import LoaderConfig, ProducerConfig
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.service.client import RemoteCollector

StartCollector = Callable[..., Any]
WaitUntil = Callable[[Callable[[], bool]], None]


class Clock:
    """It goes on by itself, and is set forward by tests."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead_s

    def forward(self, by_s: float) -> None:
        self._ahead_s += by_s


@pytest.fixture
def topic(connection: Connection, topic_name: str) -> str:
    with open_admin(connection) as admin:
        admin.create_topics({topic_name: {"num_partitions": 6, "replication_factor": 1}})
    return topic_name


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)


def _metrics(url: str) -> dict[str, float]:
    """By name, summed over labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        page = response.read().decode()
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


def _measuring_here() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "evenload-collector"]


def test_producers_route_by_what_the_service_measures_and_report_to_it(
    connection: Connection, start_collector: StartCollector, topic: str, wait_until: WaitUntil
) -> None:
    url = start_collector(connection).url
    with_service = connection.model_copy(update={"collector_url": url})
    config = ProducerConfig(batch_bytes=10_000, report_s=0.1, refresh_s=0.1)
    settings = {"bootstrap.servers": connection.bootstrap_servers}
    with BalancedProducer(settings, connection=with_service, config=config) as producer:
        for _ in range(200):
            producer.produce(topic, b"x" * 1000)
        assert producer.flush(60) == 0
        assert _measuring_here() == []
        assert producer.num_fallbacks == 0
        wait_until(lambda: _metrics(url)["evenload_service_routes"] == 1)
    assert set(_get(f"{url}/v1/snapshot?topics={topic}")["topics"]) == {topic}


def test_one_of_two_services_dies_and_only_its_producers_go_on_without(
    connection: Connection, start_collector: StartCollector, topic: str, wait_until: WaitUntil
) -> None:
    services = [start_collector(connection), start_collector(connection)]
    for service in services:
        wait_until(lambda url=service.url: _is_ready(url))
    # What is known gets old when the clock is set, and no answer is given up because the machine is busy.
    patient = CollectorConfig(interval_s=0.2, deadline_s=60.0, full_deadline_s=60.0, age_max_s=1000.0)
    clocks = [Clock(), Clock()]
    settings = {"bootstrap.servers": connection.bootstrap_servers}
    with ExitStack() as opened:
        producers = []
        for service, clock in zip(services, clocks, strict=True):
            with_service = connection.model_copy(update={"collector_url": service.url})
            collector = RemoteCollector(with_service, patient, [], clock=clock)
            opened.enter_context(collector)
            producers.append(
                opened.enter_context(BalancedProducer(settings, connection=with_service, collector=collector))
            )

        def send() -> None:
            for producer in producers:
                for _ in range(100):
                    producer.produce(topic, b"x" * 1000)
                assert producer.flush(60) == 0

        send()
        assert [producer.num_without_service for producer in producers] == [0, 0]
        services[0].end(signal.SIGKILL)
        clocks[0].forward(600.0)
        wait_until(lambda: producers[0].num_without_service == 1)
        clocks[0].forward(600.0)
        send()
        assert [producer.num_without_service for producer in producers] == [1, 0]

        def has_fallen_back() -> bool:
            send()
            return producers[0].num_fallbacks > 0

        wait_until(has_fallen_back)  # even shares, once what it knew is too old
        assert producers[1].num_fallbacks == 0


def test_a_load_announces_what_it_will_still_write_and_takes_it_back(
    connection: Connection, start_collector: StartCollector, topic_name: str, wait_until: WaitUntil
) -> None:
    url = start_collector(connection).url
    with_service = connection.model_copy(update={"collector_url": url})
    announced: list[int] = []

    def progress(done: int, total: int, _: int) -> None:
        if not announced and done > total / 2:
            wait_until(lambda: bool(_get(f"{url}/v1/snapshot")["announced"]))
            announced.append(sum(_get(f"{url}/v1/snapshot")["announced"].values()))

    rng = np.random.default_rng(1)
    samples = {"x": rng.integers(0, 255, (2000, 1000), np.uint8)}
    manifest = load_dataset(
        samples,
        topic_name,
        connection=with_service,
        config=LoaderConfig(transaction_bytes=100_000, block_bytes=10_000),
        progress=progress,
    )
    assert 0 < announced[0] < 1.2 * manifest.num_bytes
    assert _measuring_here() == []
    assert _get(f"{url}/v1/snapshot")["announced"] == {}


def test_weights_changed_with_the_token_reach_producers_that_run(
    connection: Connection, start_collector: StartCollector, topic: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    token_path, weights_path = tmp_path / "token", tmp_path / "weights.json"
    token_path.write_text("secret\n")
    options = ("--operate-token-file", str(token_path), "--weights", str(weights_path))
    service = start_collector(connection, *options)
    with_service = connection.model_copy(update={"collector_url": service.url})
    config = ProducerConfig(refresh_s=0.1)
    settings = {"bootstrap.servers": connection.bootstrap_servers}
    with (
        RemoteCollector(with_service, topics=[]) as collector,
        BalancedProducer(settings, connection=with_service, config=config, collector=collector) as producer,
    ):
        producer.produce(topic, b"x")
        producer.flush(60)
        _change_weights(service.url, {"goals": {"dataset_spread": 1.0}})
        goals = producer._routes._router._goals
        wait_until(lambda: [goal.name for goal in goals.current] == ["dataset_spread"])
    service.end(signal.SIGKILL)
    service.start()
    assert _get(f"{service.url}/v1/weights") == {"goals": {"dataset_spread": 1.0}}


def _change_weights(url: str, weights: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"{url}/v1/weights",
        data=json.dumps(weights).encode(),
        method="PUT",
        headers={"Authorization": "Bearer secret"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 200


@pytest.mark.parametrize(("by", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_is_ready_soon_and_stops_at_once_though_nobody_takes_what_it_pushes(
    connection: Connection,
    start_collector: StartCollector,
    by: int,
    status: int,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A push that is waited for takes longer than anybody waits for the service's end.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "600")
    service = start_collector(connection, "--otlp-endpoint", "http://127.0.0.1:9/v1/metrics")
    wait_until(lambda: _is_ready(service.url))
    assert service.end(by) == status


def _is_ready(url: str) -> bool:
    try:
        return bool(_get(f"{url}/readyz")["status"] == "ready")
    except urllib.error.HTTPError:
        return False


def test_without_brokers_it_serves_and_says_why_it_is_not_ready(
    start_collector: StartCollector, wait_until: WaitUntil
) -> None:
    url = start_collector(Connection(bootstrap_servers="127.0.0.1:9")).url
    assert _get(f"{url}/healthz") == {"status": "alive"}

    def says_why() -> bool:
        with pytest.raises(urllib.error.HTTPError) as raised:
            _get(f"{url}/readyz")
        assert raised.value.code == 503
        sentence = json.load(raised.value)["error"]
        return "nothing has been measured yet; cluster_metadata:" in sentence

    wait_until(says_why)


def test_a_port_that_is_taken_is_a_sentence(connection: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = subprocess.run(
            [
                str(Path(sys.executable).with_name("evenload")),
                *("collector", "--port", str(port), "--bootstrap-servers", connection.bootstrap_servers),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1
    assert str(port) in failed.stderr
    assert "address already in use" in failed.stderr


class Pushed:
    """What was pushed over OTLP to an endpoint of ours."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        pushed = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportMetricsServiceRequest.FromString(body)
                for resource in request.resource_metrics:
                    for scope in resource.scope_metrics:
                        pushed.names |= {metric.name for metric in scope.metrics}
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Not to stderr."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/metrics"


@pytest.fixture
def pushed() -> Iterator[Pushed]:
    pushed = Pushed()
    serving = threading.Thread(target=pushed.server.serve_forever)
    serving.start()
    yield pushed
    pushed.server.shutdown()
    serving.join()
    pushed.server.server_close()


def test_metrics_are_pushed_where_it_is_asked_for(
    connection: Connection, start_collector: StartCollector, pushed: Pushed, wait_until: WaitUntil
) -> None:
    service = start_collector(connection, "--otlp-endpoint", pushed.url)
    wait_until(lambda: _is_ready(service.url))
    service.end(signal.SIGTERM)  # what was measured last is pushed at the end
    wait_until(lambda: {"evenload_broker_used_bytes", "evenload_service_requests_total"} <= pushed.names)
