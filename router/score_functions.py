"""The score functions that are built in: is it there, does it take in more than the others, is it slower.

`reachability` looks at one broker alone. The other two compare brokers with one another, as nobody says what
a broker could take at most: scores are relative to what the others do at the same moment, and are 1 as long
as a broker is like them. Neither ever vetoes. What isn't known scores 1: no measurement is no reason.

A score acts on a broker's free bytes (scoring.py), so with much room everywhere even a low one moves only
part of the data; give it a larger weight (an exponent) where traffic matters more than room.

Invariants, checked in tests/property/router/test_scoring.py:
1. Scores lie in [0, 1], and above 0 for a broker that answers.
2. Making one broker's measurement worse never raises its own score.
3. Where all brokers measure the same, all score 1.

Read next: docs/score-functions.md, which writes one.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median

from evenload.router.scoring import ScoreContext
from evenload.telemetry_collector.snapshot import BrokerSnapshot

__all__ = ["ingest_rate", "latency", "reachability"]

# What any disk and link takes: below it, a difference between brokers is no burden to anybody.
_INGEST_FREE_BYTES_PER_S = float(1 << 20)
# Round trips differ by this factor, or by this much, between brokers that are equally well.
_LATENCY_FACTOR = 2.0
_LATENCY_FREE_S = 0.02


def reachability(broker: BrokerSnapshot, context: ScoreContext) -> float:  # noqa: ARG001
    """1 while the broker answers, 0 since it stopped, which a single missed answer does not yet say."""
    return 1.0 if broker.is_reachable else 0.0


def ingest_rate(broker: BrokerSnapshot, context: ScoreContext) -> float:
    """1 up to the mean of what brokers take in a second; twice the mean is 1/2, and so on.

    Bytes a second are those of `ingest_bytes_per_s`; up to 1 MiB/s everything is 1.
    """
    own = broker.ingest_bytes_per_s
    if own is None:
        return 1.0
    fair = max(_INGEST_FREE_BYTES_PER_S, fmean(_known(context, lambda other: other.ingest_bytes_per_s, own)))
    return min(1.0, fair / max(own, fair))


def latency(broker: BrokerSnapshot, context: ScoreContext) -> float:
    """1 up to twice the brokers' median (at least 20 ms); twice as much as that is 1/2, and so on.

    What producers' requests take (`request_latency_s`), where it is known of this broker; else the round
    trip of its latest measurement. Like is compared with like.
    """
    if broker.request_latency_s is not None:
        return _beside_the_median(broker.request_latency_s, context, lambda other: other.request_latency_s)
    if broker.latency_s is not None:
        return _beside_the_median(broker.latency_s, context, lambda other: other.latency_s)
    return 1.0


def _beside_the_median(
    own_s: float, context: ScoreContext, of: Callable[[BrokerSnapshot], float | None]
) -> float:
    allowed_s = max(_LATENCY_FREE_S, _LATENCY_FACTOR * median(_known(context, of, own_s)))
    return min(1.0, allowed_s / max(own_s, allowed_s))


def _known(context: ScoreContext, of: Callable[[BrokerSnapshot], float | None], own: float) -> list[float]:
    """The figure of every broker that answers and has it; the broker's own where none does."""
    brokers = context.snapshot.brokers.values()
    return [value for other in brokers if other.is_reachable and (value := of(other)) is not None] or [own]
