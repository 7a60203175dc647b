"""How much a partition will hold at most: what DescribeConfigs says of a topic's retention by size.

Where retention is by size, Kafka deletes a partition's oldest segment as soon as what is left without it is
still `retention.bytes`: a replica holds at most that and one segment (a little more until the next of its
checks, each five minutes). From then on each byte that comes pushes one out, so that sending more there
doesn't fill the broker, nor less empty it; whoever levels brokers has to know.

What isn't told, and why:

- Retention by time: how much it deletes follows from what came, and when. In the long run it levels by itself
  what is written in shares: old skew goes as old records do. Until then old bytes count as what they are.
- Compaction: how much it takes away depends on keys, which nobody counts. A topic that is only compacted has
  no limit by size at all.

Asked seldom (each `_ASK_ALL_S`; what is new, at once), and of any one broker. Needs DESCRIBE_CONFIGS on a
topic; a topic where that is refused has no known limit, which is said in a warning. Nothing else depends on
this (`is_essential`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kafka import errors as kafka_errors

from evenload.kafka_connection.kafka_python_internals import settings_request
from evenload.telemetry_collector.errors import CollectorClosedError
from evenload.telemetry_collector.sources.kafka_requests import KafkaRequests
from evenload.telemetry_collector.sources.observation import TopicLimits
from evenload.telemetry_collector.sources.source import Question

__all__ = ["TopicLimitsSource"]

_TOPIC = 2  # as this request counts kinds of resources
_ASK_ALL_S = 300.0
_POLICY, _RETENTION, _SEGMENT = "cleanup.policy", "retention.bytes", "segment.bytes"


class _Told(NamedTuple):
    """What is known of one topic: the most that a replica will hold, None where there is no limit by size."""

    max_bytes: int | None
    is_refused: bool = False


class TopicLimitsSource:
    """Asks any broker for topics' limits. Keeps the contract of source.py.

    Args:
        requests: connections; shared with other sources, whoever made them closes them.
        rng: decides which broker is asked.
        clock: monotonic seconds.
    """

    name = "topic_limits"
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
        self._told: dict[str, _Told] = {}
        self._all_due_at_s = 0.0
        self._is_closed = False

    async def answer(self, question: Question) -> TopicLimits:
        """The limits of the topics that matter and are there: of new ones at once, of others now and then."""
        if self._is_closed:
            raise CollectorClosedError("the source has been closed")
        layout = question.layout
        topics = frozenset(layout.topics or ()) if layout is not None else frozenset()
        now_s = self._clock()
        is_due = now_s >= self._all_due_at_s
        asked = topics if is_due else topics - self._told.keys()
        if layout is not None and layout.racks and asked:
            broker_id = self._rng.choice(sorted(layout.racks))
            told = await self._ask(broker_id, asked, question.timeout_s)
            known = {**self._told, **told}
            self._told = {topic: known[topic] for topic in topics if topic in known}
            if is_due:
                self._all_due_at_s = now_s + _ASK_ALL_S
        return _limits({topic: self._told[topic] for topic in topics if topic in self._told})

    async def close(self) -> None:
        """Answer no more; the connections are shared."""
        self._is_closed = True

    async def _ask(self, broker_id: int, topics: frozenset[str], timeout_s: float) -> dict[str, _Told]:
        request = settings_request(_TOPIC, sorted(topics), [_POLICY, _RETENTION, _SEGMENT])
        response = await self._requests.ask(broker_id, request, timeout_s=timeout_s)
        told = {}
        for result in response.results:
            error = kafka_errors.for_code(result.error_code)
            if error is kafka_errors.TopicAuthorizationFailedError:
                told[result.resource_name] = _Told(None, is_refused=True)
            elif error is kafka_errors.NoError:  # else this broker hasn't heard of it yet: it is asked again
                configs = {config.name: config.value for config in result.configs}
                told[result.resource_name] = _Told(_limit(configs))
        return told


def _limits(told: Mapping[str, _Told]) -> TopicLimits:
    warnings: tuple[str, ...] = ()
    refused = sorted(topic for topic, each in told.items() if each.is_refused)
    if refused:
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        warnings = (
            f"the configuration of topic {refused[0]!r}{more} may not be described; "
            "it needs DESCRIBE_CONFIGS on the topic",
        )
    limits = {topic: each.max_bytes for topic, each in told.items() if each.max_bytes is not None}
    return TopicLimits(partition_max_bytes=limits, warnings=warnings)


def _limit(told: Mapping[str, str | None]) -> int | None:
    """The most that a replica will hold; None where only time or keys decide."""
    policy, retention, segment = told.get(_POLICY), told.get(_RETENTION), told.get(_SEGMENT)
    if retention is None or segment is None or "delete" not in (policy or ""):
        return None
    return int(retention) + int(segment) if int(retention) >= 0 else None
