"""A topic's partitions can become more or fewer; records go only to those that the client knows."""

from __future__ import annotations

import time

import pytest

from evenload.kafka_plugin.routing.topic_routing import TopicRouting
from evenload.router.router import Router
from evenload.telemetry_collector.cache import SnapshotCache
from evenload.telemetry_collector.testing import make_snapshot

MIB = 1 << 20


class Client:
    """Knows so many partitions, and counts how often it was asked."""

    def __init__(self, num_known: int | None) -> None:
        self.num_known = num_known
        self.num_asked = 0

    def count_partitions(self, topic: str, num_measured: int) -> int | None:
        assert topic == "t"
        assert num_measured > 0
        self.num_asked += 1
        return self.num_known


def _measured(num_partitions: int) -> SnapshotCache:
    cache = SnapshotCache(30.0)
    layout = [(1 + partition % 2,) for partition in range(num_partitions)]
    cache.put(make_snapshot([0, 0], 1000 * MIB, topics={"t": layout}, taken_at_s=time.time()))
    return cache


def _routing(cache: SnapshotCache, client: Client | None) -> TopicRouting:
    count_partitions = client.count_partitions if client is not None else None
    return TopicRouting(
        "t", 2, router=Router(), cache=cache, batch_bytes=MIB, count_partitions=count_partitions
    )


def _used(routing: TopicRouting) -> set[int]:
    return {routing.partition_for(MIB) for _ in range(20)}


def test_partitions_that_the_client_does_not_know_yet_are_not_used() -> None:
    client = Client(2)
    routing = _routing(_measured(4), client)
    routing.refresh(None)
    assert _used(routing) == {0, 1}
    client.num_known = 4
    routing.refresh(None)
    assert _used(routing) == {0, 1, 2, 3}
    routing.refresh(None)
    assert client.num_asked == 2  # and no more, as they agree


def test_partitions_that_are_gone_are_not_used_even_without_a_snapshot() -> None:
    routing = _routing(_measured(1), Client(1))
    routing.refresh(None)
    assert _used(routing) == {0}
    routing._cache = SnapshotCache(30.0)
    assert routing.refresh(None).is_fallback
    assert _used(routing) == {0}


def test_while_nobody_can_say_how_many_there_are_the_known_ones_are_used() -> None:
    routing = _routing(_measured(4), Client(None))
    routing.refresh(None)
    assert _used(routing) == {0, 1}


def test_a_topic_of_ones_own_keeps_its_partitions() -> None:
    routing = _routing(_measured(4), None)
    routing.refresh(None)
    assert _used(routing) == {0, 1}


def test_what_routing_cannot_level_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    cache = SnapshotCache(30.0)
    routing = _routing(cache, None)
    for used_mib in (100, 150):
        used = [0, 0, used_mib * MIB]  # broker 1 and 2 hold the topic; then broker 3 does too
        layout = [(1,), (3,)]
        cache.put(make_snapshot(used, 1000 * MIB, topics={"t": layout}, taken_at_s=time.time()), age_s=0)
        routing.refresh(900 * MIB)
        routing.refresh(800 * MIB)
    said = [record.getMessage() for record in caplog.records]
    (unreached,) = [each for each in said if "no partition of" in each]
    assert unreached.startswith("topic t: broker 2 could take data but holds no partition")
    assert len(said) == len({each.split(" (")[0] for each in said})
