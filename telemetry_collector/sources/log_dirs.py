"""What a broker may hold and holds: Kafka's DescribeLogDirs request, one to each broker.

Where the figures come from:

- A broker reports, for each log dir, the total and usable bytes of its volume (version 4 of the request,
  Kafka 3.3, KIP-827). Capacity is the sum of the totals; used is total minus usable, so whatever else fills
  the volume counts too. A volume that several log dirs share is counted once (volumes.py). A log dir that
  failed counts nowhere, its volume neither: nothing can be written to it or read from it.
- Where a capacity is configured, the volumes don't tell (brokers of one host share one): used is then the
  sum of the sizes of all replicas, without index files. So it is, with an unknown capacity, for a broker
  that doesn't report volumes.
- A broker is cordoned when all of its working log dirs are (version 5, Kafka 4.3, KIP-1066): its operator
  wants nothing new there.

What can't be right is used as it is, and said in a warning: a configured capacity below what is held or above
what the volumes have, a capacity that nobody tells, a failed log dir.

Sizes are those of log segments after compression. Used bytes count both copies of a replica that is being
moved between log dirs; `bytes_by_topic_partition` counts the current one.

Totals cost nothing; sizes of all partitions are asked for only where they are needed: seldom, or for each
question where used bytes are their sum. Of topics that were named, the sizes are asked each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka import errors as kafka_errors

from evenload.kafka_connection.kafka_python_internals import DescribeLogDirsRequest
from evenload.telemetry_collector.errors import AccessRefusedError, BadAnswerError
from evenload.telemetry_collector.snapshot import LogDirSnapshot, TopicPartition
from evenload.telemetry_collector.sources.kafka_requests import KafkaRequests
from evenload.telemetry_collector.sources.observation import BrokerStorage
from evenload.telemetry_collector.sources.source import Question
from evenload.telemetry_collector.sources.volumes import SeenVolumes, Volume, VolumeOfDir

__all__ = ["LogDirsSource"]

_PERMISSION = "it needs DESCRIBE on the cluster"
_UNTOLD = (None, -1, 0)  # from an older broker, from one that couldn't tell, of a volume without a limit


class LogDirsSource:
    """Asks each broker for its log dirs. Keeps the contract of source.py.

    Args:
        requests: connections; shared with other sources, whoever made them closes them.
        capacity_bytes_by_broker: configured capacities, which count for more than what volumes say.
    """

    name = "log_dirs"
    is_per_broker = True
    is_essential = True

    def __init__(self, requests: KafkaRequests, *, capacity_bytes_by_broker: Mapping[int, int]) -> None:
        self._requests = requests
        self._capacities = capacity_bytes_by_broker
        self._reports_no_volumes: set[int] = set()
        self._seen: defaultdict[int, SeenVolumes] = defaultdict(SeenVolumes)

    async def answer(self, question: Question) -> BrokerStorage:
        """The broker's capacity and use, and the sizes of the partitions that are due."""
        broker_id = question.broker_id
        if broker_id is None:
            raise ValueError("log dirs are asked of one broker at a time, but the question names none")
        asked = self._partitions(broker_id, question)
        response = await self._ask(broker_id, asked, question.timeout_s)
        working = _working(broker_id, response)
        volumes = _volumes(broker_id, working, self._seen[broker_id])
        capacity_bytes = self._capacities.get(broker_id)
        is_configured = capacity_bytes is not None
        if is_configured or volumes is None:
            if asked is not None:  # only now known that its volumes don't tell
                self._reports_no_volumes.add(broker_id)
                response = await self._ask(broker_id, None, question.timeout_s)
            used_bytes = sum(size for _, size, _ in _replicas(response.results))
            usable_bytes = None if capacity_bytes is None else max(0, capacity_bytes - used_bytes)
        else:
            self._reports_no_volumes.discard(broker_id)
            capacity_bytes = sum(volume.total_bytes for volume in volumes)
            usable_bytes = sum(volume.usable_bytes for volume in volumes)
            used_bytes = capacity_bytes - usable_bytes
        has_sizes = asked is None or question.topics is not None or broker_id in self._reports_no_volumes
        return BrokerStorage(
            capacity_bytes=capacity_bytes,
            used_bytes=used_bytes,
            usable_bytes=usable_bytes,
            bytes_by_topic_partition=_current_sizes(response) if has_sizes else None,
            is_cordoned=all(getattr(log_dir, "is_cordoned", False) for log_dir in working),
            log_dirs={} if is_configured or volumes is None else _log_dirs(volumes, response),
            warnings=(
                *_failed(response),
                *_capacity_warnings(capacity_bytes, used_bytes, volumes if is_configured else None),
            ),
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


def _working(broker_id: int, response: Any) -> Sequence[Any]:
    """The log dirs that can be written to and read."""
    working = [log_dir for log_dir in response.results if not log_dir.error_code]
    if not working:
        raise BadAnswerError(broker_id, "all of its log dirs have failed")
    return working


def _volumes(broker_id: int, working: Sequence[Any], seen: SeenVolumes) -> Sequence[Volume] | None:
    """The volumes of the log dirs that work; None where the broker doesn't tell."""
    dirs = []
    for log_dir in working:
        total, usable = getattr(log_dir, "total_bytes", None), getattr(log_dir, "usable_bytes", None)
        if total in _UNTOLD or usable is None or usable == -1:
            return None
        if not 0 <= usable <= total:
            raise BadAnswerError(broker_id, f"its volumes have {usable} usable of {total} bytes")
        dirs.append(VolumeOfDir(log_dir.log_dir, total, usable))
    return seen.volumes(dirs)


def _log_dirs(volumes: Sequence[Volume], response: Any) -> Mapping[str, LogDirSnapshot]:
    """Each volume with what lies on it, where there are several."""
    if len(volumes) < 2:
        return {}
    by_path = {log_dir.log_dir: log_dir for log_dir in response.results}
    return {
        volume.paths[0]: LogDirSnapshot(
            capacity_bytes=volume.total_bytes,
            used_bytes=volume.used_bytes,
            topic_partitions=frozenset(
                key
                for key, _, is_future in _replicas(by_path[path] for path in volume.paths)
                if not is_future
            ),
        )
        for volume in volumes
    }


def _failed(response: Any) -> Iterable[str]:
    failed = [log_dir.log_dir for log_dir in response.results if log_dir.error_code]
    if failed:
        yield f"{len(failed)} of its {len(response.results)} log dirs have failed: {', '.join(failed)}"


def _capacity_warnings(
    capacity_bytes: int | None, used_bytes: int, volumes: Sequence[Volume] | None
) -> Iterable[str]:
    """What is wrong with a capacity; volumes only where it is configured and they are known."""
    if capacity_bytes is None:
        yield "its capacity isn't known: it doesn't tell, so configure capacity_bytes_by_broker"
    elif used_bytes > capacity_bytes:
        yield (
            f"it holds {used_bytes} bytes, more than its configured capacity of {capacity_bytes}; "
            "correct capacity_bytes_by_broker"
        )
    elif volumes is not None and capacity_bytes > (has_bytes := sum(v.total_bytes for v in volumes)):
        yield (
            f"its configured capacity of {capacity_bytes} bytes is more than the {has_bytes} that its "
            "volumes have; correct capacity_bytes_by_broker"
        )


def _replicas(log_dirs: Iterable[Any]) -> Iterable[tuple[TopicPartition, int, bool]]:
    """Each replica stored, its bytes, and whether it is a copy that will replace another."""
    for log_dir in log_dirs:
        for topic in log_dir.topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.name, partition.partition_index)
                yield key, max(0, partition.partition_size), partition.is_future_key


def _current_sizes(response: Any) -> dict[TopicPartition, int]:
    sizes: defaultdict[TopicPartition, int] = defaultdict(int)
    for key, size_bytes, is_future in _replicas(response.results):
        if not is_future:
            sizes[key] += size_bytes
    return dict(sizes)
