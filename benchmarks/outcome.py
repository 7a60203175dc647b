"""What a strategy reached in one run, beside the best that could be reached. Pure.

All of it follows from the bytes found in the brokers' log folders at the end. What brokers hold besides the
topic is not the strategy's doing: where another load came half-way, the best is the best in hindsight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.layouts import Layout
from benchmarks.log_folders import BytesByBroker
from benchmarks.optimum import best_utilisation

POINT = 0.01
ALLOWED_POINTS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Utilisations are from 0 to 1, by broker id; `best` are those of the lexicographic optimum.

    Attributes:
        utilisation: What was reached.
        best: What could have been, with the layout's replicas.
        leader_bytes: Of the topic, by the broker that leads them.
        topic_bytes: Of the topic, one copy.
    """

    utilisation: Mapping[int, float]
    best: Mapping[int, float]
    leader_bytes: Mapping[int, int]
    topic_bytes: int

    @property
    def highest(self) -> float:
        """The fullest broker's utilisation."""
        return max(self.utilisation.values())

    @property
    def spread(self) -> float:
        """Highest less lowest utilisation."""
        return spread(self.utilisation)

    @property
    def highest_over_best(self) -> float:
        """By how much the fullest broker is over the optimum's; below 0 where replicas lie better."""
        return self.highest - max(self.best.values())

    @property
    def spread_over_best(self) -> float:
        """By how much the spread is above the optimum's."""
        return self.spread - spread(self.best)

    @property
    def is_within_a_point(self) -> bool:
        """The criterion: highest utilisation and spread at most 1 point over the optimum's."""
        return max(self.highest_over_best, self.spread_over_best) <= ALLOWED_POINTS * POINT


def spread(utilisation: Mapping[int, float]) -> float:
    """Highest less lowest."""
    return max(utilisation.values()) - min(utilisation.values())


def judge(
    layout: Layout,
    topic: str,
    *,
    held: BytesByBroker,
    leaders: Mapping[int, int],
) -> Outcome:
    """What came out, from the bytes that brokers hold at the end.

    Args:
        layout: Its capacities, and the replicas that the optimum may use.
        topic: The one that was loaded; all else on the brokers is other bytes.
        held: By broker and topic-partition, stored bytes.
        leaders: Who leads each of the topic's partitions.
    """
    capacity = layout.capacity_bytes
    total = {broker_id: sum(held[broker_id].values()) for broker_id in capacity}
    of_topic = {
        broker_id: {p.partition: size for p, size in held[broker_id].items() if p.topic == topic}
        for broker_id in capacity
    }
    leader_bytes = dict.fromkeys(capacity, 0)
    for partition, leader_id in leaders.items():
        leader_bytes[leader_id] += of_topic[leader_id][partition]
    topic_bytes = sum(leader_bytes.values())
    return Outcome(
        utilisation={broker_id: total[broker_id] / capacity[broker_id] for broker_id in capacity},
        best=best_utilisation(
            other_bytes={b: total[b] - sum(of_topic[b].values()) for b in capacity},
            capacity_bytes=capacity,
            replica_sets=layout.assignment,
            payload_bytes=topic_bytes,
        ),
        leader_bytes=leader_bytes,
        topic_bytes=topic_bytes,
    )


def are_all_within_a_point(outcomes: Sequence[Outcome]) -> bool:
    """Whether each of them meets the criterion; there has to be one."""
    return bool(outcomes) and all(outcome.is_within_a_point for outcome in outcomes)
