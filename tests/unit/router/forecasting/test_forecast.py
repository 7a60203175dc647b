from __future__ import annotations

import pytest

from evenload.router.forecasting.forecast import best_possible, forecast, planned_layout
from evenload.telemetry_collector.testing import make_snapshot


def test_a_forecast_counts_every_copy() -> None:
    snapshot = make_snapshot([100, 0, 0], 1000, topics={"t": [(1, 2), (3,)]})
    told = forecast(snapshot, snapshot.topics["t"], total_bytes=400, shares={0: 0.25, 1: 0.75})
    assert told.now == pytest.approx({1: 0.1, 2: 0, 3: 0})
    assert told.after == pytest.approx({1: 0.2, 2: 0.1, 3: 0.3})


def test_without_shares_they_are_even_over_partitions_with_a_leader() -> None:
    snapshot = make_snapshot([0, 0], 1000, topics={"t": [(1,), (2,), (1,)]}, leaderless={("t", 2)})
    assert forecast(snapshot, snapshot.topics["t"], total_bytes=200).after == pytest.approx({1: 0.1, 2: 0.1})


def test_the_best_for_these_replica_sets_and_for_any_are_told_apart() -> None:
    snapshot = make_snapshot([600, 0, 0], 1000, topics={"t": [(1,), (2,)]})
    told = forecast(snapshot, snapshot.topics["t"], total_bytes=300)
    assert told.after == pytest.approx({1: 0.75, 2: 0.15, 3: 0})
    assert told.best == pytest.approx({1: 0.6, 2: 0.3, 3: 0})
    assert told.anywhere == pytest.approx({1: 0.6, 2: 0.15, 3: 0.15})


def test_two_copies_of_a_partition_are_never_on_one_broker() -> None:
    snapshot = make_snapshot([900, 900, 0], 1000)
    told = forecast(snapshot, planned_layout([(1, 2), (3, 1)]), total_bytes=100)
    assert told.anywhere == pytest.approx({1: 0.95, 2: 0.95, 3: 0.1})


def test_the_best_possible_is_the_lexicographic_one() -> None:
    snapshot = make_snapshot([50, 0, 20, 40], 100)
    layout = planned_layout([(1, 2), (1, 3), (1, 4)])
    assert best_possible(snapshot, layout, total_bytes=40) == pytest.approx({1: 0.9, 2: 0.3, 3: 0.3, 4: 0.4})


def test_nothing_to_come_changes_nothing() -> None:
    snapshot = make_snapshot([50, 10], 100, topics={"t": [(1,), (2,)]})
    told = forecast(snapshot, snapshot.topics["t"], total_bytes=0)
    assert told.now == told.after == told.best == told.anywhere


def test_what_cannot_be_forecast_is_refused() -> None:
    snapshot = make_snapshot([0], 100, topics={"t": [()]})
    with pytest.raises(ValueError, match="a partition that has a leader"):
        forecast(snapshot, snapshot.topics["t"], total_bytes=1)
    with pytest.raises(ValueError, match="total_bytes is -1"):
        forecast(snapshot, planned_layout([(1,)]), total_bytes=-1)
