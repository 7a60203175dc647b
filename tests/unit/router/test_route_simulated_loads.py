"""Whole loads, followed record by record against brokers that only exist as numbers.

The cluster keeps what is written to it, on every copy; snapshots are taken now and then and arrive late, as
they do in life. What is reached is compared with the best that was possible when the load began.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from evenload.router.config import RouterConfig
from evenload.router.forecasting.forecast import best_possible, planned_layout
from evenload.router.route import Route
from evenload.router.router import Router
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.testing import make_snapshot

MIB = 1 << 20


@dataclass
class Cluster:
    used: list[int]
    capacity: list[int]
    layout: Sequence[Sequence[int]]
    written: Counter[int] = field(default_factory=Counter)

    def write(self, partition: int, size: int) -> None:
        self.written[partition] += size
        for broker_id in self.layout[partition]:
            self.used[broker_id - 1] += size

    def snapshot(self, now_s: float) -> ClusterSnapshot:
        stored = {("t", partition): size for partition, size in self.written.items()}
        return make_snapshot(
            self.used, self.capacity, topics={"t": self.layout}, stored_bytes=stored, taken_at_s=now_s
        )


@dataclass
class Producer:
    """Sends records of 1 to 300 KiB; its snapshot is renewed every 40 of them and is 20 old by then."""

    cluster: Cluster
    remaining: int
    seed: int = 0
    ratio: float = 1.0
    is_told_the_rest: bool = True
    start: float = 0.0
    own: Counter[int] = field(default_factory=Counter)
    waiting: tuple[ClusterSnapshot, Counter[int]] | None = None

    def __post_init__(self) -> None:
        self.router = Router(RouterConfig(), start=self.start)
        self.chance = random.Random(self.seed)
        self.known = self.cluster.snapshot(0.0)
        self.route: Route | None = None
        self.calls = 0
        self.decide()

    def decide(self) -> None:
        self.route = self.router.route(
            self.known,
            "t",
            num_partitions=len(self.cluster.layout),
            remaining_bytes=self.remaining if self.is_told_the_rest else None,
            own_bytes=self.own,
            now_s=1.0,
            previous=self.route,
            stored_ratio=self.ratio,
        )

    def send(self) -> None:
        assert self.route is not None
        size = min(self.remaining, self.chance.randint(1 << 10, 300 << 10))
        partition = self.route.partition_for(size)
        self.cluster.write(partition, int(size * self.ratio))
        self.remaining -= size
        self.own[partition] += size
        self.calls += 1
        if self.calls % 40 == 0:
            self.waiting = (self.cluster.snapshot(0.0), Counter(self.own))
        if self.calls % 40 == 20 and self.waiting is not None:
            self.known, counted = self.waiting
            self.own -= counted
            self.decide()

    def send_all(self) -> None:
        while self.remaining > 0:
            self.send()


def reached(cluster: Cluster) -> dict[int, float]:
    return {i + 1: used / of for i, (used, of) in enumerate(zip(cluster.used, cluster.capacity, strict=True))}


def spread(utilisation: Mapping[int, float]) -> float:
    return max(utilisation.values()) - min(utilisation.values())


LAYOUTS = {
    "capacities 2:2:1": ([0, 0, 0], [400, 400, 200], [(1,), (2,), (3,)] * 4),
    "one broker at 70 %": ([280, 40, 40], [400, 400, 400], [(1,), (2,), (3,)] * 4),
    "leaders mostly on one broker": ([0, 0, 0], [400] * 3, [(1,)] * 10 + [(2,), (3,)]),
    "all leaders on one broker": ([0, 0, 0, 0], [400] * 4, [(1, 2), (1, 3), (1, 4)] * 3),
    "coupled sets": ([100, 40, 160, 0], [400] * 4, [(1, 2), (2, 3), (3, 4), (4, 1), (2, 4)]),
    "six brokers, three sizes": (
        [60, 20, 100, 10, 150, 30],
        [200, 200, 400, 400, 600, 600],
        [(a, b) for a in range(1, 7) for b in range(1, 7) if a != b],
    ),
    "as many copies as brokers": ([100, 40, 10], [400] * 3, [(1, 2, 3), (2, 3, 1), (3, 1, 2)]),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("ratio", [1.0, 0.6])
def test_a_load_ends_within_a_point_of_the_best_possible(name: str, ratio: float) -> None:
    used, capacity, layout = LAYOUTS[name]
    cluster = Cluster([size * MIB for size in used], [size * MIB for size in capacity], layout)
    total = sum(cluster.capacity) - sum(cluster.used)
    load = int(0.4 * total / len(layout[0]))
    best = best_possible(cluster.snapshot(0.0), planned_layout(layout), total_bytes=int(load * ratio))
    Producer(cluster, load, ratio=ratio).send_all()
    after = reached(cluster)
    assert max(after.values()) <= max(best.values()) + 0.01
    assert spread(after) <= spread(best) + 0.01


def test_a_load_that_others_disturb_half_way_ends_as_level_as_it_still_can() -> None:
    layout = [(1,), (2,), (3,)] * 4
    cluster = Cluster([0, 0, 0], [400 * MIB] * 3, layout)
    producer = Producer(cluster, 400 * MIB)
    while producer.remaining > 200 * MIB:
        producer.send()
    cluster.used[1] += 150 * MIB  # somebody else fills broker 2
    best = best_possible(cluster.snapshot(0.0), planned_layout(layout), total_bytes=producer.remaining)
    producer.send_all()
    # Until it learns of that, the producer sends up to 60 more records, a third of them to broker 2.
    assert spread(reached(cluster)) <= spread(best) + 0.01


def test_a_stream_of_unknown_length_levels_what_was_uneven() -> None:
    cluster = Cluster([280 * MIB, 80 * MIB, 40 * MIB], [1000 * MIB] * 3, [(1,), (2,), (3,)] * 2)
    producer = Producer(cluster, 700 * MIB, is_told_the_rest=False)
    producer.send_all()
    assert spread(reached(cluster)) < 0.01


def test_many_producers_with_late_snapshots_do_not_herd() -> None:
    chance = random.Random(1)
    num_brokers, num_producers = 20, 50
    layout = [tuple(chance.sample(range(1, num_brokers + 1), 2)) for _ in range(120)]
    used = [chance.randint(800, 1120) * MIB for _ in range(num_brokers)]
    cluster = Cluster(used, [3000 * MIB] * num_brokers, layout)
    producers = [
        Producer(cluster, 1 << 40, seed=i, is_told_the_rest=False, start=i / num_producers)
        for i in range(num_producers)
    ]
    begin = spread(reached(cluster))
    for _ in range(4):
        before = list(cluster.used)
        for _ in range(40):  # one sampling period of each
            for producer in producers:
                producer.send()
        got = [now - then for now, then in zip(cluster.used, before, strict=True)]
        assert max(got) <= 2 * sum(got) / num_brokers
    assert spread(reached(cluster)) < 0.9 * begin
