from __future__ import annotations

import dataclasses
import pickle

import pytest

from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot, TopicConfig, TopicPartition
from evenload.telemetry_collector.testing import make_snapshot


def test_the_spread_is_highest_minus_lowest_utilisation() -> None:
    assert make_snapshot([100, 400, 50], [1000, 1000, 100]).utilisation_spread == pytest.approx(0.4)


def test_a_broker_without_a_capacity_takes_no_part_in_the_spread() -> None:
    snapshot = make_snapshot([100, 400, 999_999], [1000, 1000, None])
    assert snapshot.brokers[3].utilisation is None
    assert snapshot.utilisation_spread == pytest.approx(0.3)


@pytest.mark.parametrize("capacities", [None, 0])
def test_the_spread_of_brokers_without_capacities_is_zero(capacities: int | None) -> None:
    assert make_snapshot([1, 2, 3], capacities).utilisation_spread == 0


def test_leader_bytes_count_one_copy_of_each_partition() -> None:
    snapshot = make_snapshot(
        [60, 60, 20],
        topics={"a": [(1, 2), (2, 1), (1, 3)], "b": [(3,)]},
        stored_bytes={("a", 0): 10, ("a", 1): 20, ("a", 2): 5, ("b", 0): 7},
    )
    assert snapshot.leader_bytes("a") == {1: 15, 2: 20, 3: 0}
    assert snapshot.leader_bytes("absent") == {1: 0, 2: 0, 3: 0}


def test_partitions_without_a_known_leader_count_nowhere() -> None:
    snapshot = make_snapshot(
        [0, 0], topics={"a": [(1,), (), (9,)]}, stored_bytes={("a", 0): 3}, leaderless={("a", 0)}
    )
    assert snapshot.topics["a"][0].leader_id is None
    assert snapshot.leader_bytes("a") == {1: 0, 2: 0}


def test_age_is_never_negative() -> None:
    snapshot = make_snapshot([0], taken_at_s=100.0)
    assert snapshot.age_s(103.5) == 3.5
    assert snapshot.age_s(90.0) == 0


def test_unreachable_brokers_say_so() -> None:
    snapshot = make_snapshot([0, 0], unreachable={2})
    assert snapshot.brokers[1].is_reachable
    assert not snapshot.brokers[2].is_reachable


def test_a_snapshot_survives_pickling() -> None:
    snapshot = make_snapshot([5, 6], topics={"a": [(1, 2)]}, stored_bytes={("a", 0): 3})
    copy = pickle.loads(pickle.dumps(snapshot))
    assert copy == snapshot
    assert copy.brokers[1].bytes_by_topic_partition[TopicPartition("a", 0)] == 3


def test_a_snapshot_cannot_be_changed() -> None:
    broker = make_snapshot([5]).brokers[1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        broker.used_bytes = 6  # type: ignore[misc]


def test_negative_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="broker 4: used_bytes is -1"):
        BrokerSnapshot(broker_id=4, used_bytes=-1)


def test_a_broker_filed_under_another_id_is_refused() -> None:
    with pytest.raises(ValueError, match="broker 4 is filed under 5"):
        ClusterSnapshot(cluster_id="c", taken_at_s=0, brokers={5: BrokerSnapshot(broker_id=4)}, topics={})


def test_a_partition_can_grow_until_its_fullest_replica_holds_what_retention_leaves() -> None:
    made = make_snapshot(
        [0, 0], topics={"t": [(1, 2), (2,), (1,)], "u": [(1,)]}, stored_bytes={("t", 1): 120}
    )
    sizes = {TopicPartition("t", 0): 40}
    brokers = {**made.brokers, 2: dataclasses.replace(made.brokers[2], bytes_by_topic_partition=sizes)}
    snapshot = dataclasses.replace(
        made, brokers=brokers, topic_configs={"t": TopicConfig(partition_max_bytes=100)}
    )
    assert [snapshot.growth_max_bytes("t", partition) for partition in range(3)] == [60, 100, 100]
    over = dataclasses.replace(made, topic_configs={"t": TopicConfig(partition_max_bytes=100)})
    assert over.growth_max_bytes("t", 1) == 0
    assert snapshot.growth_max_bytes("u", 0) is None
