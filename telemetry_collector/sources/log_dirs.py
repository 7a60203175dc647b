"""What a broker may hold and holds: Kafka's DescribeLogDirs request, one to each broker.

Where the figures come from:

- A broker reports, for each log dir, the total and usable bytes of its volume (version 4 of the request,
  Kafka 3.3, KIP-827). Capacity is the sum of the totals; used is total minus usable, so whatever else fills
  the volume counts too. Log dirs that share a volume are counted as often as there are dirs, capacity and
  use alike, so that the utilisation stays right.
- Where a capacity is configured, the volumes don't tell (brokers of one host share one): used is then the
  sum of the sizes of all replicas, without index files. So it is, with an unknown capacity, for a broker
  that doesn't report volumes.

Sizes are those of log segments after compression. Used bytes count both copies of a replica that is being
moved between log dirs; `bytes_by_topic_partition` counts the current one.

Totals cost nothing; sizes of all partitions are asked for only where they are needed: seldom, or for each
question where used bytes are their sum. Of topics that were named, the sizes are asked each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from kafka import errors as kafka_errors
from kafka.protocol.admin import DescribeLogDirsRequest

from telemetry_collector.errors import AccessRefusedError, BadAnswerError
from telemetry_collector.observation import BrokerStorage
from telemetry_collector.snapshot import TopicPartition
from telemetry_collector.sources.kafka_requests import KafkaRequests
from telemetry_collector.sources.source import Question

__all__ = ["LogDirsSource"]

_PERMISSION = "it needs DESCRIBE on the cluster"
_UNKNOWN = -1


class LogDirsSource:
    """Asks each broker for its log dirs. Keeps the contract of source.py.

    Args:
        requests: connections; shared with other sources, whoever made them closes them.
        capacity_bytes_by_broker: configured capacities, which count for more than what volumes say.
    """

    name = "log_dirs"
    is_per_broker = True

    def __init__(self, requests: KafkaRequests, *, capacity_bytes_by_broker: Mapping[int, int]) -> None:
        self._requests = requests
        self._capacities = capacity_bytes_by_broker
        self._reports_no_volumes: set[int] = set()

    async def answer(self, question: Question) -> BrokerStorage:
        """The broker's capacity and use, and the sizes of the partitions that are due."""
        broker_id = question.broker_id
        if broker_id is None:
            raise ValueError("log dirs are asked of one broker at a time, but the question names none")
        asked = self._partitions(broker_id, question)
        response = await self._ask(broker_id, asked, question.timeout_s)
        volumes = _volumes(broker_id, response)
        capacity_bytes = self._capacities.get(broker_id)
        if capacity_bytes is not None or volumes is None:
            if asked is not None:  # only now known that its volumes don't tell
                self._reports_no_volumes.add(broker_id)
                response = await self._ask(broker_id, None, question.timeout_s)
            used_bytes = sum(size for _, size, _ in _replicas(response))
            usable_bytes = None if capacity_bytes is None else max(0, capacity_bytes - used_bytes)
        else:
            self._reports_no_volumes.discard(broker_id)
            capacity_bytes, usable_bytes = volumes
            used_bytes = capacity_bytes - usable_bytes
        has_sizes = asked is None or question.topics is not None or broker_id in self._reports_no_volumes
        return BrokerStorage(
            capacity_bytes=capacity_bytes,
            used_bytes=used_bytes,
            usable_bytes=usable_bytes,
            bytes_by_topic_partition=_current_sizes(response) if has_sizes else None,
        )

    async def close(self) -> None:
        """Nothing to let go of: the connections are shared."""

    def _partitions(self, broker_id: int, question: Question) -> Mapping[str, list[int]] | None:
        """What to ask the sizes of, None for all."""
        if broker_id in self._capacities or broker_id in self._reports_no_volumes:
            return None
        if question.topics is None:
            return None if question.is_full else {}
        layout = question.layout.topics if question.layout is not None else None
        asked: dict[str, list[int]] = {}
        for topic in question.topics:
            placed = (layout or {}).get(topic, {})
            on_broker = [partition for partition, p in placed.items() if broker_id in p.replica_ids]
            if on_broker:
                asked[topic] = on_broker
        return asked

    async def _ask(self, broker_id: int, asked: Mapping[str, list[int]] | None, timeout_s: float) -> Any:
        topics = None
        if asked is not None:
            topic_type = DescribeLogDirsRequest.DescribableLogDirTopic
            topics = [topic_type(topic=topic, partitions=partitions) for topic, partitions in asked.items()]
        request = DescribeLogDirsRequest(topics=topics)
        response = await self._requests.ask(broker_id, request, timeout_s=timeout_s)
        error = kafka_errors.for_code(getattr(response, "error_code", 0) or 0)
        if error is kafka_errors.ClusterAuthorizationFailedError:
            raise AccessRefusedError(broker_id, "log dirs may not be described", _PERMISSION)
        if error is not kafka_errors.NoError:
            raise BadAnswerError(broker_id, f"log dirs: {error.__name__}")
        if not response.results:
            # Before version 3 a refusal is an empty answer; a broker always has a log dir.
            raise AccessRefusedError(broker_id, "it names no log dir, which is how it refuses", _PERMISSION)
        return response


def _volumes(broker_id: int, response: Any) -> tuple[int, int] | None:
    """Total and usable bytes over the log dirs that work; None where the broker doesn't tell."""
    total = usable = 0
    has_working = False
    for log_dir in response.results:
        if log_dir.error_code:
            continue  # a failed disk: it holds nothing that can be written to or read
        has_working = True
        if getattr(log_dir, "total_bytes", None) in (None, _UNKNOWN) or log_dir.usable_bytes == _UNKNOWN:
            return None
        total += log_dir.total_bytes
        usable += log_dir.usable_bytes
    if not has_working:
        raise BadAnswerError(broker_id, "all of its log dirs have failed")
    if not 0 <= usable <= total:
        raise BadAnswerError(broker_id, f"its volumes have {usable} usable of {total} bytes")
    return total, usable


def _replicas(response: Any) -> Iterable[tuple[TopicPartition, int, bool]]:
    """Each replica stored, its bytes, and whether it is a copy that will replace another."""
    for log_dir in response.results:
        for topic in log_dir.topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.name, partition.partition_index)
                yield key, max(0, partition.partition_size), partition.is_future_key


def _current_sizes(response: Any) -> dict[TopicPartition, int]:
    sizes: defaultdict[TopicPartition, int] = defaultdict(int)
    for key, size_bytes, is_future in _replicas(response):
        if not is_future:
            sizes[key] += size_bytes
    return dict(sizes)
