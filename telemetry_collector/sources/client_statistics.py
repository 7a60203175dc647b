"""What a producer's own client experiences: librdkafka's statistics, told by the client, asked of nobody.

    statistics = ClientStatisticsSource(age_max_s=30)
    Producer({"statistics.interval.ms": 5000, "stats_cb": statistics.feed, ...})

A broker's latency is the time a request waits in the client's own queue for it plus the round trip, as means
over the client's last interval:

- Means, though quantiles are there too: those leave out whatever took over 0.5 s (librdkafka gives their
  histogram that range), just when a broker is slow.
- A broker that has stopped answering has no round trips at all. While requests are out, it is as slow as the
  time since the last one was sent.
- A broker that was sent nothing has no figure, nor has one that the client isn't connected to. So one that
  was avoided for its latency is forgiven after `age_max_s`, tried again, and measured.

All times in these statistics are microseconds
(https://github.com/confluentinc/librdkafka/blob/master/STATISTICS.md).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from evenload.telemetry_collector.errors import CollectorClosedError
from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics
from evenload.telemetry_collector.sources.source import Question

__all__ = ["ClientStatisticsSource"]

_US = 1e-6


class _Told(NamedTuple):
    latency_s: float
    at_s: float


class ClientStatisticsSource:
    """Remembers what one client told last. Keeps the contract of source.py; `feed` from any thread.

    Args:
        age_max_s: how long a figure counts, in seconds.
        clock: monotonic seconds.
    """

    name = "client_statistics"
    is_per_broker = True
    is_essential = False

    def __init__(self, *, age_max_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._age_max_s = age_max_s
        self._clock = clock
        self._told: Mapping[int, _Told] = {}
        self._is_closed = False

    def feed(self, document: str) -> None:
        """Enter one document of statistics, as `stats_cb` gets it. Called by one thread at a time."""
        now_s = self._clock()
        told = {broker_id: told for broker_id, told in self._told.items() if self._counts(told, now_s)}
        for broker in json.loads(document).get("brokers", {}).values():
            latency_s = _latency_s(broker)
            if latency_s is not None:
                told[broker["nodeid"]] = _Told(latency_s, now_s)
        self._told = told  # swapped as one: whoever is answered meanwhile has the ones before

    async def answer(self, question: Question) -> BrokerMetrics:
        """The broker's latency, if the client has told it lately."""
        if self._is_closed:
            raise CollectorClosedError("the source has been closed")
        assert question.broker_id is not None
        told = self._told.get(question.broker_id)
        if told is None or not self._counts(told, self._clock()):
            return BrokerMetrics()
        return BrokerMetrics(request_latency_s=told.latency_s)

    async def close(self) -> None:
        """Answer no more; the client may go on telling."""
        self._is_closed = True

    def _counts(self, told: _Told, now_s: float) -> bool:
        return now_s - told.at_s <= self._age_max_s


def _latency_s(broker: Mapping[str, Any]) -> float | None:
    """A broker's latency; None where the client has no request to tell it from."""
    if broker["nodeid"] < 0:
        return None  # an address from the configuration, under which the client asks who is there
    sent_ago_us = broker.get("txidle", -1)
    waited_us = sent_ago_us if broker.get("waitresp_cnt", 0) > 0 else -1
    round_trip, queue = broker.get("rtt", {}), broker.get("outbuf_latency", {})
    answered_us = round_trip["avg"] + queue.get("avg", 0) if round_trip.get("cnt") else -1
    latency_us = max(waited_us, answered_us)
    return latency_us * _US if latency_us >= 0 else None
