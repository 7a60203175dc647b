"""Who is in the cluster and where partitions are kept: Kafka's Metadata request.

Any broker can answer, so a slow one needn't be waited for: the one that answered last is asked first, and
while there is no answer, another is asked each `hedge_delay_s` (at once after a failure); the first answer
counts. Each broker is asked at most once for a question. The layout of all topics is too large for that
(100,000 partitions take seconds to parse): a small question first finds a broker that answers, and only that
one is asked for it.

Brokers are asked for each time, topics' layouts when they were named or when all of them are due. A topic
that doesn't exist (yet) is left out, and is never created by being asked for. One that may not be described
makes the whole answer an error, so that whoever named it learns why; where many name topics (a collector
service), it is left out and said in a warning, so that nobody else goes without.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from kafka import errors as kafka_errors

from evenload.kafka_connection.kafka_python_internals import MetadataRequest
from evenload.telemetry_collector.errors import (
    AccessRefusedError,
    BadAnswerError,
    BrokerUnreachableError,
    SourceError,
)
from evenload.telemetry_collector.snapshot import PartitionSnapshot
from evenload.telemetry_collector.sources.kafka_requests import KafkaRequests
from evenload.telemetry_collector.sources.observation import ClusterLayout
from evenload.telemetry_collector.sources.source import Question

__all__ = ["ClusterMetadataSource"]

_PERMISSION = "it needs DESCRIBE on the topic"


class ClusterMetadataSource:
    """Asks any broker for the cluster's layout. Keeps the contract of source.py.

    Args:
        requests: connections; shared with other sources, whoever made them closes them.
        hedge_delay_s: how long one broker may take before another is asked as well; above 0.
        rng: decides in which order brokers are asked.
        is_for_many: whether a topic that may not be described is left out.
    """

    name = "cluster_metadata"
    is_per_broker = False
    is_essential = True

    def __init__(
        self, requests: KafkaRequests, *, hedge_delay_s: float, rng: random.Random, is_for_many: bool = False
    ) -> None:
        self._requests = requests
        self._is_for_many = is_for_many
        self._hedge_delay_s = hedge_delay_s
        self._rng = rng
        self._answered_last: int | None = None
        self._asked_by_address: set[str] = set()

    async def answer(self, question: Question) -> ClusterLayout:
        """The cluster's brokers, and the layout of topics if they were named or are due."""
        has_topics = question.topics is not None or question.is_full
        try:
            async with asyncio.timeout(question.timeout_s):
                node, response = await self._first_answer(question, question.topics or frozenset())
                if question.topics is None and question.is_full:
                    response = await self._ask(node, None, question.timeout_s)
                layout = _layout(node, response, has_topics=has_topics, is_for_many=self._is_for_many)
                known = question.layout
                if known is None or known.cluster_id == layout.cluster_id:
                    # Another cluster's brokers have the same ids: they would be asked in place of ours.
                    await self._requests.learn_brokers(response)
        except TimeoutError as error:
            reason = f"no broker answered within {question.timeout_s:g} s"
            raise BrokerUnreachableError("any", reason) from error
        finally:
            # From now on the same brokers are asked by their ids, over other connections.
            while self._asked_by_address:
                self._requests.hang_up(self._asked_by_address.pop())
        self._answered_last = node if isinstance(node, int) else None
        return layout

    async def close(self) -> None:
        """Nothing to let go of: the connections are shared."""

    async def _first_answer(self, question: Question, topics: frozenset[str] | None) -> tuple[int | str, Any]:
        nodes = iter(self._order(question.layout))
        asked: dict[asyncio.Task[Any], int | str] = {}
        pending: set[asyncio.Task[Any]] = set()
        failure: SourceError | None = None
        try:
            while True:
                node = next(nodes, None)
                if node is not None:
                    task = asyncio.ensure_future(self._ask(node, topics, question.timeout_s))
                    asked[task] = node
                    pending.add(task)
                elif not pending:
                    raise failure or BrokerUnreachableError("any", "there is no broker to ask")
                done, pending = await asyncio.wait(
                    pending,
                    timeout=None if node is None else self._hedge_delay_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    error = task.exception()
                    if error is None:
                        return asked[task], task.result()
                    if not isinstance(error, SourceError):
                        raise error
                    failure = error
        finally:
            for task in pending:
                task.cancel()
            # Those that failed while another answered are looked at too, or asyncio complains of them.
            await asyncio.gather(*asked, return_exceptions=True)

    async def _ask(self, node: int | str, topics: frozenset[str] | None, timeout_s: float) -> Any:
        request = MetadataRequest(
            topics=None
            if topics is None
            else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(topics)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        if isinstance(node, str):
            self._asked_by_address.add(node)
        return await self._requests.ask(node, request, timeout_s=timeout_s)

    def _order(self, layout: ClusterLayout | None) -> Sequence[int | str]:
        brokers = sorted(layout.racks) if layout is not None else []
        bootstrap = list(self._requests.bootstrap_nodes)
        self._rng.shuffle(brokers)
        self._rng.shuffle(bootstrap)
        if self._answered_last in brokers:
            brokers.remove(self._answered_last)
            brokers.insert(0, self._answered_last)
        return [*brokers, *bootstrap]


def _layout(node: int | str, response: Any, *, has_topics: bool, is_for_many: bool) -> ClusterLayout:
    error_code = getattr(response, "error_code", 0) or 0
    if error_code:
        raise BadAnswerError(node, f"metadata: {kafka_errors.for_code(error_code).__name__}")
    if not response.brokers or not response.cluster_id:
        raise BadAnswerError(node, "its metadata names no broker or no cluster id; is it still starting?")
    topics: dict[str, dict[int, PartitionSnapshot]] = {}
    refused: list[str] = []
    for topic in response.topics:
        error = kafka_errors.for_code(topic.error_code)
        if error is kafka_errors.TopicAuthorizationFailedError:
            refused.append(topic.name)
        elif error is kafka_errors.NoError:
            topics[topic.name] = {p.partition_index: _placed(p) for p in topic.partitions}
    warnings: tuple[str, ...] = ()
    if refused:
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        reason = f"topic {min(refused)!r}{more} may not be described"
        if not is_for_many:
            raise AccessRefusedError(node, reason, _PERMISSION)
        warnings = (f"{reason}; {_PERMISSION}",)
    return ClusterLayout(
        cluster_id=response.cluster_id,
        racks={broker.node_id: broker.rack for broker in response.brokers},
        topics=topics if has_topics else None,
        warnings=warnings,
    )


def _placed(partition: Any) -> PartitionSnapshot:
    return PartitionSnapshot(
        leader_id=partition.leader_id if partition.leader_id >= 0 else None,
        replica_ids=tuple(partition.replica_nodes),
        isr_ids=tuple(partition.isr_nodes),
    )
