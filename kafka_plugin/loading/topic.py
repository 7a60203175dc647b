"""The topic of a load: its name, its settings, where its partitions are placed.

A topic belongs to one load, and its name says so: NAME-vVERSION-LOADID. Two loads never share one, whatever
dies when, and what a dead loader left empty can be told and swept up.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.errors import CatalogError
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection import Connection, KafkaConnectionError
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import TopicError
from evenload.kafka_plugin.loading.load_writer import LoadIdentity
from evenload.kafka_plugin.topics import create_topic, default_replication, delete_empty_topics
from evenload.router.errors import RouterError
from evenload.router.forecasting.placement import place_partitions
from evenload.telemetry_collector.errors import CollectorError
from evenload.telemetry_collector.opening import AnyCollector
from evenload.telemetry_collector.snapshot import ClusterSnapshot

_log = logging.getLogger(__name__)
_SNAPSHOT_TIMEOUT_S = 10.0


def load_topic_name(name: str, version: int, load_id: str) -> str:
    """The topic of a load: at most 220 characters for a name of 200."""
    return f"{name}-v{version}-{load_id[:8]}"


def topic_settings(config: LoaderConfig, replication: int | None) -> dict[str, str]:
    """What a dataset rests on is said, not left to the cluster's defaults."""
    settings = {
        "cleanup.policy": "delete",
        "retention.ms": str(config.retention_ms),
        "retention.bytes": "-1",
        "compression.type": "producer",
        "max.message.bytes": str(config.max_record_bytes),
        "message.timestamp.type": "CreateTime",
        "unclean.leader.election.enable": "false",
    }
    if replication is not None:
        settings["min.insync.replicas"] = "2" if replication >= 3 else "1"
    return settings


def take_snapshot(collector: AnyCollector) -> ClusterSnapshot | None:
    """What is known about the cluster right now; None, and a warning, where it can't be measured."""
    try:
        return collector.snapshot(max_age_s=0, timeout_s=_SNAPSHOT_TIMEOUT_S)
    except CollectorError as error:
        _log.warning("the brokers can't be measured, so bytes are spread evenly over partitions: %s", error)
        return None


def create_load_topic(
    connection: Connection,
    topic: str,
    *,
    snapshot: ClusterSnapshot | None,
    num_partitions: int,
    replication: int | None,
    expected_bytes: int,
    avoid: Container[int] = (),
    evens_leaders: bool = False,
    config: LoaderConfig,
) -> str:
    """Make the topic, placed by capacity where a snapshot says it, ready to be written.

    Args:
        snapshot: None: Kafka places the partitions.
        replication: Copies; None: as the cluster has it.
        expected_bytes: Payload that it will take.
        avoid: Brokers that are being drained.
        evens_leaders: Each broker leads as many partitions, whatever room it has.

    Returns:
        The topic's id.

    Raises:
        TopicError: It can't be made; none is left behind.
    """
    timeout_s = config.topic_timeout_s
    if replication is None:
        replication = default_replication(connection, topic, timeout_s=timeout_s)
    return create_topic(
        connection,
        topic,
        num_partitions=num_partitions,
        replication=replication,
        assignments=_placed(
            snapshot, num_partitions, replication, expected_bytes, avoid, evens_leaders=evens_leaders
        ),
        configs=topic_settings(config, replication),
        timeout_s=timeout_s,
    )


def sweep_topics(connection: Connection, catalog: Catalog, identity: LoadIdentity) -> None:
    """Delete what loaders of this name left that died between making a topic and saying so.

    Only empty topics that no manifest and no progress refers to. To be called once this load's begin is
    committed: from then on, whoever loads this name sees it, and makes no topic of another load.

    What can't be looked at now, as its broker is down, is left for another time: no reason to fail this load.
    """
    pattern = rf"{re.escape(identity.name)}-v{identity.version}-[0-9a-f]{{8}}"
    try:
        kept = {identity.topic}
        listing = catalog.listing()
        kept |= {each.topic for each in listing.each() if isinstance(each, DatasetManifest)}
        kept |= {load.last.topic for load in listing.unfinished()}
        deleted = delete_empty_topics(connection, pattern, keep=kept, timeout_s=_SNAPSHOT_TIMEOUT_S)
    except (TopicError, CatalogError, KafkaConnectionError) as error:
        _log.warning("what dead loaders of %s may have left is not swept up: %s", identity.name, error)
        return
    for topic in deleted:
        _log.info("deleted topic %s, which a loader that died had made", topic)


def _placed(
    snapshot: ClusterSnapshot | None,
    num_partitions: int,
    replication: int,
    expected_bytes: int,
    avoid: Container[int],
    *,
    evens_leaders: bool,
) -> list[tuple[int, ...]] | None:
    if snapshot is None:
        return None
    try:
        return place_partitions(
            snapshot,
            num_partitions=num_partitions,
            replication=replication,
            total_bytes=expected_bytes,
            avoid=avoid,
            evens_leaders=evens_leaders,
        )
    except RouterError as error:
        # Not enough brokers are up for the router; Kafka says what it thinks of it.
        _log.warning("Kafka places the topic: %s", error)
        return None
