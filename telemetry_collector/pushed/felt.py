"""What producers feel, broker by broker: many claims, made into figures that few can bend.

A median alone doesn't keep out who makes up more clients than there are. So:

- A broker's latency is the median over clients, one voice each, of at least `VOICES_MIN`; a client that tells
  about one broker alone has none, as it compares nothing. People are shown that.
- What is decided by is cut at eight times the brokers' median (at least 80 ms). The score function `latency`
  allows twice the median (at least 20 ms), so whatever is claimed, its score doesn't fall below a quarter for
  that.
- Bytes that at least as many clients send to a broker are summed up; sources/observation.py cuts them.
- None of it says whether a broker can be reached: clients of one that hangs say nothing about it.

Invariants, checked in tests/property/telemetry_collector/pushed/test_felt.py:
1. With fewer liars than honest voices about a broker, its latency lies within the honest ones'.
2. What is decided by is never above the cut.

Pure. Read next: pushed_clients.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from evenload.telemetry_collector.pushed.client_figures import ClientFigures

__all__ = ["VOICES_MIN", "FeltByProducers", "felt_by"]

VOICES_MIN = 3
_CUT_MIN_S, _CUT_FACTOR = 0.080, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeltByProducers:
    """What producers of one kind feel; times in seconds.

    Attributes:
        num_clients: how many have pushed lately.
        latency_s_by_broker: the median over them; brokers about which too few speak are absent.
        queue_time_s: the median over them; None where none says.
        num_throttled: how many say that brokers hold them back by quota.
        sent_bytes_per_s_by_broker: all of them together; brokers to which too few send are absent.
        num_writing_by_topic: how many write each topic, as far as they say.
    """

    num_clients: int = 0
    latency_s_by_broker: Mapping[int, float] = field(default_factory=dict)
    queue_time_s: float | None = None
    num_throttled: int = 0
    sent_bytes_per_s_by_broker: Mapping[int, float] = field(default_factory=dict)
    num_writing_by_topic: Mapping[str, int] = field(default_factory=dict)

    def cut_latency_s(self, broker_id: int) -> float | None:
        """What may be decided by; None where too few speak about the broker."""
        latency_s = self.latency_s_by_broker.get(broker_id)
        if latency_s is None:
            return None
        return min(latency_s, max(_CUT_MIN_S, _CUT_FACTOR * median(self.latency_s_by_broker.values())))


def felt_by(heard: Sequence[ClientFigures]) -> FeltByProducers:
    """What clients feel, all of one kind."""
    voices: dict[int, list[float]] = {}
    sent: dict[int, list[float]] = {}
    writing: Counter[str] = Counter()
    for figures in heard:
        if len(figures.latency_s_by_broker) > 1:
            for broker_id, latency_s in figures.latency_s_by_broker.items():
                voices.setdefault(broker_id, []).append(latency_s)
        for broker_id, rate in figures.sent_bytes_per_s_by_broker.items():
            sent.setdefault(broker_id, []).append(rate)
        writing.update(topic for topic, rate in figures.sent_bytes_per_s_by_topic.items() if rate > 0)
    queue_times_s = [each.queue_time_s for each in heard if each.queue_time_s is not None]
    return FeltByProducers(
        num_clients=len(heard),
        latency_s_by_broker={b: median(told) for b, told in voices.items() if len(told) >= VOICES_MIN},
        queue_time_s=median(queue_times_s) if queue_times_s else None,
        num_throttled=sum(bool(each.throttle_time_s) for each in heard),
        sent_bytes_per_s_by_broker={b: sum(told) for b, told in sent.items() if len(told) >= VOICES_MIN},
        num_writing_by_topic=writing,
    )
