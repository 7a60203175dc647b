"""What Kafka's own clients push (KIP-714), as figures about each broker.

One source for each kind of client: Java's producers and librdkafka's mean different things by a latency, so
`MetricsBook` takes one instant's from one of them. Nobody is asked: pushes come to the service by way of
brokers (service/http/pushed_routes.py), and this only says what is known of them.

Read next: pushed/pushed_clients.py, which makes figures of claims.
"""

from __future__ import annotations

import asyncio

from evenload.telemetry_collector.errors import CollectorClosedError
from evenload.telemetry_collector.pushed.client_figures import Kind
from evenload.telemetry_collector.pushed.pushed_clients import PushedClients
from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics
from evenload.telemetry_collector.sources.source import Question

__all__ = ["PushedMetricsSource"]


class PushedMetricsSource:
    """Answers with what clients of one kind have pushed lately. Keeps the contract of source.py.

    Args:
        kind: of client.
        clients: what all of them have pushed.
    """

    is_per_broker = True
    is_essential = False

    def __init__(self, kind: Kind, clients: PushedClients) -> None:
        self.name = f"pushed_by_{kind}"
        self._kind = kind
        self._clients = clients
        self._is_closed = False

    async def answer(self, question: Question) -> BrokerMetrics:
        """What producers feel of the broker, if enough of them have said so lately."""
        if self._is_closed:
            raise CollectorClosedError("the source has been closed")
        assert question.broker_id is not None
        felt = (await asyncio.to_thread(self._clients.felt))[self._kind]
        return BrokerMetrics(
            request_latency_s=felt.cut_latency_s(question.broker_id),
            sent_bytes_per_s=felt.sent_bytes_per_s_by_broker.get(question.broker_id),
        )

    async def close(self) -> None:
        """Answer no more; clients may go on pushing."""
        self._is_closed = True
