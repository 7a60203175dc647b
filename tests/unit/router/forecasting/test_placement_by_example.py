from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from evenload.router.errors import NotEnoughBrokersError
from evenload.router.forecasting.placement import place_partitions
from evenload.telemetry_collector.testing import make_snapshot


def leaders(placed: list[tuple[int, ...]]) -> dict[int, int]:
    return dict(Counter(replica_ids[0] for replica_ids in placed))


def test_leaders_are_in_proportion_to_what_each_broker_should_get() -> None:
    snapshot = make_snapshot([0, 0, 0], [2000, 2000, 1000])
    placed = place_partitions(snapshot, num_partitions=20, replication=1, total_bytes=2500)
    assert leaders(placed) == {1: 8, 2: 8, 3: 4}


def test_without_a_size_they_are_in_proportion_to_free_bytes() -> None:
    snapshot = make_snapshot([900, 500, 0], 1000)
    assert leaders(place_partitions(snapshot, num_partitions=16, replication=1)) == {1: 1, 2: 5, 3: 10}


def test_a_full_broker_leads_one_partition_so_that_routing_can_reach_it_later() -> None:
    snapshot = make_snapshot([1200, 0, 0], 1000)
    assert leaders(place_partitions(snapshot, num_partitions=9, replication=1, total_bytes=100)) == {
        1: 1,
        2: 4,
        3: 4,
    }


def test_consecutive_partitions_have_different_leaders() -> None:
    placed = place_partitions(make_snapshot([0] * 3, 1000), num_partitions=9, replication=1)
    assert [replica_ids[0] for replica_ids in placed] == [1, 2, 3] * 3


def test_partners_are_mixed() -> None:
    placed = place_partitions(make_snapshot([0] * 4, 1000), num_partitions=12, replication=2)
    assert len({frozenset(replica_ids) for replica_ids in placed}) == 6


def test_copies_are_on_different_racks() -> None:
    snapshot = make_snapshot([0] * 6, 1000, racks=["a", "a", "b", "b", "c", "c"])
    rack = {broker_id: broker.rack for broker_id, broker in snapshot.brokers.items()}
    for replica_ids in place_partitions(snapshot, num_partitions=24, replication=3):
        assert {rack[broker_id] for broker_id in replica_ids} == {"a", "b", "c"}


def test_too_few_brokers_is_an_error_with_the_facts() -> None:
    snapshot = make_snapshot([0] * 3, 1000, unreachable={2})
    with pytest.raises(NotEnoughBrokersError, match=r"only 2 can be used \(1, 3\)") as caught:
        place_partitions(snapshot, num_partitions=3, replication=3)
    assert caught.value.replication == 3
    assert caught.value.broker_ids == (1, 3)


@pytest.mark.parametrize("wrong", [{"num_partitions": 0}, {"replication": 0}, {"total_bytes": -1}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="can't place"):
        place_partitions(
            make_snapshot([0], 1000),
            **{"num_partitions": 1, "replication": 1, **wrong},  # type: ignore[arg-type]
        )


def test_nothing_is_placed_on_brokers_that_are_cordoned_or_drained() -> None:
    snapshot = make_snapshot([0] * 4, 1000)
    cordoned = replace(snapshot.brokers[2], is_cordoned=True)
    snapshot = replace(snapshot, brokers={**snapshot.brokers, 2: cordoned})
    placed = place_partitions(snapshot, num_partitions=8, replication=2, avoid={3})
    assert {broker_id for replica_ids in placed for broker_id in replica_ids} == {1, 4}


def test_a_drained_broker_is_used_where_there_are_not_enough_others() -> None:
    placed = place_partitions(make_snapshot([0] * 3, 1000), num_partitions=3, replication=3, avoid={2})
    assert all(set(replica_ids) == {1, 2, 3} for replica_ids in placed)
