"""Keyed records go where the Java client would put them; others where the router says, and count once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.partitioner import murmur2

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.key_partition import java_partition
from evenload.kafka_plugin.partitioner import NodeAwarePartitioner
from evenload.telemetry_collector.collector import Collector

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
JAVA_MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), JAVA_MURMUR2.items())
def test_murmur2_is_the_java_clients(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % 2**32
    assert java_partition(key, 7) == (hashed & 0x7FFFFFFF) % 7


def test_a_record_that_is_asked_about_again_for_a_new_batch_counts_once() -> None:
    known: Any = SimpleNamespace(partitions_for_topic=lambda _: {0, 1, 2})
    config = ProducerConfig(first_snapshot_timeout_s=0, batch_bytes=1000)
    collector = Collector(Connection(bootstrap_servers="127.0.0.1:1"))
    with NodeAwarePartitioner("127.0.0.1:1", config=config, collector=collector) as partitioner:
        sent = [0, 0, 0]
        for _ in range(300):
            first = partitioner.partition("t", None, None, None, b"x" * 500, known)
            partitioner.on_new_batch("t", known, first)
            sent[partitioner.partition("t", None, None, None, b"x" * 500, known)] += 500
        routing = partitioner._routes.find("t")
        assert routing is not None
        assert [routing.own_bytes.sent(number) for number in range(3)] == sent
        assert max(sent) - min(sent) <= 1000
