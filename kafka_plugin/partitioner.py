"""Choosing partitions inside a kafka-python producer.

    with NodeAwarePartitioner("broker:9092") as partitioner:
        producer = KafkaProducer(bootstrap_servers="broker:9092", partitioner=partitioner)

A record with a key goes where the Java client would put it (murmur2 of the key), so consumers that rely on
it find it; one without goes where the router says.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kafka.cluster import ClusterMetadata
from kafka.partitioner import Partitioner

from evenload.kafka_connection import Connection, resolve_connection
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.key_partition import java_partition
from evenload.kafka_plugin.routing.opening import open_routes
from evenload.router.config import RouterConfig

if TYPE_CHECKING:
    from evenload.telemetry_collector.opening import AnyCollector

_TURN_MAX_BYTES = 256 << 10  # there is no clock by which a turn of a slow producer would end
_QUEUED_S = 30.0  # kafka-python's queue has no bound; a record counts as stored then, seen there or not


class NodeAwarePartitioner(Partitioner):  # type: ignore[misc]  # kafka-python ships no types
    """Keeps brokers even from within a `kafka.KafkaProducer`. May be called from any thread.

    Its routes, or its collector, are looked after from the start until `close`.

    Args:
        connection: The cluster, or some of its brokers as host:port,host:port; None: as
            `resolve_connection` finds it.
        config: How partitions are chosen.
        router_config: What to level by, where no service decides.
        collector: One that runs already, to be shared and left running: shares are then decided here by it.
    """

    def __init__(
        self,
        connection: Connection | str | None = None,
        *,
        config: ProducerConfig | None = None,
        router_config: RouterConfig | None = None,
        collector: AnyCollector | None = None,
    ) -> None:
        config = config or ProducerConfig()
        short_bytes = min(config.batch_bytes, _TURN_MAX_BYTES)
        self._config = config.model_copy(update={"batch_bytes": short_bytes})
        self._latest = threading.local()  # the record that a thread asked about last
        self._cluster: ClusterMetadata | None = None
        if not isinstance(connection, Connection):
            connection = resolve_connection(connection)
        self._routes = open_routes(
            connection,
            self._config,
            router_config=router_config,
            collector=collector,
            queued_s=_QUEUED_S,
            # kafka-python takes a partition that it doesn't know yet, and asks brokers about it.
            count_partitions=lambda _, num_measured: num_measured,
            ask_cluster_id=lambda: None if self._cluster is None else self._cluster.cluster_id,
        )

    def partition(
        self,
        topic: str,
        key: Any,  # noqa: ARG002 (kafka-python's signature)
        serialized_key: bytes | None,
        value: Any,  # noqa: ARG002
        serialized_value: bytes | None,
        cluster: ClusterMetadata,
    ) -> int:
        """Called by kafka-python for each record that has no partition of its own.

        Raises:
            ValueError: The client does not know the topic.
        """
        self._cluster = cluster
        partitions = cluster.partitions_for_topic(topic)
        if not partitions:
            raise ValueError(f"topic {topic!r} is not in the cluster's metadata")
        if serialized_key is not None and not self._config.spread_keys:
            return java_partition(serialized_key, len(partitions))
        routing = self._routes.find(topic) or self._routes.add(topic, len(partitions))
        size_bytes = len(serialized_value or b"") + len(serialized_key or b"")
        routing.sample(1, size_bytes)
        partition = routing.partition_for(size_bytes)
        # Nothing tells a partitioner what became of a record.
        routing.own_bytes.add_acknowledged(partition, size_bytes)
        self._latest.size_bytes = size_bytes
        return partition

    def on_new_batch(self, topic: str, cluster: ClusterMetadata, prev_partition: int) -> None:  # noqa: ARG002
        """Called by kafka-python, in the same thread, before it asks for the partition of a record again.

        It does so where a record would begin a batch, which may be for each.
        """
        routing = self._routes.find(topic)
        if routing is not None:
            routing.give_back(prev_partition, self._latest.size_bytes)
            routing.own_bytes.add_acknowledged(prev_partition, -self._latest.size_bytes)

    def expect(self, topic: str, size_bytes: int) -> None:
        """As `BalancedProducer.expect`."""
        self._routes.expect(topic, size_bytes)

    @property
    def num_fallbacks(self) -> int:
        """How often shares were even because nothing fresh was known."""
        return self._routes.num_fallbacks

    def close(self) -> None:
        """End the collector; afterwards shares go stale and then even. May be called twice."""
        self._routes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
