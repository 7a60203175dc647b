from __future__ import annotations

import numpy as np
import pytest

from router.plugins import Weighted
from router.scoring import ScoreContext, capacity_as_seen, reachability, willingness
from telemetry_collector.snapshot import BrokerSnapshot
from telemetry_collector.testing import make_snapshot

SNAPSHOT = make_snapshot([10, 20, 30], 100, unreachable={3}, latency_s={1: 0.01, 2: 0.5})
CONTEXT = ScoreContext(snapshot=SNAPSHOT, topic="t", now_s=1001.0)


def slow_is_bad(broker: BrokerSnapshot, context: ScoreContext) -> float:  # noqa: ARG001
    return 1.0 if (broker.latency_s or 0.0) < 0.1 else 0.5


def hates_broker_two(broker: BrokerSnapshot, context: ScoreContext) -> float:  # noqa: ARG001
    if broker.broker_id == 2:
        raise KeyError("two")
    return 0.0


def test_willingness_is_the_product_of_scores_to_the_power_of_their_weights() -> None:
    functions = [Weighted("reachability", 1.0, reachability), Weighted("slow", 3.0, slow_is_bad)]
    asked = willingness(SNAPSHOT.brokers.values(), CONTEXT, functions)
    assert asked.by_broker == {1: 1.0, 2: 0.125, 3: 0.0}


def test_a_function_that_raises_for_one_broker_has_no_say_for_any() -> None:
    functions = [Weighted("hates", 1.0, hates_broker_two), Weighted("slow", 1.0, slow_is_bad)]
    asked = willingness(SNAPSHOT.brokers.values(), CONTEXT, functions)
    assert asked.by_broker == {1: 1.0, 2: 0.5, 3: 1.0}
    assert asked.put_aside == {"hates": "raised KeyError: 'two' for broker 2"}


def test_half_willing_looks_like_half_of_the_free_bytes() -> None:
    seen = capacity_as_seen(np.array([40.0, 40.0, 120.0]), np.full(3, 100.0), np.array([1.0, 0.5, 0.5]))
    assert seen == pytest.approx([100, 70, 100])


def test_a_broker_without_capacity_does_not_divide_by_zero() -> None:
    assert capacity_as_seen(np.zeros(1), np.zeros(1), np.zeros(1))[0] == 1.0
