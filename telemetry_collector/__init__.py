"""What is known about the brokers: measured in the background, read without waiting.

Values are re-exported here. Whatever measures is imported by its full path
(`evenload.telemetry_collector.collector`), as it loads a Kafka client.
"""

from __future__ import annotations

from evenload.telemetry_collector.cache import CachedSnapshot, SnapshotCache
from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.errors import (
    AccessRefusedError,
    BadAnswerError,
    BrokerUnreachableError,
    ClusterChangedError,
    CollectorClosedError,
    CollectorError,
    NoFreshSnapshotError,
    ServiceUnusableError,
    SourceError,
)
from evenload.telemetry_collector.snapshot import (
    BrokerSnapshot,
    ClusterSnapshot,
    PartitionSnapshot,
    TopicPartition,
)

__all__ = [
    "AccessRefusedError",
    "BadAnswerError",
    "BrokerSnapshot",
    "BrokerUnreachableError",
    "CachedSnapshot",
    "ClusterChangedError",
    "ClusterSnapshot",
    "CollectorClosedError",
    "CollectorConfig",
    "CollectorError",
    "NoFreshSnapshotError",
    "PartitionSnapshot",
    "ServiceUnusableError",
    "SnapshotCache",
    "SourceError",
    "TopicPartition",
]
