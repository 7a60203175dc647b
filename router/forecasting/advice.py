"""Say in sentences what a forecast means, and what more partitions or moves would give.

Only what makes a difference of a point or more is said. Read next: strategies.py, planning.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

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
_READING = RouterConfig(goals={"dataset_spread": 1.0})


def advise_load(
    snapshot: ClusterSnapshot,
    topic: str,
    strategies: Mapping[str, StrategyForecast],
    told: Forecast,
    *,
    total_bytes: int,
) -> tuple[str, ...]:
    """What there is to say of a load into a topic of the snapshot, most urgent first."""
    return tuple(
        sentence
        for part in (
            _overfull(strategies),
            _keys(strategies),
            _conflict(snapshot, topic, strategies, total_bytes),
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


def _keys(strategies: Mapping[str, StrategyForecast]) -> Iterator[str]:
    if "keyed" not in strategies or "balanced" not in strategies:
        return
    cost = strategies["keyed"].spread - strategies["balanced"].spread
    if cost >= _POINT:
        yield (
            f"records that keep the partition of their key cost {100 * cost:.0f} points of balance, against "
            "records that may go anywhere."
        )


def _conflict(
    snapshot: ClusterSnapshot, topic: str, strategies: Mapping[str, StrategyForecast], total_bytes: int
) -> Iterator[str]:
    """Full brokers get less of a load; whoever reads it then waits for those that got more."""
    if "balanced" not in strategies or total_bytes == 0:
        return
    disks = _led(snapshot, topic, total_bytes, RouterConfig())
    reading = _led(snapshot, topic, total_bytes, _READING)
    shares = routed(snapshot, topic, total_bytes=total_bytes, config=_READING).shares
    told = by_shares(snapshot, snapshot.topics[topic], shares, total_bytes=total_bytes, note="")
    levelled = strategies["balanced"].spread
    if max(disks.values()) - max(reading.values()) < _LED_MIN or told.spread - levelled < _POINT:
        return
    most = max(disks, key=lambda broker_id: disks[broker_id])
    yield (
        f"level disks and even reading conflict here: to level disks (goal disk_usage), broker {most} leads "
        f"{disks[most]:.0%} of the load, and the spread is {100 * levelled:.0f} points; to even reading "
        f"(goal dataset_spread), no broker leads more than {max(reading.values()):.0%}, and it is "
        f"{100 * told.spread:.0f} points."
    )


def _led(snapshot: ClusterSnapshot, topic: str, total_bytes: int, config: RouterConfig) -> dict[int, float]:
    """The part of the load that each broker leads."""
    led = dict.fromkeys(snapshot.brokers, 0.0)
    for number, share in routed(snapshot, topic, total_bytes=total_bytes, config=config).shares.items():
        placed = snapshot.topics[topic].get(number)
        if placed is not None and placed.leader_id is not None:
            led[placed.leader_id] = led.get(placed.leader_id, 0.0) + share
    return led


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
