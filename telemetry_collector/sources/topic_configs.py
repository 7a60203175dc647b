"""What topics' configurations say that matters to whoever writes: what DescribeConfigs tells of a topic.

- **How much a partition's replica will hold at most.** Where retention is by size, Kafka deletes a
  partition's oldest segment as soon as what is left without it is still `retention.bytes`: a replica holds
  at most that and one segment (a little more until the next of its checks, each five minutes). From then on
  each byte that comes pushes one out, so that sending more there doesn't fill the broker, nor less empty
  it; whoever levels brokers has to know. Of a topic whose old segments move to remote storage (KIP-405),
  `local.retention.bytes` says what stays on the disk.
- **How old what it holds can get**, likewise: with a pace, that is a size as well
  (router/forecasting/load.py). Levelling doesn't count with it: in the long run it levels by itself what is
  written in shares, as old skew goes when old records do; until then old bytes count as what they are.
- **How many replicas have to be in sync** for a record to be taken.

Compaction isn't told: how much it takes away depends on keys, which nobody counts. A topic that is only
compacted has no limit by size or age at all.

Asked seldom (each `_ASK_ALL_S`; what is new, at once), and of any one broker. Needs DESCRIBE_CONFIGS on a
topic; of a topic where that is refused nothing is known, which is said in a warning. Nothing else depends on
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
from evenload.telemetry_collector.snapshot import TopicConfig
from evenload.telemetry_collector.sources.kafka_requests import KafkaRequests
from evenload.telemetry_collector.sources.observation import HeardConfigs
from evenload.telemetry_collector.sources.source import Question

__all__ = ["TopicConfigsSource"]

_TOPIC = 2  # as this request counts kinds of resources
_ASK_ALL_S = 300.0
_POLICY, _SEGMENT, _MIN_IN_SYNC = "cleanup.policy", "segment.bytes", "min.insync.replicas"
_RETENTION_BYTES, _RETENTION_MS = "retention.bytes", "retention.ms"
_IS_TIERED = "remote.storage.enable"
# Brokers before 3.6 don't know them, and leave them out of the answer.
_LOCAL_BYTES, _LOCAL_MS = "local.retention.bytes", "local.retention.ms"
_AS_RETENTION = -2
_NAMES = [
    _POLICY,
    _SEGMENT,
    _MIN_IN_SYNC,
    _RETENTION_BYTES,
    _RETENTION_MS,
    _IS_TIERED,
    _LOCAL_BYTES,
    _LOCAL_MS,
]


class _Told(NamedTuple):
    """What is known of one topic."""

    config: TopicConfig
    is_refused: bool = False


class TopicConfigsSource:
    """Asks any broker for topics' configurations. Keeps the contract of source.py.

    Args:
        requests: connections; shared with other sources, whoever made them closes them.
        rng: decides which broker is asked.
        clock: monotonic seconds.
    """

    name = "topic_configs"
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

    async def answer(self, question: Question) -> HeardConfigs:
        """Of the topics that matter and are there: of new ones at once, of others now and then."""
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
        return _heard({topic: self._told[topic] for topic in topics if topic in self._told})

    async def close(self) -> None:
        """Answer no more; the connections are shared."""
        self._is_closed = True

    async def _ask(self, broker_id: int, topics: frozenset[str], timeout_s: float) -> dict[str, _Told]:
        request = settings_request(_TOPIC, sorted(topics), _NAMES)
        response = await self._requests.ask(broker_id, request, timeout_s=timeout_s)
        told = {}
        for result in response.results:
            error = kafka_errors.for_code(result.error_code)
            if error is kafka_errors.TopicAuthorizationFailedError:
                told[result.resource_name] = _Told(TopicConfig(), is_refused=True)
            elif error is kafka_errors.NoError:  # else this broker hasn't heard of it yet: it is asked again
                configs = {config.name: config.value for config in result.configs}
                told[result.resource_name] = _Told(_config(configs))
        return told


def _heard(told: Mapping[str, _Told]) -> HeardConfigs:
    warnings: tuple[str, ...] = ()
    refused = sorted(topic for topic, each in told.items() if each.is_refused)
    if refused:
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        warnings = (
            f"the configuration of topic {refused[0]!r}{more} may not be described; "
            "it needs DESCRIBE_CONFIGS on the topic",
        )
    configs = {topic: each.config for topic, each in told.items() if each.config != TopicConfig()}
    return HeardConfigs(topic_configs=configs, warnings=warnings)


def _config(told: Mapping[str, str | None]) -> TopicConfig:
    def number(name: str) -> int | None:
        value = told.get(name)
        return None if value is None else int(value)

    def kept(name: str, local_name: str) -> int | None:
        """What stays on a broker's disk; None without a limit."""
        local = number(local_name) if told.get(_IS_TIERED) == "true" else None
        most = number(name) if local in (None, _AS_RETENTION) else local
        return most if most is not None and most >= 0 else None

    is_deleted = "delete" in (told.get(_POLICY) or "")
    segment_bytes = number(_SEGMENT)
    most_bytes = kept(_RETENTION_BYTES, _LOCAL_BYTES) if is_deleted else None
    most_ms = kept(_RETENTION_MS, _LOCAL_MS) if is_deleted else None
    return TopicConfig(
        partition_max_bytes=None
        if most_bytes is None or segment_bytes is None
        else most_bytes + segment_bytes,
        max_age_s=None if most_ms is None else most_ms / 1000,
        segment_bytes=segment_bytes,
        min_in_sync=number(_MIN_IN_SYNC),
    )
