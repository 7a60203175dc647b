"""Forecast a load: what brokers would hold after it, whoever chooses the partitions.

A topic that exists is forecast as it lies. For any other name, the topic is placed as `load_dataset` would
place it now: by capacity and rack for the balanced strategy, by Kafka for the others. That goes for a dataset
that exists too, as its next version gets a topic of its own. The balanced strategy heeds the weights that an
operator has given to brokers.

Sizes are payload: what records' values take. What is stored differs by compression and by some bytes a
record (about 45 where a load writes one sample a record; next to nothing where it packs them): for a dataset
that exists the ratio of its newest version is taken, which may be a small part of what is to come. For a new
one it is 1, as loads are not compressed unless asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.errors import UnknownDatasetError
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.errors import PluginConfigError
from evenload.kafka_plugin.loading.block_size import choose_num_partitions
from evenload.kafka_plugin.partitioner import java_partition
from evenload.kafka_plugin.topics import default_replication
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
from evenload.telemetry_collector.collector import sample_once
from evenload.telemetry_collector.opening import read_weights
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.weights import Weights

__all__ = ["LoadForecast", "forecast_load"]

_TIMEOUT_S = 30.0


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


def forecast_load(
    connection: Connection,
    name: str,
    *,
    size_bytes: int,
    num_partitions: int | None = None,
    replication: int | None = None,
    keys: Iterable[bytes] | None = None,
) -> LoadForecast:
    """What `size_bytes` of payload for dataset or topic `name` would lead to; nothing is changed.

    Args:
        connection: The cluster.
        name: A topic, a dataset (then its next version is what is to come), or a name that is not taken yet.
        size_bytes: Payload to come, at least 0.
        num_partitions: Of a new topic; None: as many as a load would make.
        replication: Copies in a new topic; None: as the cluster has it.
        keys: A sample of records' keys, each as often as it comes; None: as if keys were alike.

    Raises:
        PluginConfigError: Partitions or copies are asked of a topic that exists.
        NotEnoughBrokersError: More copies than brokers that can be reached.
        CollectorError, CatalogError, KafkaConnectionError: Brokers don't answer.
    """
    manifest = _manifest(connection, name)
    weights = read_weights(connection, timeout_s=_TIMEOUT_S) or Weights()
    snapshot = sample_once(connection, timeout_s=_TIMEOUT_S)
    topic = name
    is_new = manifest is not None or topic not in snapshot.topics
    if not is_new and (num_partitions is not None or replication is not None):
        raise PluginConfigError(
            f"{name!r} has a topic, so its partitions and copies can't be chosen; they can for a new name."
        )
    stored_bytes = round(size_bytes * _stored_ratio(snapshot, manifest))
    kept: tuple[str, ...] = ()
    if is_new:
        replication = replication or default_replication(connection, name, timeout_s=_TIMEOUT_S)
        num_partitions = num_partitions or choose_num_partitions(size_bytes, len(snapshot.brokers))
        placed = place_partitions(
            snapshot,
            num_partitions=num_partitions,
            replication=replication,
            total_bytes=stored_bytes,
            avoid=weights.drained,
        )
        snapshot = with_topic(snapshot, topic, planned_layout(placed))
        by_others = kafka_placed(snapshot, num_partitions=num_partitions, replication=replication)
    else:
        layout = snapshot.topics[topic]
        num_partitions = len(layout)
        replication = max(len(placed.replica_ids) for placed in layout.values())
        by_others = parts_of(layout)
        stored_bytes, kept = _kept_bytes(snapshot, topic, stored_bytes)
    strategies, notes = _strategies(snapshot, topic, by_others, stored_bytes, keys, weights)
    possible = forecast(snapshot, snapshot.topics[topic], total_bytes=stored_bytes)
    advice = advise_load(snapshot, topic, strategies, possible, total_bytes=stored_bytes)
    return LoadForecast(
        topic=None if is_new else topic,
        num_partitions=num_partitions,
        replication=replication,
        size_bytes=size_bytes,
        stored_bytes=stored_bytes,
        strategies=strategies,
        possible=possible,
        advice=(*kept, *notes, *advice),
    )


def _strategies(
    snapshot: ClusterSnapshot,
    topic: str,
    by_others: dict[int, tuple[float, float, float]],
    total_bytes: int,
    keys: Iterable[bytes] | None,
    weights: Weights,
) -> tuple[dict[str, StrategyForecast], tuple[str, ...]]:
    layout = snapshot.topics[topic]
    route = routed(snapshot, topic, total_bytes=total_bytes, weight_by_broker=weights.brokers)
    key_shares, key_note = _key_shares(len(layout), keys)
    num_draws = max(1, total_bytes // DRAW_BYTES)
    return {
        "balanced": by_shares(
            snapshot,
            layout,
            route.shares,
            total_bytes=total_bytes,
            note="decided from what brokers hold, and again each second of the load",
        ),
        "round-robin": by_chance(
            snapshot, by_others, total_bytes=total_bytes, note="each partition gets the same"
        ),
        "default": by_chance(
            snapshot,
            by_others,
            total_bytes=total_bytes,
            draw_bytes=DRAW_BYTES,
            note="librdkafka draws a partition every 10 ms: on average each gets the same; how far off it "
            f"is depends on how many draws there are ({num_draws} or more)",
        ),
        "keyed": by_shares(snapshot, layout, key_shares, total_bytes=total_bytes, note=key_note),
    }, route.notes


def _key_shares(num_partitions: int, keys: Iterable[bytes] | None) -> tuple[dict[int, float], str]:
    if keys is None:
        even = dict.fromkeys(range(num_partitions), 1.0 / num_partitions)
        return even, "as if there were many keys, all alike; a sample of them (--keyed FILE) tells more"
    counts = Counter(java_partition(key, num_partitions) for key in keys)
    total = counts.total()
    if not total:
        raise PluginConfigError("The sample of keys is empty.")
    shares = {number: counts[number] / total for number in range(num_partitions)}
    return shares, f"by the partitions of {total} keys, as Java's client hashes them, records all of a size"


def _kept_bytes(snapshot: ClusterSnapshot, topic: str, stored_bytes: int) -> tuple[int, tuple[str, ...]]:
    """By how much the topic will have grown, and a sentence where retention by size says so."""
    growth = [snapshot.growth_max_bytes(topic, number) for number in snapshot.topics[topic]]
    limit = sum(math.inf if each is None else each for each in growth)
    if stored_bytes <= limit:
        return stored_bytes, ()
    at_most = f"{topic!r} grows by {bytes_text(limit)} at most"
    return int(limit), (f"{at_most}: from then on retention.bytes deletes as much as comes.",)


def _manifest(connection: Connection, name: str) -> DatasetManifest | None:
    try:
        return Catalog(connection).get(name)
    except UnknownDatasetError:
        return None


def _stored_ratio(snapshot: ClusterSnapshot, manifest: DatasetManifest | None) -> float:
    if manifest is None or not manifest.num_bytes:
        return 1.0
    return sum(snapshot.leader_bytes(manifest.topic).values()) / manifest.num_bytes or 1.0
