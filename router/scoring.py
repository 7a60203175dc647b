"""Turn what is known about a broker into one number.

A score answers one question: how willing should a producer be to send its next batch to this broker? 1.0
means "as its disk allows"; 0.0 means "never, while there is another". Several functions are asked at once,
each with a weight: willingness is the product of score ** weight. Levelling then sees a capacity of
U + willingness * (C - U): a broker that one is half willing to send to looks as if it had half its free
bytes, so it gets less, but not nothing, and what it already holds still counts.

Every function here is pure: time arrives in the context, so a test can replay any moment of an outage.

Invariants, checked in tests/property/test_scoring.py:
1. Willingness lies in [0, 1]; with all weights 0 it is 1.
2. Lowering one score never raises it.
3. An unreachable broker scores 0.
4. A function that raises, or returns something else than a number in [0, 1], is put aside by name for this
   decision; the others go on.

Read next: levelling.py, which turns goals and willingness into shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from router.min_max import FloatArray
from router.plugins import Weighted
from telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot

__all__ = [
    "WILLINGNESS_MIN",
    "ScoreContext",
    "ScoreFunction",
    "Willingness",
    "capacity_as_seen",
    "reachability",
    "willingness",
]

WILLINGNESS_MIN = 1e-3
"""Unwillingness makes free bytes smaller down to this part; to leave a broker out is not levelling's
business."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreContext:
    """What a score function may look at besides its broker.

    Attributes:
        snapshot: the cluster that the broker belongs to.
        topic: the topic to be written to.
        now_s: the time, seconds since 1970; later than `snapshot.taken_at_s` by the age of what is known.
    """

    snapshot: ClusterSnapshot
    topic: str
    now_s: float


ScoreFunction = Callable[[BrokerSnapshot, ScoreContext], float]


@dataclass(frozen=True, slots=True)
class Willingness:
    """The outcome of asking every score function about every broker.

    Attributes:
        by_broker: willingness in [0, 1] by broker id.
        put_aside: by the name of each function that was put aside, what was wrong with it.
    """

    by_broker: Mapping[int, float]
    put_aside: Mapping[str, str]


def reachability(broker: BrokerSnapshot, context: ScoreContext) -> float:  # noqa: ARG001
    """1 while the broker answers, 0 since it stopped."""
    return 1.0 if broker.is_reachable else 0.0


def willingness(
    brokers: Iterable[BrokerSnapshot], context: ScoreContext, functions: Sequence[Weighted[ScoreFunction]]
) -> Willingness:
    """How willing one should be to send to each broker: the product of score ** weight over the functions."""
    by_broker = {broker.broker_id: 1.0 for broker in brokers}
    put_aside: dict[str, str] = {}
    for name, weight, function in functions:
        scores: dict[int, float] = {}
        for broker_id in by_broker:
            score, fault = _ask(function, context.snapshot.brokers[broker_id], context)
            if fault is not None:
                put_aside[name] = f"{fault} for broker {broker_id}"
                break
            scores[broker_id] = score
        else:
            by_broker = {
                broker_id: value * scores[broker_id] ** weight for broker_id, value in by_broker.items()
            }
    return Willingness(by_broker, put_aside)


def capacity_as_seen(used_bytes: FloatArray, capacity_bytes: FloatArray, willing: FloatArray) -> FloatArray:
    """The capacities that levelling sees: U + willingness * (C - U), and C where more than C is used."""
    free = np.maximum(0.0, capacity_bytes - used_bytes)
    seen = np.minimum(capacity_bytes, used_bytes + np.maximum(willing, WILLINGNESS_MIN) * free)
    return np.asarray(np.maximum(seen, 1.0))


def _ask(function: ScoreFunction, broker: BrokerSnapshot, context: ScoreContext) -> tuple[float, str | None]:
    try:
        score = float(function(broker, context))
    except Exception as error:  # noqa: BLE001 - anybody's code; whatever it raises, producing goes on
        return 0.0, f"raised {type(error).__name__}: {error}"
    if not 0.0 <= score <= 1.0:  # NaN fails this too
        return 0.0, f"returned {score}, which is not in [0, 1],"
    return score, None
