"""How full each way of choosing partitions would make the brokers, before a byte is written.

The idea: a strategy is described by the part of the copies that each broker is expected to get, and by how
far chance may take it from there. Round robin and the router leave almost nothing to chance. A partitioner
that draws a partition every few milliseconds gets more even with more draws. Keys are as even as the
application made them.

Bytes are stored bytes, of one copy, as in forecast.py. Parts of copies sum to the number of copies. Read
next: advice.py, which says what it means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evenload.router.brokers import BrokerTable, Layout, tabulate
from evenload.router.config import RouterConfig
from evenload.router.min_max import FloatArray
from evenload.router.route import Route
from evenload.router.router import Router
from evenload.telemetry_collector.snapshot import ClusterSnapshot

__all__ = [
    "DRAW_BYTES",
    "StrategyForecast",
    "by_chance",
    "by_shares",
    "kafka_placed",
    "parts_of",
    "routed",
    "with_topic",
]

# librdkafka stays on a random partition for `sticky.partitioning.linger.ms`, 10 ms. At the 1.5 GB/s that it
# reaches at most, that is this much; slower loads draw more often, and come out more even.
DRAW_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyForecast:
    """Utilisation of each broker, by id, after a load.

    Attributes:
        expected: on average.
        low: 19 of 20 loads end above.
        high: and below this, as far as chance can be known.
        note: what this rests on.
    """

    expected: Mapping[int, float]
    low: Mapping[int, float]
    high: Mapping[int, float]
    note: str

    @property
    def spread(self) -> float:
        """Highest minus lowest, on average."""
        return max(self.expected.values()) - min(self.expected.values())


def by_shares(
    snapshot: ClusterSnapshot, layout: Layout, shares: Mapping[int, float], *, total_bytes: int, note: str
) -> StrategyForecast:
    """Partitions get what they are given; `shares` by partition, summing to 1."""
    table = tabulate(snapshot, layout)
    parts = _parts(table, layout, shares)
    return _told(table, parts, parts, parts, total_bytes, note)


def routed(
    snapshot: ClusterSnapshot,
    topic: str,
    *,
    total_bytes: int,
    config: RouterConfig,
    weight_by_broker: Mapping[int, float] | None = None,
) -> Route:
    """What the router would decide for a load into a topic of the snapshot, with an operator's weights."""
    router = Router(config)
    router.reload(brokers=weight_by_broker)
    return router.route(
        snapshot,
        topic,
        num_partitions=max(snapshot.topics[topic]) + 1,
        remaining_bytes=total_bytes,
        now_s=snapshot.taken_at_s,
    )


def by_chance(
    snapshot: ClusterSnapshot,
    parts: Mapping[int, tuple[float, float, float]],
    *,
    total_bytes: int,
    draw_bytes: int = 0,
    note: str,
) -> StrategyForecast:
    """Brokers get copies in proportion, as chance has it.

    Args:
        snapshot: the cluster.
        parts: by broker id, the part of the copies that it gets on average, at least and at most, before
            any draws.
        total_bytes: stored bytes to come, one copy.
        draw_bytes: so much goes to one partition by each draw; 0: nothing is drawn.
        note: what this rests on.
    """
    table = tabulate(snapshot, {})
    at = np.array([parts.get(broker_id, (0.0, 0.0, 0.0)) for broker_id in table.broker_ids])
    at = np.clip(at, 0.0, 1.0)
    deviation = np.zeros(len(at))
    if draw_bytes and total_bytes:
        deviation = 2.0 * np.sqrt(at[:, 0] * (1 - at[:, 0]) * min(1.0, draw_bytes / total_bytes))
    low, high = np.clip(at[:, 1] - deviation, 0.0, 1.0), np.clip(at[:, 2] + deviation, 0.0, 1.0)
    return _told(table, at[:, 0], low, high, total_bytes, note)


def parts_of(layout: Layout) -> dict[int, tuple[float, float, float]]:
    """For `by_chance`: what each broker gets when all partitions with a leader get the same."""
    writable = [placed for placed in layout.values() if placed.leader_id is not None]
    held: dict[int, float] = {}
    for placed in writable:
        for broker_id in placed.replica_ids:
            held[broker_id] = held.get(broker_id, 0.0) + 1.0 / len(writable)
    return {broker_id: (part, part, part) for broker_id, part in held.items()}


def kafka_placed(
    snapshot: ClusterSnapshot, *, num_partitions: int, replication: int
) -> dict[int, tuple[float, float, float]]:
    """For `by_chance`: what each broker gets of a new topic that Kafka places.

    It goes round the racks, and round the brokers in each, from a random one on; so brokers of a rack differ
    by a partition at most. Brokers that are down or cordoned get nothing.
    """
    racks: dict[str | None, list[int]] = {}
    for broker_id, broker in sorted(snapshot.brokers.items()):
        if broker.is_reachable and not broker.is_cordoned:
            racks.setdefault(broker.rack, []).append(broker_id)
    parts = {}
    for members in racks.values():
        part = min(1.0, replication / len(racks) / len(members))
        number = part * num_partitions
        low, high = np.floor(number + 1e-9), np.ceil(number - 1e-9)
        for broker_id in members:
            parts[broker_id] = (part, float(low) / num_partitions, float(high) / num_partitions)
    return parts


def with_topic(snapshot: ClusterSnapshot, topic: str, layout: Layout) -> ClusterSnapshot:
    """The snapshot as it would be with one more (empty) topic."""
    return dataclasses.replace(snapshot, topics={**snapshot.topics, topic: layout})


def _parts(table: BrokerTable, layout: Layout, shares: Mapping[int, float]) -> FloatArray:
    numbers: Sequence[int] = [number for number in shares if number in layout]
    sets = [layout[number].replica_ids for number in numbers]
    return table.added_bytes(sets, np.array([shares[number] for number in numbers], dtype=np.float64))


def _told(
    table: BrokerTable, expected: FloatArray, low: FloatArray, high: FloatArray, total_bytes: int, note: str
) -> StrategyForecast:
    def told(parts: FloatArray) -> dict[int, float]:
        levels = table.utilisation(np.asarray(parts * total_bytes))
        return dict(zip(table.broker_ids, levels.tolist(), strict=True))

    return StrategyForecast(expected=told(expected), low=told(low), high=told(high), note=note)
