"""Which replication throttles are set, whoever has set them, and whether anything moves under them.

Somebody who moves replicas sets a rate on brokers, names the replicas on topics, and takes both off again;
who is killed in between leaves them. Followers that fall behind then catch up no faster, and nobody sees why.

Asked each `_ASK_S` only, all at the same time: each broker for its own rates (no other knows them), any one
for the lists of the topics that matter, and any one for the reassignments that Kafka is at. Needs
DESCRIBE_CONFIGS on the cluster; a broker that refuses it has no known rate, which is said in a warning.
Nothing else depends on this (`is_essential`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kafka import errors as kafka_errors
from kafka.protocol.admin import DescribeConfigsRequest, ListPartitionReassignmentsRequest

from telemetry_collector.errors import CollectorClosedError, SourceError
from telemetry_collector.observation import HeardThrottles
from telemetry_collector.snapshot import PartitionSnapshot, ReplicationThrottles
from telemetry_collector.sources.kafka_requests import KafkaRequests
from telemetry_collector.sources.source import Question

__all__ = ["ThrottlesSource"]

_TOPIC, _BROKER = 2, 4  # as this request counts kinds of resources
_ASK_S = 60.0
_TOPICS_A_REQUEST = 1000
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_REFUSALS = (kafka_errors.ClusterAuthorizationFailedError, kafka_errors.TopicAuthorizationFailedError)


class ThrottlesSource:
    """Asks brokers for throttles. Keeps the contract of source.py.

    Args:
        requests: connections; shared with other sources, whoever made them closes them.
        rng: decides which broker is asked for topics and reassignments.
        clock: monotonic seconds.
    """

    name = "replication_throttles"
    is_per_broker = False
    is_essential = False

    def __init__(
        self,
        requests: KafkaRequests,
        *,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._rng = rng
        self._clock = clock
        self._told = HeardThrottles(throttles=None)
        self._due_at_s = 0.0
        self._is_closed = False

    async def answer(self, question: Question) -> HeardThrottles:
        """What was told last; asked anew now and then."""
        if self._is_closed:
            raise CollectorClosedError("the source has been closed")
        layout = question.layout
        now_s = self._clock()
        if layout is not None and layout.racks and now_s >= self._due_at_s:
            self._told = await self._ask(sorted(layout.racks), layout.topics or {}, question.timeout_s)
            self._due_at_s = now_s + _ASK_S
        return self._told

    async def close(self) -> None:
        """Answer no more; the connections are shared."""
        self._is_closed = True

    async def _ask(
        self,
        broker_ids: Sequence[int],
        topics: Mapping[str, Mapping[int, PartitionSnapshot]],
        timeout_s: float,
    ) -> HeardThrottles:
        any_broker = self._rng.choice(broker_ids)
        names = sorted(topics)
        chunks = [names[at : at + _TOPICS_A_REQUEST] for at in range(0, len(names), _TOPICS_A_REQUEST)]
        asking = [self._configs(each, _BROKER, [str(each)], _RATES, timeout_s) for each in broker_ids]
        asking += [self._configs(any_broker, _TOPIC, chunk, _LISTS, timeout_s) for chunk in chunks]
        num_moving, *answers = await asyncio.gather(self._num_moving(any_broker, timeout_s), *asking)
        told = [result for answer in answers for result in answer]
        rates = {
            int(result.resource_name): min(values)
            for result in told
            if result.resource_type == _BROKER and (values := _rates(result))
        }
        replicas = {
            result.resource_name: count
            for result in told
            if result.resource_type == _TOPIC
            and (count := _num_replicas(_values(result), topics.get(result.resource_name, {})))
        }
        refused = [result.resource_name for result in told if _is_refused(result, _BROKER)]
        if len(refused) == len(broker_ids):
            return HeardThrottles(throttles=None, warnings=_refusal(refused))
        return HeardThrottles(
            throttles=ReplicationThrottles(bytes_per_s=rates, num_replicas=replicas, num_moving=num_moving),
            warnings=_refusal(refused),
        )

    async def _configs(
        self, asked: int, resource_type: int, names: Collection[str], keys: Sequence[str], timeout_s: float
    ) -> list[Any]:
        """What a broker says of these; nothing when it doesn't answer, which others notice and say."""
        resource = DescribeConfigsRequest.DescribeConfigsResource
        request = DescribeConfigsRequest(
            resources=[
                resource(resource_type=resource_type, resource_name=name, configuration_keys=list(keys))
                for name in names
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        try:
            return list((await self._requests.ask(asked, request, timeout_s=timeout_s)).results)
        except SourceError:
            return []

    async def _num_moving(self, asked: int, timeout_s: float) -> int | None:
        request = ListPartitionReassignmentsRequest(timeout_ms=int(timeout_s * 1000), topics=None)
        try:
            response = await self._requests.ask(asked, request, timeout_s=timeout_s)
        except SourceError:
            return None
        if response.error_code:
            return None
        return sum(len(topic.partitions) for topic in response.topics)


def _values(result: Any) -> dict[str, str]:
    if result.error_code:
        return {}
    return {config.name: config.value for config in result.configs if config.value}


def _rates(result: Any) -> list[int]:
    values = _values(result)
    return [int(values[name]) for name in _RATES if values.get(name, "").isdecimal()]


def _num_replicas(values: Mapping[str, str], partitions: Mapping[int, PartitionSnapshot]) -> int:
    """How many replicas two lists of `partition:broker` name together; `*` stands for all."""
    entries = {entry for name in _LISTS for entry in values.get(name, "").split(",") if entry}
    if "*" in entries:
        return sum(len(placed.replica_ids) for placed in partitions.values())
    return len(entries)


def _is_refused(result: Any, resource_type: int) -> bool:
    error = kafka_errors.for_code(result.error_code)
    return result.resource_type == resource_type and error in _REFUSALS


def _refusal(broker_ids: Sequence[str]) -> tuple[str, ...]:
    if not broker_ids:
        return ()
    more = f" and {len(broker_ids) - 1} more" if len(broker_ids) > 1 else ""
    return (
        f"whether replication is throttled may not be asked of broker {broker_ids[0]}{more}; "
        "it needs DESCRIBE_CONFIGS on the cluster",
    )
