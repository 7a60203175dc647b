from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.router.plugins import Weighted
from evenload.router.score_functions import ingest_rate, latency, reachability
from evenload.router.scoring import ScoreContext, ScoreFunction, capacity_as_seen, willingness
from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot
from evenload.telemetry_collector.testing import make_snapshot

scores = st.floats(0, 1)
weights = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))
opinions = st.lists(st.tuples(scores, weights), max_size=5)


def always(score: object) -> ScoreFunction:
    return lambda broker, context: score  # type: ignore[return-value]  # noqa: ARG005


def ask(*functions: Weighted[ScoreFunction], unreachable: frozenset[int] = frozenset()) -> dict[int, float]:
    snapshot = make_snapshot([10, 20], unreachable=unreachable)
    context = ScoreContext(snapshot=snapshot, topic="t", now_s=1001.0)
    return dict(willingness(snapshot.brokers.values(), context, functions).by_broker)


def willing(given_opinions: list[tuple[float, float]]) -> float:
    functions = [Weighted(f"f{i}", weight, always(score)) for i, (score, weight) in enumerate(given_opinions)]
    return ask(*functions)[1]


@given(opinions)
def test_willingness_lies_between_zero_and_one(given_opinions: list[tuple[float, float]]) -> None:
    assert 0.0 <= willing(given_opinions) <= 1.0


@given(opinions, st.integers(0, 4), scores)
def test_lowering_one_score_never_raises_willingness(
    given_opinions: list[tuple[float, float]], which: int, other: float
) -> None:
    lower = [
        (min(score, other) if place == which else score, weight)
        for place, (score, weight) in enumerate(given_opinions)
    ]
    assert willing(lower) <= willing(given_opinions)


def test_a_large_weight_is_no_veto() -> None:
    assert 0.0 < willing([(0.9, 1e6), (0.5, 1e6)]) < 1e-300
    assert willing([(0.0, 1.0), (0.5, 1e6)]) == 0.0


@given(opinions)
def test_without_weights_everyone_is_willing(given_opinions: list[tuple[float, float]]) -> None:
    assert willing([(score, 0.0) for score, _ in given_opinions]) == 1.0


@given(opinions)
def test_an_unreachable_broker_scores_zero_whatever_the_others_say(
    given_opinions: list[tuple[float, float]],
) -> None:
    others = [Weighted(f"f{i}", weight, always(score)) for i, (score, weight) in enumerate(given_opinions)]
    got = ask(Weighted("reachability", 1.0, reachability), *others, unreachable=frozenset({2}))
    assert got[2] == 0.0


@given(st.floats(allow_nan=True, allow_infinity=True), opinions)
def test_a_score_that_is_none_is_put_aside_and_the_others_go_on(
    score: float, given_opinions: list[tuple[float, float]]
) -> None:
    others = [Weighted(f"f{i}", weight, always(value)) for i, (value, weight) in enumerate(given_opinions)]
    snapshot = make_snapshot([10, 20])
    context = ScoreContext(snapshot=snapshot, topic="t", now_s=1001.0)
    brokers: list[BrokerSnapshot] = list(snapshot.brokers.values())
    asked = willingness(brokers, context, [Weighted("odd", 1.0, always(score)), *others])
    if math.isnan(score) or not 0 <= score <= 1:
        assert set(asked.put_aside) == {"odd"}
        assert asked.by_broker == willingness(brokers, context, others).by_broker
    else:
        assert not asked.put_aside


@given(st.floats(0, 1e12), st.floats(1, 1e12), scores, scores)
def test_the_less_willing_the_fuller_a_broker_looks(
    used: float, capacity: float, one: float, two: float
) -> None:
    low, high = (
        float(capacity_as_seen(np.array([used]), np.array([capacity]), np.array([value]))[0])
        for value in sorted((one, two))
    )
    assert low <= high
    assert high <= max(capacity, 1.0) * (1 + 1e-12)
    full = capacity_as_seen(np.array([used]), np.array([capacity]), np.array([1.0]))
    assert full[0] == pytest.approx(capacity)


BUILT_IN = (reachability, ingest_rate, latency)
figures = st.one_of(st.none(), st.floats(0, 1e12))


@st.composite
def measured(draw: st.DrawFn) -> ClusterSnapshot:
    """Up to 6 brokers of which anything may be known or not."""
    num_brokers = draw(st.integers(1, 6))
    snapshot = make_snapshot([0] * num_brokers, unreachable=draw(st.sets(st.integers(1, 6))))
    brokers = {
        broker_id: replace(
            broker,
            ingest_bytes_per_s=draw(figures),
            latency_s=draw(figures),
            request_latency_s=draw(figures),
        )
        for broker_id, broker in snapshot.brokers.items()
    }
    return replace(snapshot, brokers=brokers)


def score(function: ScoreFunction, snapshot: ClusterSnapshot, broker_id: int) -> float:
    context = ScoreContext(snapshot=snapshot, topic="t", now_s=1001.0)
    return function(snapshot.brokers[broker_id], context)


@given(measured(), st.sampled_from(BUILT_IN))
def test_built_in_scores_are_scores_and_veto_nobody_who_answers(
    snapshot: ClusterSnapshot, function: ScoreFunction
) -> None:
    for broker_id, broker in snapshot.brokers.items():
        assert 0.0 <= score(function, snapshot, broker_id) <= 1.0
        assert score(function, snapshot, broker_id) > 0.0 or not broker.is_reachable


@given(measured(), st.sampled_from(BUILT_IN), st.floats(1, 1e6))
def test_a_worse_measurement_never_raises_a_brokers_score(
    snapshot: ClusterSnapshot, function: ScoreFunction, factor: float
) -> None:
    broker = snapshot.brokers[1]
    worse = replace(
        broker,
        **{
            name: None if (value := getattr(broker, name)) is None else value * factor
            for name in ("ingest_bytes_per_s", "latency_s", "request_latency_s")
        },
    )
    after = replace(snapshot, brokers={**snapshot.brokers, 1: worse})
    assert score(function, after, 1) <= score(function, snapshot, 1) * (1 + 1e-9)


@given(st.integers(1, 6), figures, figures, st.sampled_from(BUILT_IN))
def test_brokers_that_measure_the_same_all_score_one(
    num_brokers: int, rate: float | None, took_s: float | None, function: ScoreFunction
) -> None:
    snapshot = make_snapshot([0] * num_brokers)
    same = {
        broker_id: replace(broker, ingest_bytes_per_s=rate, latency_s=took_s, request_latency_s=took_s)
        for broker_id, broker in snapshot.brokers.items()
    }
    assert score(function, replace(snapshot, brokers=same), 1) == pytest.approx(1.0)


@given(opinions, st.sampled_from(["cordoned", "drained"]))
def test_a_broker_that_is_cordoned_or_drained_has_zero_whatever_the_functions_say(
    given_opinions: list[tuple[float, float]], how: str
) -> None:
    functions = [Weighted(f"f{i}", weight, always(value)) for i, (value, weight) in enumerate(given_opinions)]
    snapshot = make_snapshot([10, 20])
    brokers = [replace(snapshot.brokers[1], is_cordoned=how == "cordoned"), snapshot.brokers[2]]
    context = ScoreContext(snapshot=snapshot, topic="t", now_s=1001.0)
    asked = willingness(brokers, context, functions, weight_by_broker={1: 0.0} if how == "drained" else {})
    assert asked.by_broker[1] == 0.0
    assert asked.vetoes[1] == how
