"""What a route says about what it can't do."""

from __future__ import annotations

from evenload.router.config import RouterConfig
from evenload.router.router import Router
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.testing import make_snapshot


def notes(snapshot: ClusterSnapshot, remaining_bytes: int, goal: str = "disk_usage") -> tuple[str, ...]:
    return (
        Router(RouterConfig(goals={goal: 1.0}))
        .route(
            snapshot,
            "t",
            num_partitions=len(snapshot.topics["t"]),
            remaining_bytes=remaining_bytes,
            now_s=1001.0,
        )
        .notes
    )


def test_nothing_is_said_when_all_will_be_level() -> None:
    assert notes(make_snapshot([300, 100, 0], 1000, topics={"t": [(1,), (2,), (3,)]}), 900) == ()


def test_as_many_replicas_as_brokers_is_said_with_what_would_help() -> None:
    told = notes(make_snapshot([700, 100, 0], 1000, topics={"t": [(1, 2, 3), (2, 3, 1)]}), 100)
    assert told == (
        "every partition of 't' has a copy on all 3 brokers: routing can't change how full they get. "
        "Fewer replicas, or more brokers, would.",
    )


def test_an_emptier_broker_without_a_partition_is_named_with_what_would_help() -> None:
    told = notes(make_snapshot([300, 300, 0, 290], 1000, topics={"t": [(1,), (2,)]}), 400)
    assert told == (
        "brokers 3, 4 could take data but hold no partition of 't'. "
        "Adding partitions there, or moving replicas there, would help.",
    )


def test_a_fuller_broker_without_a_partition_is_not_missed() -> None:
    assert notes(make_snapshot([100, 100, 900], 1000, topics={"t": [(1,), (2,)]}), 400) == ()


def test_a_broker_too_full_to_be_lowered_is_named() -> None:
    told = notes(make_snapshot([700, 100, 100], 1000, topics={"t": [(1,), (2,), (3,)]}), 2**8)
    assert told == (
        "47% of utilisation will stay between broker 1 (70%) and broker 2 (23%) after the next 256 B: "
        "broker 1 can't be lowered, it gets nothing, but what it holds stays there. "
        "More data, or moving replicas off it, would help.",
    )


def test_who_wants_even_reading_hears_of_disks_that_get_in_its_way_and_of_no_others() -> None:
    topics = {"t": [(1,), (2,), (3,)]}
    assert notes(make_snapshot([600, 100, 100], 1000, topics=topics), 300, "dataset_spread") == ()
    assert notes(make_snapshot([750, 100, 100], 1000, topics=topics), 300, "dataset_spread") == (
        "broker 1 will have less of 't' than others, and readers wait for those: disks come first from "
        "80% on.",
    )


def test_brokers_that_share_replica_sets_are_named() -> None:
    told = notes(make_snapshot([0, 0, 0, 0], 4000, topics={"t": [(1, 2), (1, 3), (4, 1)]}), 3000)
    assert told == (
        "50% of utilisation will stay between broker 1 (75%) and broker 2 (25%) after the next 2.9 KiB: "
        "broker 1 can't be lowered, it shares replica sets with the others. "
        "Partitions with other replica sets would help.",
    )


def test_partitions_without_a_leader_are_named() -> None:
    layout = {"t": [(1,)] * 9}
    snapshot = make_snapshot([0], topics=layout, leaderless={("t", number) for number in range(1, 8)})
    assert notes(snapshot, 10) == (
        "partitions 1, 2, 3, 4, 5 and 2 more of 't' have no leader: "
        "nothing is sent there until one is elected.",
    )
