"""Turn what is known about a broker into one number.

A score answers one question: how willing should a producer be to send its next batch to this broker? 1.0
means "as its disk allows"; 0.0 means "never, while there is another". Several functions are asked at once,
each with a weight: willingness is the product of score ** weight. Levelling then sees a capacity of
U + willingness * (C - U): a broker that one is half willing to send to looks as if it had half its free
bytes, so it gets less, but not nothing, and what it already holds still counts.

What an operator says comes first: a broker that is cordoned, or drained by a weight of 0, is not sent to
while there is another, whatever the functions think of it.

Score functions are pure: time arrives in the context, so a test can replay any moment of an outage.

Invariants, checked in tests/property/router/test_scoring.py:
1. Willingness lies in [0, 1]; with all weights 0 it is 1.
2. Lowering one score never raises it.
3. A broker that is cordoned or drained has 0.
4. A function that raises, takes too long, or returns something else than a number in [0, 1], is put aside by
   name for this decision; the others go on.

Read next: score_functions.py for those that are built in; levelling.py, which turns goals and willingness
into shares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from evenload.router.min_max import FloatArray
from evenload.router.patience import OverdueError, Patience
from evenload.router.plugins import Weighted
from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot

__all__ = [
    "WILLINGNESS_MIN",
    "ScoreContext",
    "ScoreFunction",
    "Willingness",
    "capacity_as_seen",
    "willingness",
]

WILLINGNESS_MIN = 1e-3
"""Unwillingness makes free bytes smaller down to this part; to leave a broker out is not levelling's
business."""


_LEAST = sys.float_info.min


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
        scores: by the name of each function that had a say, its score for each broker.
        vetoes: by the id of each broker with a willingness of 0, why.
        put_aside: by the name of each function that was put aside, what was wrong with it.
    """

    by_broker: Mapping[int, float]
    scores: Mapping[str, Mapping[int, float]]
    vetoes: Mapping[int, str]
    put_aside: Mapping[str, str]


def willingness(
    brokers: Iterable[BrokerSnapshot],
    context: ScoreContext,
    functions: Sequence[Weighted[ScoreFunction]],
    *,
    weight_by_broker: Mapping[int, float] | None = None,
    patience: Patience | None = None,
) -> Willingness:
    """How willing one should be to send to each broker: the product of score ** weight over the functions.

    Args:
        brokers: whom to ask about; in the context's snapshot.
        context: what else functions may look at.
        functions: those in force.
        weight_by_broker: a factor from 0 to 1 by broker id, which an operator gave; 1 where absent.
        patience: how long a function of somebody else's may take over all brokers; None: as long as it wants.
    """
    asked = list(brokers)
    patience = patience or Patience()
    weights = weight_by_broker or {}
    by_broker = {
        broker.broker_id: 0.0 if broker.is_cordoned else weights.get(broker.broker_id, 1.0)
        for broker in asked
    }
    vetoes = {
        broker.broker_id: "cordoned" if broker.is_cordoned else "drained"
        for broker in asked
        if not by_broker[broker.broker_id]
    }
    scores: dict[str, Mapping[int, float]] = {}
    put_aside: dict[str, str] = {}
    for name, weight, function in functions:
        try:
            of_brokers = patience.ask(function, partial(_ask_about_all, asked, context, function))
        except (_FaultError, OverdueError) as fault:
            put_aside[name] = str(fault)
            continue
        scores[name] = of_brokers
        for broker in asked:
            by_broker[broker.broker_id] = _times(
                by_broker[broker.broker_id], of_brokers[broker.broker_id], weight
            )
            if not by_broker[broker.broker_id]:
                reason = f"{name} scored 0" if broker.is_reachable else "unreachable"
                vetoes.setdefault(broker.broker_id, reason)
    return Willingness(by_broker, scores, vetoes, put_aside)


def _times(willing: float, score: float, weight: float) -> float:
    """willing * score ** weight; 0 only where one of them is, not where it is too small for a number."""
    product = float(willing * score**weight)
    return max(product, _LEAST) if willing and score else product


def capacity_as_seen(used_bytes: FloatArray, capacity_bytes: FloatArray, willing: FloatArray) -> FloatArray:
    """The capacities that levelling sees: U + willingness * (C - U), and C where more than C is used."""
    free = np.maximum(0.0, capacity_bytes - used_bytes)
    seen = np.minimum(capacity_bytes, used_bytes + np.maximum(willing, WILLINGNESS_MIN) * free)
    return np.asarray(np.maximum(seen, 1.0))


class _FaultError(Exception):
    """A function did what none may do; its text says what, as a predicate."""


def _ask_about_all(
    brokers: Sequence[BrokerSnapshot],
    context: ScoreContext,
    function: ScoreFunction,
    check_time: Callable[[str], None],
) -> dict[int, float]:
    scores: dict[int, float] = {}
    for broker in brokers:
        scores[broker.broker_id] = _ask(function, broker, context)
        check_time(f" for {len(scores)} of {len(brokers)} brokers")
    return scores


def _ask(function: ScoreFunction, broker: BrokerSnapshot, context: ScoreContext) -> float:
    try:
        score = float(function(broker, context))
    except Exception as error:  # anybody's code; whatever it raises, producing goes on
        raise _FaultError(f"raised {type(error).__name__}: {error} for broker {broker.broker_id}") from error
    if not 0.0 <= score <= 1.0:  # NaN fails this too
        raise _FaultError(f"returned {score}, which is not in [0, 1], for broker {broker.broker_id}")
    return score
