"""What a snapshot, a route and a producer's books take of memory, as Python's allocator counts it.

A layout is shared by all snapshots that have it; it is in the figures of both. A producer's books are at
their largest: every partition written to in each of the last two minutes' entries, of which there is one each
3.6 s for 3,000 partitions (own_bytes.py).
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.scale.clusters import STATES, TOPIC, Size, make_cluster, whole_snapshot
from evenload.kafka_plugin.routing.own_bytes import OwnBytes
from evenload.kafka_plugin.routing.topic_routing import TopicRouting
from evenload.router.route import Route
from evenload.router.router import Router

RECORD_BYTES = 1000
BOOKED_S = 120
ROUNDS_PER_S = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """In bytes.

    Attributes:
        watched_snapshot: Of a collector that watches only the topic.
        whole_snapshot: Of one that watches all topics.
        route: Shares, notes, and where a producer stands in them.
        new_routing: What a producer has for the topic before it sends.
        written_routing: The same after two minutes of writing to all partitions.
    """

    watched_snapshot: int
    whole_snapshot: int
    route: int
    new_routing: int
    written_routing: int


def measure_memory(size: Size, seed: int) -> Memory:
    """Build each, and count."""
    cluster = make_cluster(next(iter(STATES)), size, seed)
    snapshot = cluster.snapshot(cluster.used_bytes, 0.0)
    router = Router(start=0.5)

    def decide() -> Route:
        return router.route(
            snapshot, TOPIC, num_partitions=size.num_partitions, remaining_bytes=None, now_s=1.0
        )

    def routing() -> TopicRouting:
        return TopicRouting(TOPIC, size.num_partitions, router=None, cache=None, batch_bytes=RECORD_BYTES)

    decide()  # what is loaded or compiled once is not a route's
    return Memory(
        watched_snapshot=_allocated(lambda: _watched(size, seed)),
        whole_snapshot=_allocated(lambda: whole_snapshot(make_cluster("even", size, seed), size, seed)),
        route=_allocated(decide),
        new_routing=_allocated(routing),
        written_routing=_allocated(lambda: (routing(), _written_books(size.num_partitions))),
    )


def _watched(size: Size, seed: int) -> object:
    cluster = make_cluster("even", size, seed)
    return cluster.snapshot(cluster.used_bytes, 0.0)


def _written_books(num_partitions: int) -> OwnBytes:
    now_s = 0.0
    books = OwnBytes(clock=lambda: now_s)
    for number in range(BOOKED_S * ROUNDS_PER_S):
        now_s = number / ROUNDS_PER_S
        for partition in range(num_partitions):
            books.add_sent(partition, RECORD_BYTES)
            books.add_acknowledged(partition, RECORD_BYTES)
    return books


def _allocated(build: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        built = build()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        del built
        return after - before
    finally:
        tracemalloc.stop()
