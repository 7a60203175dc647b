"""Forecast a load: what brokers would hold after it, whoever chooses the partitions.

A topic that exists is forecast as it lies. For any other name, the topic is placed as `load_dataset` would
place it now: by capacity and rack for the balanced strategy, by Kafka for the others. That goes for a dataset
that exists too, as its next version gets a topic of its own. The balanced strategy heeds the weights that an
operator has given to brokers.

Sizes are payload: what records' values take. What is stored differs by compression and by some bytes a
record (about 45 where a load writes one sample a record; next to nothing where it packs them): for a dataset
that exists the ratio of its newest version is taken, which may be a small part of what is to come. For a new
one it is 1, as loads are not compressed unless asked for.

This asks the cluster; router/forecasting/load.py makes the forecast of what it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.errors import UnknownDatasetError
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.errors import PluginConfigError
from evenload.kafka_plugin.key_partition import java_partition
from evenload.kafka_plugin.loading.block_size import choose_num_partitions
from evenload.kafka_plugin.topics import default_replication
from evenload.router.config import RouterConfig, evens_reading, for_load
from evenload.router.forecasting.load import LoadForecast, forecast_into, with_new_topic
from evenload.telemetry_collector.collector import sample_once
from evenload.telemetry_collector.opening import read_weights
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.weights import Weights

__all__ = ["LoadForecast", "forecast_load"]

_TIMEOUT_S = 30.0


def forecast_load(
    connection: Connection,
    name: str,
    *,
    size_bytes: int,
    num_partitions: int | None = None,
    replication: int | None = None,
    over_s: float | None = None,
    keys: Iterable[bytes] | None = None,
    goal: str | None = None,
) -> LoadForecast:
    """What `size_bytes` of payload for dataset or topic `name` would lead to; nothing is changed.

    Args:
        connection: The cluster.
        name: A topic, a dataset (then its next version is what is to come), or a name that is not taken yet.
        size_bytes: Payload to come, at least 0.
        num_partitions: Of a new topic; None: as many as a load would make.
        replication: Copies in a new topic; None: as the cluster has it.
        over_s: In how many seconds it comes, at a steady pace; None: retention by age isn't counted.
        keys: A sample of records' keys, each as often as it comes; None: as if keys were alike.
        goal: What the balanced strategy levels by, by its entry-point name, unless an operator has set goals;
            None: as a load does, or, for a topic that exists, as a producer does.

    Raises:
        PluginConfigError: Partitions or copies are asked of a topic that exists.
        NotEnoughBrokersError: More copies than brokers that can be reached.
        PluginError: The goal isn't known.
        CollectorError, CatalogError, KafkaConnectionError: Brokers don't answer.
    """
    manifest = _manifest(connection, name)
    weights = read_weights(connection, timeout_s=_TIMEOUT_S) or Weights()
    snapshot = sample_once(connection, timeout_s=_TIMEOUT_S)
    is_new = manifest is not None or name not in snapshot.topics
    if not is_new and (num_partitions is not None or replication is not None):
        raise PluginConfigError(
            f"{name!r} has a topic, so its partitions and copies can't be chosen; they can for a new name."
        )
    config = _config(goal, weights, is_new=is_new)
    stored_bytes = round(size_bytes * _stored_ratio(snapshot, manifest))
    if is_new:
        snapshot = with_new_topic(
            snapshot,
            name,
            num_partitions=num_partitions or choose_num_partitions(size_bytes, len(snapshot.brokers)),
            replication=replication or default_replication(connection, name, timeout_s=_TIMEOUT_S),
            total_bytes=stored_bytes,
            avoid=weights.drained,
            evens_leaders=evens_reading(config.goals),
        )
    return forecast_into(
        snapshot,
        name,
        is_new=is_new,
        size_bytes=size_bytes,
        stored_bytes=stored_bytes,
        over_s=over_s,
        num_keys=None if keys is None else _by_partition(keys, len(snapshot.topics[name])),
        weight_by_broker=weights.brokers,
        config=config,
    )


def _config(goal: str | None, weights: Weights, *, is_new: bool) -> RouterConfig:
    if weights.goals is not None:
        return RouterConfig(goals=weights.goals)
    if goal is not None:
        return RouterConfig(goals={goal: 1.0})
    return for_load(None) if is_new else RouterConfig()


def _by_partition(keys: Iterable[bytes], num_partitions: int) -> Counter[int]:
    counts = Counter(java_partition(key, num_partitions) for key in keys)
    if not counts:
        raise PluginConfigError("The sample of keys is empty.")
    return counts


def _manifest(connection: Connection, name: str) -> DatasetManifest | None:
    try:
        return Catalog(connection).get(name)
    except UnknownDatasetError:
        return None


def _stored_ratio(snapshot: ClusterSnapshot, manifest: DatasetManifest | None) -> float:
    if manifest is None or not manifest.num_bytes:
        return 1.0
    return sum(snapshot.leader_bytes(manifest.topic).values()) / manifest.num_bytes or 1.0
