"""What is told about brokers beside their storage: bytes received and request latency; and whose word counts.

Sources of such figures (a Prometheus exporter of each broker, a producer's own client, what clients push)
only add to what the brokers' log dirs tell. They may be silent, late or absent without a broker being any the
worse for it; what one said last counts until `max_age_s` has gone by.

Where several tell the same:

- *Bytes received* mean the same to all, so each broker is taken by itself: the first source, in the
  collector's order, that has a rate for it. (Without any, observation.py tells it from used bytes.)
- *Bytes sent*, as producers say, are some of those that are received: a lower bound.
- *Latencies* differ by what they include (a client's has the network and its own queue, a broker's hasn't),
  and are there to be compared between brokers. So all latencies of one instant come from the same source:
  the one that tells most brokers', of equals the first.

Invariants, checked in tests/property/telemetry_collector/test_broker_metrics.py:
1. All latencies at one instant were told by one source.
2. No figure is older than `max_age_s`.

Times are monotonic seconds. Read next: byte_rate.py; observation.py, which puts this into snapshots.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from evenload.telemetry_collector.sources.byte_rate import ByteRate

__all__ = ["BrokerMetrics", "MetricsBook"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMetrics:
    """What a source tells about one broker; None for what it doesn't know.

    Attributes:
        received_bytes: what came to the broker's log dirs, from producers and other replicas, since it
            started: a total, from which the rate follows.
        sent_bytes_per_s: what producers say that they send to it; others may send more.
        request_latency_s: how long it takes over a producer's request.
    """

    received_bytes: float | None = None
    sent_bytes_per_s: float | None = None
    request_latency_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("received_bytes", "sent_bytes_per_s", "request_latency_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}, it must be finite and not negative")


@dataclass(slots=True)
class _Told:
    latest: BrokerMetrics = field(default_factory=BrokerMetrics)
    asked_at_s: float = -math.inf
    rate: ByteRate = field(default_factory=ByteRate)


class MetricsBook:
    """The latest of each source about each broker. Not thread-safe: it belongs to the collector's loop.

    Args:
        source_names: who will tell something; of equals, the first counts.
        max_age_s: how long what was told counts, in seconds.
        claims: those of them that hand on what anybody may have made up; their latencies count only while no
            other source knows any.
    """

    def __init__(
        self, source_names: Sequence[str], *, max_age_s: float, claims: Collection[str] = ()
    ) -> None:
        self._told: dict[str, dict[int, _Told]] = {name: {} for name in source_names}
        self._claims = claims
        self._max_age_s = max_age_s

    def hear(self, source_name: str, broker_id: int, metrics: BrokerMetrics, *, asked_at_s: float) -> None:
        """Enter an answer."""
        told = self._told[source_name].setdefault(broker_id, _Told())
        told.latest, told.asked_at_s = metrics, asked_at_s
        if metrics.received_bytes is not None:
            told.rate.read(metrics.received_bytes, at_s=asked_at_s)

    def forget(self, broker_id: int) -> None:
        """A broker that is gone for good."""
        for by_broker in self._told.values():
            by_broker.pop(broker_id, None)

    def ingest_bytes_per_s(self, broker_id: int, *, now_s: float) -> float | None:
        """Bytes that come to a broker in a second; None where no source has told it lately."""
        for by_broker in self._told.values():
            told = by_broker.get(broker_id)
            if told is None or not self._counts(told, now_s) or told.latest.received_bytes is None:
                continue
            if (bytes_per_s := told.rate.bytes_per_s) is not None:
                return bytes_per_s
        return None

    def sent_bytes_per_s(self, broker_id: int, *, now_s: float) -> float:
        """Bytes that producers send to a broker in a second, as far as any source has told lately."""
        told = (by_broker.get(broker_id) for by_broker in self._told.values())
        return max(
            (each.latest.sent_bytes_per_s or 0.0 for each in told if each and self._counts(each, now_s)),
            default=0.0,
        )

    def request_latencies_s(self, *, now_s: float) -> Mapping[int, float]:
        """By broker id, what one of the sources has told lately; brokers that it doesn't know are absent."""
        by_source = {
            name: {
                broker_id: told.latest.request_latency_s
                for broker_id, told in by_broker.items()
                if self._counts(told, now_s) and told.latest.request_latency_s is not None
            }
            for name, by_broker in self._told.items()
        }
        measured = {name: found for name, found in by_source.items() if found and name not in self._claims}
        return max((measured or by_source).values(), key=len, default={})

    def _counts(self, told: _Told, now_s: float) -> bool:
        return now_s - told.asked_at_s <= self._max_age_s
