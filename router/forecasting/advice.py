"""Say in sentences what a forecast means, and what more partitions or moves would give.

Only what makes a difference of a point or more is said. Read next: strategies.py, planning.py.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from evenload.router.config import RouterConfig
from evenload.router.errors import NotEnoughBrokersError
from evenload.router.forecasting.forecast import Forecast, forecast, planned_layout
from evenload.router.forecasting.placement import place_partitions
from evenload.router.forecasting.strategies import StrategyForecast, by_shares, routed
from evenload.router.moves.plan import MovePlan
from evenload.router.moves.planning import plan_moves
from evenload.sizes import bytes_text
from evenload.telemetry_collector.snapshot import ClusterSnapshot, PartitionSnapshot

__all__ = ["advise_load", "after_moves"]

_POINT = 0.01
_LIMIT = 0.95
_LED_MIN = 0.05


def advise_load(
    snapshot: ClusterSnapshot,
    topic: str,
    strategies: Mapping[str, StrategyForecast],
    told: Forecast,
    *,
    total_bytes: int,
    weight_by_broker: Mapping[int, float],
) -> tuple[str, ...]:
    """What there is to say of a load into a topic of the snapshot, most urgent first."""
    return tuple(
        sentence
        for part in (
            _overfull(strategies),
            _keys(strategies, told),
            _conflict(snapshot, topic, total_bytes, weight_by_broker),
            _partitions(snapshot, topic, told, total_bytes),
            _moves(snapshot, topic, told, total_bytes),
        )
        for sentence in part
    )


def after_moves(snapshot: ClusterSnapshot, plan: MovePlan) -> ClusterSnapshot:
    """The snapshot as it would be after a move plan."""
    topics = {topic: dict(layout) for topic, layout in snapshot.topics.items()}
    used = {broker_id: broker.used_bytes for broker_id, broker in snapshot.brokers.items()}
    for move in plan.moves:
        topic, number = move.topic_partition
        ids = move.replica_ids
        topics[topic][number] = PartitionSnapshot(leader_id=ids[0], replica_ids=ids, isr_ids=ids)
        for broker_id in move.added_ids:
            used[broker_id] += move.size_bytes
        for broker_id in move.removed_ids:
            held = snapshot.brokers[broker_id].bytes_by_topic_partition
            used[broker_id] -= held.get(move.topic_partition, move.size_bytes)
    brokers = {
        broker_id: dataclasses.replace(broker, used_bytes=max(0, used[broker_id]))
        for broker_id, broker in snapshot.brokers.items()
    }
    return dataclasses.replace(snapshot, brokers=brokers, topics=topics)


def _overfull(strategies: Mapping[str, StrategyForecast]) -> Iterator[str]:
    for name, told in strategies.items():
        broker_id = max(told.expected, key=lambda broker_id: told.expected[broker_id])
        if told.expected[broker_id] > _LIMIT:
            yield f"{name}: broker {broker_id} would be {told.expected[broker_id]:.0%} full."


def _keys(strategies: Mapping[str, StrategyForecast], told: Forecast) -> Iterator[str]:
    if "keyed" not in strategies:
        return
    cost = strategies["keyed"].spread - _spread(told.best)
    if cost >= _POINT:
        yield (
            f"records that keep the partition of their key cost {100 * cost:.0f} points of balance, against "
            "records that may go anywhere."
        )


class _Led(NamedTuple):
    """What a goal makes of a load."""

    part: float
    broker_id: int
    spread: float

    @classmethod
    def by(
        cls,
        goal: str,
        snapshot: ClusterSnapshot,
        topic: str,
        total_bytes: int,
        weight_by_broker: Mapping[int, float],
    ) -> _Led:
        """The broker that leads most of the load, and how even disks are then."""
        layout = snapshot.topics[topic]
        shares = routed(
            snapshot,
            topic,
            total_bytes=total_bytes,
            config=RouterConfig(goals={goal: 1.0}),
            weight_by_broker=weight_by_broker,
        ).shares
        led: defaultdict[int, float] = defaultdict(float)
        for number, share in shares.items():
            placed = layout.get(number)
            if placed is not None and placed.leader_id is not None:
                led[placed.leader_id] += share
        told = by_shares(snapshot, layout, shares, total_bytes=total_bytes, note="")
        return max((cls(part, broker_id, told.spread) for broker_id, part in led.items()), default=_NOTHING)


_NOTHING = _Led(0.0, 0, 0.0)


def _conflict(
    snapshot: ClusterSnapshot, topic: str, total_bytes: int, weight_by_broker: Mapping[int, float]
) -> Iterator[str]:
    """Where disks come out even, readers wait for the brokers that got more; and the other way round."""
    if total_bytes == 0:
        return
    disks = _Led.by("disk_usage", snapshot, topic, total_bytes, weight_by_broker)
    reading = _Led.by("dataset_spread", snapshot, topic, total_bytes, weight_by_broker)
    if disks.part - reading.part < _LED_MIN or reading.spread - disks.spread < _POINT:
        return
    yield (
        f"level disks and even reading conflict here: by the goal dataset_spread no broker leads more than "
        f"{reading.part:.0%} of the load, and the spread is {100 * reading.spread:.0f} points; by disk_usage "
        f"broker {disks.broker_id} leads {disks.part:.0%}, and it is {100 * disks.spread:.0f} points."
    )


def _partitions(snapshot: ClusterSnapshot, topic: str, told: Forecast, total_bytes: int) -> Iterator[str]:
    """What a few partitions more, placed by capacity, would allow."""
    if _spread(told.best) - _spread(told.anywhere) < _POINT:
        return
    layout = snapshot.topics[topic]
    num_more = sum(broker.is_reachable for broker in snapshot.brokers.values())
    if not num_more:
        return
    try:
        placed = place_partitions(
            snapshot,
            num_partitions=num_more,
            replication=len(layout[min(layout)].replica_ids),
            total_bytes=total_bytes,
        )
    except NotEnoughBrokersError:
        return
    first = max(layout) + 1
    wider = {**layout, **{first + number: each for number, each in planned_layout(placed).items()}}
    best = _spread(forecast(snapshot, wider, total_bytes=total_bytes).best)
    if _spread(told.best) - best >= _POINT:
        yield (
            f"{num_more} more partitions, placed by capacity, would allow a spread of {100 * best:.0f} "
            f"points, against {100 * _spread(told.best):.0f} with those that there are."
        )


def _moves(snapshot: ClusterSnapshot, topic: str, told: Forecast, total_bytes: int) -> Iterator[str]:
    """What levelling what is there first would allow."""
    if _spread(told.best) < _POINT:
        return
    plan = plan_moves(snapshot)
    if not plan.moves:
        return
    moved = after_moves(snapshot, plan)
    best = _spread(forecast(moved, moved.topics[topic], total_bytes=total_bytes).best)
    if _spread(told.best) - best >= _POINT:
        yield (
            f"moving {bytes_text(plan.moved_bytes)} of what is there (evenload balance) would allow a spread "
            f"of {100 * best:.0f} points, against {100 * _spread(told.best):.0f} as it is."
        )


def _spread(levels: Mapping[int, float]) -> float:
    return max(levels.values()) - min(levels.values())
