"""Forecast a load into a topic: what brokers would hold after it, by each way of choosing partitions.

A topic that doesn't exist yet is first put into the snapshot, placed as a load would place it
(`with_new_topic`); from then on it is like any other. Pure.

Bytes are stored bytes, of one copy. Read next: strategies.py, what each way of choosing leads to.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

from evenload.router.config import RouterConfig
from evenload.router.forecasting.advice import advise_load
from evenload.router.forecasting.forecast import Forecast, forecast, planned_layout
from evenload.router.forecasting.placement import place_partitions
from evenload.router.forecasting.strategies import (
    DRAW_BYTES,
    StrategyForecast,
    by_chance,
    by_shares,
    kafka_placed,
    parts_of,
    routed,
    with_topic,
)
from evenload.sizes import bytes_text
from evenload.telemetry_collector.snapshot import ClusterSnapshot

__all__ = ["LoadForecast", "forecast_into", "with_new_topic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadForecast:
    """What a load would lead to.

    Attributes:
        topic: the one that it would go to; None where that is still to be made.
        num_partitions: of that topic.
        replication: copies of each.
        size_bytes: payload.
        stored_bytes: what is stored of it, of one copy; no more than retention by size will keep.
        strategies: by name, what each leads to.
        possible: the best with this placement, and with copies anywhere.
        advice: sentences.
    """

    topic: str | None
    num_partitions: int
    replication: int
    size_bytes: int
    stored_bytes: int
    strategies: dict[str, StrategyForecast]
    possible: Forecast
    advice: tuple[str, ...]


def with_new_topic(
    snapshot: ClusterSnapshot,
    topic: str,
    *,
    num_partitions: int,
    replication: int,
    total_bytes: int,
    avoid: Container[int] = (),
    evens_leaders: bool = False,
) -> ClusterSnapshot:
    """The snapshot as it would be with one more (empty) topic, placed as `place_partitions` does.

    Raises:
        NotEnoughBrokersError: more copies than brokers that can be reached.
    """
    placed = place_partitions(
        snapshot,
        num_partitions=num_partitions,
        replication=replication,
        total_bytes=total_bytes,
        avoid=avoid,
        evens_leaders=evens_leaders,
    )
    return with_topic(snapshot, topic, planned_layout(placed))


def forecast_into(
    snapshot: ClusterSnapshot,
    topic: str,
    *,
    is_new: bool,
    size_bytes: int,
    stored_bytes: int,
    over_s: float | None,
    num_keys: Mapping[int, int] | None,
    weight_by_broker: Mapping[int, float],
    config: RouterConfig,
) -> LoadForecast:
    """What a load into a topic of the snapshot would lead to.

    Args:
        snapshot: the cluster, the topic included.
        topic: where it goes.
        is_new: whether the topic isn't there yet, so that Kafka would place it for the other strategies.
        size_bytes: the payload.
        stored_bytes: what is stored of it, one copy.
        over_s: in how many seconds it comes; None: nobody knows, so that retention by age isn't counted.
        num_keys: how many keys of a sample belong to each partition; None: as if keys were alike.
        weight_by_broker: what an operator has set.
        config: what the balanced strategy levels by.
    """
    layout = snapshot.topics[topic]
    num_partitions = len(layout)
    replication = max(len(placed.replica_ids) for placed in layout.values())
    kept: tuple[str, ...] = ()
    if is_new:
        by_others = kafka_placed(snapshot, num_partitions=num_partitions, replication=replication)
    else:
        by_others = parts_of(layout)
        stored_bytes, kept = _kept_bytes(snapshot, topic, stored_bytes, over_s)
    route = routed(
        snapshot, topic, total_bytes=stored_bytes, config=config, weight_by_broker=weight_by_broker
    )
    key_shares, key_note = _key_shares(num_partitions, num_keys)
    num_draws = max(1, stored_bytes // DRAW_BYTES)
    strategies = {
        "balanced": by_shares(
            snapshot,
            layout,
            route.shares,
            total_bytes=stored_bytes,
            note="decided from what brokers hold, and again each second of the load",
        ),
        "round-robin": by_chance(
            snapshot, by_others, total_bytes=stored_bytes, note="each partition gets the same"
        ),
        "default": by_chance(
            snapshot,
            by_others,
            total_bytes=stored_bytes,
            draw_bytes=DRAW_BYTES,
            note="librdkafka draws a partition every 10 ms: on average each gets the same; how far off it "
            f"is depends on how many draws there are ({num_draws} or more)",
        ),
        "keyed": by_shares(snapshot, layout, key_shares, total_bytes=stored_bytes, note=key_note),
    }
    possible = forecast(snapshot, layout, total_bytes=stored_bytes)
    advice = advise_load(
        snapshot,
        topic,
        strategies,
        possible,
        total_bytes=stored_bytes,
        weight_by_broker=weight_by_broker,
    )
    return LoadForecast(
        topic=None if is_new else topic,
        num_partitions=num_partitions,
        replication=replication,
        size_bytes=size_bytes,
        stored_bytes=stored_bytes,
        strategies=strategies,
        possible=possible,
        advice=(*kept, *route.notes, *advice),
    )


def _kept_bytes(
    snapshot: ClusterSnapshot, topic: str, stored_bytes: int, over_s: float | None
) -> tuple[int, tuple[str, ...]]:
    """By how much the topic will have grown, and a sentence where retention says so."""
    growth = [snapshot.growth_max_bytes(topic, number) for number in snapshot.topics[topic]]
    by_size = sum(math.inf if each is None else each for each in growth)
    by_age = math.inf if over_s is None else _growth_by_age(snapshot, topic, stored_bytes, over_s)
    limit, setting = min((by_size, "retention.bytes"), (by_age, "retention.ms"))
    if stored_bytes <= limit:
        return stored_bytes, ()
    at_most = f"{topic!r} grows by {bytes_text(limit)} at most"
    return int(limit), (f"{at_most}: from then on {setting} deletes as much as comes.",)


def _growth_by_age(snapshot: ClusterSnapshot, topic: str, stored_bytes: int, over_s: float) -> float:
    """What retention by age leaves of bytes that come at a steady pace, less what is there now.

    Nothing is said while something of that may be left: how old it is nobody tells. Each partition keeps up
    to a segment more, as Kafka deletes whole ones.
    """
    config = snapshot.config_of(topic)
    if config.max_age_s is None or over_s < config.max_age_s:
        return math.inf
    kept_bytes = stored_bytes * config.max_age_s / over_s
    kept_bytes += len(snapshot.topics[topic]) * (config.segment_bytes or 0)
    return max(0.0, kept_bytes - sum(snapshot.leader_bytes(topic).values()))


def _key_shares(num_partitions: int, num_keys: Mapping[int, int] | None) -> tuple[dict[int, float], str]:
    if num_keys is None:
        even = dict.fromkeys(range(num_partitions), 1.0 / num_partitions)
        return even, "as if there were many keys, all alike; a sample of them (--keyed FILE) tells more"
    total = sum(num_keys.values())
    shares = {number: num_keys.get(number, 0) / total for number in range(num_partitions)}
    return shares, f"by the partitions of {total} keys, as Java's client hashes them, records all of a size"
