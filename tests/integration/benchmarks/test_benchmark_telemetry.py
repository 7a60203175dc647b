"""The telemetry benchmark on a small scale: what real brokers say was asked of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.telemetry.broker_counts import CountedBrokers, counted_cluster
from benchmarks.telemetry.command import as_operators_have_it, make_topics
from benchmarks.telemetry.report import IDLE, ONE, OWN, ROUTES_OF_MANY, SERVICE, Case, Window
from benchmarks.telemetry.windows import ServiceProcess, measure_window
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.config import CollectorConfig

ONCE = CollectorConfig(
    interval_s=3600, full_interval_s=3600, age_max_s=10_000, deadline_s=60, full_deadline_s=60
)
WINDOW_S = 6.0  # a collector measures within it, once or twice


@pytest.fixture(scope="module")
def brokers() -> Iterator[CountedBrokers]:
    """Two, with exporters."""
    with counted_cluster(2, {}) as brokers:
        make_topics(brokers)
        yield brokers


def _measured(brokers: CountedBrokers, case: Case, service: ServiceProcess | None = None) -> Window:
    connection = as_operators_have_it(brokers)
    topics = {way: ["telemetry-0", "telemetry-1"] for way in (OWN, SERVICE, ROUTES_OF_MANY)}
    return measure_window(brokers, connection, topics, case=case, service=service, window_s=WINDOW_S)


def test_brokers_count_what_one_measurement_asks(brokers: CountedBrokers) -> None:
    connection = as_operators_have_it(brokers)
    before = brokers.read()
    with Collector(connection, ONCE, ["telemetry-0"]) as collector:
        collector.snapshot(timeout_s=120)
    asked = (brokers.read() - before).requests
    # One to each broker; whoever asks before there is a snapshot may have a second measurement begun.
    assert 2 <= asked["DescribeLogDirs"] <= 4
    assert asked["Metadata"] > 0


@pytest.mark.torture
def test_a_collector_each_asks_as_many_times_as_there_are_producers(brokers: CountedBrokers) -> None:
    assert _measured(brokers, IDLE).num_requests == 0
    one, ten = (_measured(brokers, Case(OWN, number)).requests for number in (1, 10))
    assert 0 < one["DescribeLogDirs"] * WINDOW_S < 5
    assert 4 < ten["DescribeLogDirs"] / one["DescribeLogDirs"] < 25


@pytest.mark.torture
def test_producers_of_a_service_are_one_to_brokers(brokers: CountedBrokers) -> None:
    with ServiceProcess(as_operators_have_it(brokers)) as service:
        many, following = (_measured(brokers, Case(way, 40), service) for way in (SERVICE, ROUTES_OF_MANY))
    assert 0 < many.requests["DescribeLogDirs"] * WINDOW_S < 5
    assert 0 < following.requests["DescribeLogDirs"] * WINDOW_S < 5
    assert many.service_requests * WINDOW_S > 32
    assert following.service_requests > 20  # each asks once a second
    # Processor time comes in hundredths of a second.
    assert many.service_cpu_ms > 0
    assert _measured(brokers, ONE).service_cpu_ms == 0
