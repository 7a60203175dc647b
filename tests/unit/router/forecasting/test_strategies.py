"""What each way of choosing partitions leads to, and what is said about it."""

from __future__ import annotations

import dataclasses

import pytest

from evenload.router.config import RouterConfig
from evenload.router.forecasting.advice import advise_load
from evenload.router.forecasting.forecast import forecast, planned_layout
from evenload.router.forecasting.strategies import (
    StrategyForecast,
    by_chance,
    by_shares,
    kafka_placed,
    parts_of,
    routed,
    with_topic,
)
from evenload.router.moves.planning import settled
from evenload.telemetry_collector.snapshot import ClusterSnapshot, TopicPartition
from evenload.telemetry_collector.testing import make_snapshot

GIB = 1 << 30


def balanced(snapshot: ClusterSnapshot, topic: str, total_bytes: int) -> StrategyForecast:
    shares = routed(snapshot, topic, total_bytes=total_bytes, config=RouterConfig()).shares
    return by_shares(snapshot, snapshot.topics[topic], shares, total_bytes=total_bytes, note="")


def advice(snapshot: ClusterSnapshot, total_bytes: int, **others: StrategyForecast) -> str:
    strategies = {"balanced": balanced(snapshot, "t", total_bytes), **others}
    told = forecast(snapshot, snapshot.topics["t"], total_bytes=total_bytes)
    return " ".join(
        advise_load(snapshot, "t", strategies, told, total_bytes=total_bytes, weight_by_broker={})
    )


def test_round_robin_gives_each_partition_the_same() -> None:
    snapshot = make_snapshot([0, 0], 1000, topics={"t": [(1, 2), (1,), (2,), (1,)]}, leaderless={("t", 3)})
    told = by_chance(snapshot, parts_of(snapshot.topics["t"]), total_bytes=300, note="")
    assert told.expected == pytest.approx({1: 0.2, 2: 0.2})
    assert told.low == told.expected == told.high


def test_more_draws_come_out_more_even() -> None:
    snapshot = make_snapshot([0, 0], 100 * GIB, topics={"t": [(1,), (2,)]})
    parts = parts_of(snapshot.topics["t"])

    def off(draws: int) -> float:
        told = by_chance(snapshot, parts, total_bytes=GIB * draws, draw_bytes=GIB, note="")
        return (told.high[1] - told.expected[1]) / told.expected[1]

    assert off(9) > off(25) > off(100)
    assert off(100) == pytest.approx(0.2)  # two deviations of a fair coin: 40 to 60 of 100


def test_kafka_places_all_but_evenly_and_nothing_where_nothing_may_go() -> None:
    snapshot = make_snapshot([0] * 4, 1000, unreachable={4})
    assert kafka_placed(snapshot, num_partitions=6, replication=2) == {
        broker_id: pytest.approx((2 / 3, 2 / 3, 2 / 3)) for broker_id in (1, 2, 3)
    }
    assert kafka_placed(snapshot, num_partitions=4, replication=1)[1] == pytest.approx((1 / 3, 0.25, 0.5))


def test_kafka_goes_round_racks_so_that_small_ones_get_more_for_each_broker() -> None:
    snapshot = make_snapshot([0] * 3, 1000, racks=["a", "b", "b"])
    parts = kafka_placed(snapshot, num_partitions=40, replication=1)
    assert [parts[broker_id][0] for broker_id in (1, 2, 3)] == pytest.approx([0.5, 0.25, 0.25])


def test_a_planned_topic_is_routed_like_one_that_exists() -> None:
    snapshot = with_topic(make_snapshot([600, 0], 1000), "t", planned_layout([(1,), (2,)]))
    assert balanced(snapshot, "t", 400).expected == pytest.approx({1: 0.6, 2: 0.4})


def test_advice_says_what_more_partitions_would_give() -> None:
    snapshot = make_snapshot([0, 0, 0], 1000, topics={"t": [(1,), (2,)]})
    assert "3 more partitions, placed by capacity, would allow a spread of 0 points" in advice(snapshot, 300)


def test_advice_says_what_moving_first_would_give() -> None:
    stored = {("old", number): 100 for number in range(8)}
    snapshot = make_snapshot(
        [800, 0], 1000, topics={"t": [(1,), (2,)], "old": [(1,)] * 8}, stored_bytes=stored
    )
    assert "(evenload balance) would allow a spread of 0 points, against 70" in advice(snapshot, 100)


def test_advice_says_when_level_disks_and_even_reading_conflict() -> None:
    snapshot = make_snapshot([500, 0], 1000, topics={"t": [(1,), (2,)]})
    assert (
        "level disks and even reading conflict here: by the goal dataset_spread no broker leads more than "
        "50% of the load, and the spread is 50 points; by disk_usage broker 2 leads 100%, and it is 0 points."
    ) in advice(snapshot, 500)
    assert "conflict" not in advice(make_snapshot([0, 0], 1000, topics={"t": [(1,), (2,)]}), 500)


def test_advice_says_what_keys_cost_and_what_does_not_fit() -> None:
    snapshot = make_snapshot([0, 0], 1000, topics={"t": [(1,), (2,)]})
    keyed = by_shares(snapshot, snapshot.topics["t"], {0: 0.9, 1: 0.1}, total_bytes=1100, note="")
    said = advice(snapshot, 1100, keyed=keyed)
    assert "cost 88 points of balance" in said
    assert "keyed: broker 1 would be 99% full" in said


def test_what_was_moved_away_but_not_deleted_yet_does_not_count() -> None:
    stored = {("t", 0): 100, ("t", 1): 100}
    before = make_snapshot([250, 50], 1000, topics={"t": [(1,), (1,)]}, stored_bytes=stored)
    source, target = before.brokers[1], before.brokers[2]
    at = TopicPartition("t", 1)
    after = dataclasses.replace(
        before,
        brokers={
            1: dataclasses.replace(source, bytes_by_topic_partition={TopicPartition("t", 0): 100}),
            2: dataclasses.replace(target, used_bytes=150, bytes_by_topic_partition={at: 100}),
        },
    )
    used = {broker_id: broker.used_bytes for broker_id, broker in settled(before, after).brokers.items()}
    assert used == {1: 150, 2: 150}


def test_where_no_broker_answers_there_is_still_a_forecast() -> None:
    snapshot = make_snapshot([900, 0], 1000, topics={"t": [(1,)]})
    gone = {
        broker_id: dataclasses.replace(broker, unreachable_since_s=1.0)
        for broker_id, broker in snapshot.brokers.items()
    }
    assert "more partitions" not in advice(dataclasses.replace(snapshot, brokers=gone), 200)
