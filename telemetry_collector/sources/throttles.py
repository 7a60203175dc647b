"""Which replication throttles are set, whoever has set them, and whether anything moves under them.

Somebody who moves replicas sets a rate on brokers, names the replicas on topics, and takes both off again;
who is killed in between leaves them. Followers that fall behind then catch up no faster, and nobody sees why.

Asked each `_ASK_S` only: all brokers at the same time, each for its own rates (no other knows them), and then
one that answered for the lists of the topics that matter and for the reassignments that Kafka is at. What
isn't answered stays as it was told last: a broker in trouble is not one without a throttle. Needs
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

from evenload.kafka_connection.kafka_python_internals import (
    ListPartitionReassignmentsRequest,
    settings_request,
)
from evenload.telemetry_collector.errors import BadAnswerError, CollectorClosedError, SourceError
from evenload.telemetry_collector.snapshot import PartitionSnapshot, ReplicationThrottles
from evenload.telemetry_collector.sources.kafka_requests import KafkaRequests
from evenload.telemetry_collector.sources.observation import HeardThrottles
from evenload.telemetry_collector.sources.source import Question

__all__ = ["ThrottlesSource"]

_TOPIC, _BROKER = 2, 4  # as this request counts kinds of resources
_ASK_S = 60.0
_TOPICS_A_REQUEST = 1000
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


class ThrottlesSource:
    """Asks brokers for throttles. Keeps the contract of source.py.

    Args:
        requests: connections; shared with other sources, whoever made them closes them.
        rng: decides which of the brokers that answer is asked for topics and reassignments.
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
        self._rates: dict[int, int] = {}
        self._num_replicas: dict[str, int] = {}
        self._told = HeardThrottles(throttles=None)
        self._due_at_s = 0.0
        self._is_closed = False

    async def answer(self, question: Question) -> HeardThrottles:
        """What was told last; asked anew now and then.

        Raises:
            SourceError: no broker answers.
            CollectorClosedError: the source has been closed.
        """
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
        # Half of the time for each of the two, as a single silent broker uses up the first.
        told = await self._answers_of_all(broker_ids, timeout_s / 2)
        refused = [str(broker_id) for broker_id, result in told.items() if _is_refused(result)]
        for broker_id, result in told.items():
            self._enter_rate(broker_id, result)
        rates = {each: self._rates[each] for each in broker_ids if each in self._rates}
        if len(refused) == len(told) and not rates:
            return HeardThrottles(throttles=None, warnings=_refusal(refused))
        one = self._rng.choice(sorted(told))
        num_moving, _ = await asyncio.gather(
            self._num_moving(one, timeout_s / 2), self._hear_lists(one, topics, timeout_s / 2)
        )
        return HeardThrottles(
            throttles=ReplicationThrottles(
                bytes_per_s=rates, num_replicas=dict(self._num_replicas), num_moving=num_moving
            ),
            warnings=_refusal(refused),
        )

    async def _answers_of_all(self, broker_ids: Sequence[int], timeout_s: float) -> dict[int, Any]:
        """What each broker says of itself; those that don't or can't say are absent, as long as one does."""
        answers = await asyncio.gather(
            *(self._configs(each, _BROKER, [str(each)], _RATES, timeout_s) for each in broker_ids),
        )
        told = {
            broker_id: answer[0]
            for broker_id, answer in zip(broker_ids, answers, strict=True)
            if not isinstance(answer, SourceError)
            and answer
            and (not answer[0].error_code or _is_refused(answer[0]))
        }
        if not told:
            errors = (each for each in answers if isinstance(each, SourceError))
            raise next(errors, BadAnswerError(broker_ids[0], "it can't say what its own configuration is"))
        return told

    def _enter_rate(self, broker_id: int, result: Any) -> None:
        if rates := _rates(result):
            self._rates[broker_id] = min(rates)
        else:
            self._rates.pop(broker_id, None)

    async def _hear_lists(
        self, asked: int, topics: Mapping[str, Mapping[int, PartitionSnapshot]], timeout_s: float
    ) -> None:
        names = sorted(topics)
        chunks = [names[at : at + _TOPICS_A_REQUEST] for at in range(0, len(names), _TOPICS_A_REQUEST)]
        answers = await asyncio.gather(
            *(self._configs(asked, _TOPIC, chunk, _LISTS, timeout_s) for chunk in chunks)
        )
        results = [each for answer in answers if not isinstance(answer, SourceError) for each in answer]
        told = {
            each.resource_name: _num_replicas(_values(each), topics.get(each.resource_name, {}))
            for each in results
            if not each.error_code
        }
        known = {**self._num_replicas, **told}
        self._num_replicas = {name: known[name] for name in names if known.get(name)}

    async def _configs(
        self, asked: int, resource_type: int, names: Collection[str], keys: Sequence[str], timeout_s: float
    ) -> list[Any] | SourceError:
        """What a broker says of these, or why it doesn't."""
        request = settings_request(resource_type, names, keys)
        try:
            return list((await self._requests.ask(asked, request, timeout_s=timeout_s)).results)
        except SourceError as error:
            return error

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


def _is_refused(result: Any) -> bool:
    return kafka_errors.for_code(result.error_code) is kafka_errors.ClusterAuthorizationFailedError


def _refusal(broker_ids: Sequence[str]) -> tuple[str, ...]:
    if not broker_ids:
        return ()
    more = f" and {len(broker_ids) - 1} more" if len(broker_ids) > 1 else ""
    return (
        f"whether replication is throttled may not be asked of broker {broker_ids[0]}{more}; "
        "it needs DESCRIBE_CONFIGS on the cluster",
    )
