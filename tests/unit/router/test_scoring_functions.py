from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evenload.router.plugins import Weighted
from evenload.router.score_functions import ingest_rate, latency, reachability
from evenload.router.scoring import ScoreContext, ScoreFunction, capacity_as_seen, willingness
from evenload.telemetry_collector.snapshot import BrokerSnapshot
from evenload.telemetry_collector.testing import make_snapshot

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


def scores(function: ScoreFunction, **by_broker: tuple[float | None, ...]) -> list[float]:
    """What a function gives brokers 1, 2, ... with these figures."""
    (values,) = {len(values) for values in by_broker.values()}
    made = make_snapshot([0] * values)
    brokers = {
        broker_id: replace(broker, **{name: figures[broker_id - 1] for name, figures in by_broker.items()})
        for broker_id, broker in made.brokers.items()
    }
    context = ScoreContext(snapshot=replace(made, brokers=brokers), topic="t", now_s=1001.0)
    return [function(broker, context) for broker in brokers.values()]


def test_a_broker_that_takes_in_twice_the_mean_scores_a_half() -> None:
    mib = float(1 << 20)
    assert scores(ingest_rate, ingest_bytes_per_s=(60 * mib, 30 * mib, 0.0)) == [0.5, 1.0, 1.0]
    assert scores(ingest_rate, ingest_bytes_per_s=(mib, 0.0, None)) == [1.0, 1.0, 1.0]


def test_a_slow_broker_scores_less_and_noise_nothing() -> None:
    assert scores(latency, latency_s=(0.002, 0.003, 0.2)) == [1.0, 1.0, pytest.approx(0.1)]
    assert scores(latency, latency_s=(0.001, 0.001, 0.019)) == [1.0, 1.0, 1.0]


def test_what_requests_take_counts_before_what_measuring_takes() -> None:
    got = scores(latency, latency_s=(0.001, 0.001, 9.0), request_latency_s=(0.4, 0.1, 0.1))
    assert got == [0.5, 1.0, 1.0]
    got = scores(latency, latency_s=(0.001, 0.1, 0.001), request_latency_s=(None, None, 5.0))
    assert got == [1.0, pytest.approx(0.2), 1.0]
