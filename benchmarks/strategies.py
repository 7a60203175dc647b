"""The strategies that `benchmarks balance` compares, by name.

Most take the topic as the layout has it. Two may also choose where its replicas are, as one can for a new
topic: in proportion to free capacity and filled round robin, or as evenload would. What they reach is shown
beside the best that the layout's own replicas allow, which they may well surpass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.layouts import Layout
from benchmarks.writers import (
    Balanced,
    JavaBalanced,
    JavaClient,
    KafkaPython,
    Librdkafka,
    Load,
    Writer,
    round_robin,
    weighted_by_capacity,
)
from evenload.router.config import LOAD_GOALS, RouterConfig
from evenload.router.forecasting.placement import place_partitions
from evenload.telemetry_collector.snapshot import ClusterSnapshot

EVENLOAD = "evenload"
JAVA = "Java client, evenload"
# Each of its loads starts a service, and follows what that has measured, each 5 s.
JAVA_LAYOUTS = ("capacities 2:2:1", "one broker at 70 %", "old skew 70/20/10", "leaders 4-1-1")
PARTITIONS_PER_BROKER = 5

Assignment = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A named way of writing.

    Attributes:
        name: As in tables.
        open: Gets ready to write a load.
        place: Chooses the topic's replicas, given what the brokers hold, the number of copies and the
            bytes to come (of one copy); None: the layout's.
        layouts: The names of those that it is run in; None: all.
    """

    name: str
    open: Callable[[Load], Writer]
    place: Callable[[ClusterSnapshot, int, int], Assignment] | None = None
    layouts: Collection[str] | None = None

    def is_for(self, layout: Layout) -> bool:
        """Whether it is run in a layout."""
        return self.layouts is None or layout.name in self.layouts


def by_free_capacity(snapshot: ClusterSnapshot, replication: int, _: int) -> Assignment:
    """Leaders in proportion to what is free on each broker before the load, and so all copies."""
    free = {
        broker_id: float(max(0, (broker.capacity_bytes or 0) - broker.used_bytes))
        for broker_id, broker in snapshot.brokers.items()
    }
    brokers = sorted(free)
    led: Counter[int] = Counter()
    held: Counter[int] = Counter()
    assignment = []
    for number in range(1, PARTITIONS_PER_BROKER * len(brokers) + 1):
        replicas = [_furthest_behind(brokers, free, led, number)]
        held[replicas[0]] += 1
        led[replicas[0]] += 1
        while len(replicas) < replication:
            others = [broker_id for broker_id in brokers if broker_id not in replicas]
            replicas.append(_furthest_behind(others, free, held, number * replication))
            held[replicas[-1]] += 1
        assignment.append(tuple(replicas))
    return assignment


def _furthest_behind(
    brokers: Sequence[int], free: Mapping[int, float], has: Mapping[int, int], total: int
) -> int:
    """Which of these brokers lacks most of its proportional part of `total`."""
    whole = sum(free.values())
    return max(brokers, key=lambda broker_id: total * free[broker_id] / whole - has[broker_id])


def by_evenload(snapshot: ClusterSnapshot, replication: int, num_bytes: int) -> Assignment:
    """As `evenload ingest` places a new topic."""
    return place_partitions(
        snapshot,
        num_partitions=PARTITIONS_PER_BROKER * len(snapshot.brokers),
        replication=replication,
        total_bytes=num_bytes,
    )


STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("Java client", JavaClient),
        Strategy(JAVA, JavaBalanced, layouts=JAVA_LAYOUTS),
        Strategy("librdkafka", Librdkafka),
        Strategy("kafka-python", KafkaPython),
        Strategy("round robin", round_robin),
        Strategy("static shares", weighted_by_capacity),
        Strategy("placed by free capacity", round_robin, by_free_capacity),
        Strategy("placed by evenload", Balanced, by_evenload),
        Strategy("evenload, as loads", partial(Balanced, router_config=RouterConfig(goals=LOAD_GOALS))),
        Strategy(EVENLOAD, Balanced),
    )
}
