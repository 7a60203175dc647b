"""The write benchmark on a small scale: real brokers, each condition of the collector, each way to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Message

from benchmarks.write.collector_conditions import CONDITIONS
from benchmarks.write.command import OURS, PLAIN, Stand, make_stand, measure_latency, measure_throughput
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.local_cluster import temporary_cluster

NUM_RECORDS, NUM_AT_ONCE, RECORD_BYTES = 1_200, 120, 64 << 10


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    """On brokers of its own: what the benchmark writes, and who is lied to, leaves them uneven."""
    with temporary_cluster(num_brokers=3) as cluster:
        yield make_stand(cluster.connection, cluster.broker_ids)


@pytest.mark.parametrize(
    "condition", [pytest.param(each, marks=[pytest.mark.torture] * (each == "slow")) for each in CONDITIONS]
)
def test_latencies_are_measured_in_each_condition(stand: Stand, condition: str) -> None:
    row = measure_latency(stand, condition, 0.1, 500.0, 2)
    for windows in (row.p50_ms, row.p99_ms):
        assert set(windows) == {PLAIN, OURS}
        assert all(len(each) == 2 and min(each) > 0 for each in windows.values())
    assert all(p99 >= p50 for p50, p99 in zip(row.p50_ms[OURS], row.p99_ms[OURS], strict=True))


@pytest.mark.torture
def test_throughputs_are_measured_in_each_way(stand: Stand) -> None:
    rows = measure_throughput(stand, 256 << 10, 2)
    assert [(row.method, row.has_reports) for row in rows] == [
        ("produce", False),
        ("produce", True),
        ("produce_batch", False),
        ("produce_batch", True),
    ]
    assert all(min(row.rate[PLAIN]) > 0 and min(row.rate[OURS]) > 0 for row in rows)


def _brokers_of_records(stand: Stand, producer: BalancedProducer) -> Counter[int]:
    """How many records went to each broker; partition number p is on broker p mod 3 + 1."""
    went: Counter[int] = Counter()

    def told(error: Any, message: Message) -> None:
        assert error is None
        went[(message.partition() or 0) % 3 + 1] += 1

    for _ in range(NUM_RECORDS // NUM_AT_ONCE):
        for _ in range(NUM_AT_ONCE):
            producer.produce(stand.topics[OURS], bytes(RECORD_BYTES), on_delivery=told)
        assert producer.flush(60) == 0
    return went


def test_a_producer_that_is_lied_to_sends_most_where_it_is_told_to_and_not_all(stand: Stand) -> None:
    with (
        CONDITIONS["lying"](stand.connection, stand.topics[OURS]) as open_ours,
        open_ours(stand.settings) as producer,
    ):
        went = _brokers_of_records(stand, producer)
    # Two thirds, as a leader gets at most twice its even share.
    assert set(went) == {1, 2, 3}
    assert went[1] > went[2] + went[3]


def test_a_producer_whose_collector_is_dead_writes_evenly_and_counts_it(stand: Stand) -> None:
    # However slow the machine is: turns end with their bytes, not with time.
    settings = {**stand.settings, "sticky.partitioning.linger.ms": 60_000}
    with (
        CONDITIONS["dead"](stand.connection, stand.topics[OURS]) as open_ours,
        open_ours(settings) as producer,
    ):
        went = _brokers_of_records(stand, producer)
        turn_records = ProducerConfig().batch_bytes / RECORD_BYTES  # at most
        assert max(went.values()) - min(went.values()) <= 2 * turn_records
        assert producer.num_fallbacks > 0
