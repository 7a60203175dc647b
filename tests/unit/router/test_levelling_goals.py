from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from evenload.router.levelling import (
    Goal,
    GoalContext,
    ReplicaSet,
    dataset_spread,
    disk_usage,
    group_replica_sets,
    mix_goals,
)
from evenload.router.min_max import FloatArray
from evenload.router.plugins import Weighted
from evenload.telemetry_collector.testing import make_snapshot


def context_of(
    used: Sequence[float],
    sets: Sequence[Sequence[int]],
    *,
    capacity: Sequence[float] | None = None,
    led: Mapping[int, float] | None = None,
    horizon: float = 100.0,
    willing: Sequence[float] | None = None,
    is_known: bool = True,
) -> GoalContext:
    broker_ids = tuple(range(1, len(used) + 1))
    capacity_bytes = np.array(capacity or [100.0] * len(used), dtype=float)
    return GoalContext(
        broker_ids=broker_ids,
        used_bytes=np.array(used, dtype=float),
        capacity_bytes=capacity_bytes,
        known_capacity_bytes=capacity_bytes if is_known else np.full(len(used), np.inf),
        willing=np.array(willing or [1.0] * len(used)),
        leader_bytes=np.array([(led or {}).get(broker_id, 0.0) for broker_id in broker_ids]),
        replica_sets=tuple(ReplicaSet(tuple(ids), (number,)) for number, ids in enumerate(sets)),
        horizon_bytes=horizon,
    )


def utilisations(context: GoalContext, shares: FloatArray) -> list[float]:
    after = dict(zip(context.broker_ids, context.used_bytes, strict=True))
    for replica_set, share in zip(context.replica_sets, shares, strict=True):
        for broker_id in replica_set.replica_ids:
            after[broker_id] += share * context.horizon_bytes
    return [float(after[i] / c) for i, c in zip(context.broker_ids, context.capacity_bytes, strict=True)]


def test_capacities_two_two_one_get_shares_two_two_one() -> None:
    context = context_of([0, 0, 0], [(1,), (2,), (3,)], capacity=[200, 200, 100])
    assert disk_usage(context) == pytest.approx([0.4, 0.4, 0.2])


def test_a_broker_above_the_water_line_gets_nothing() -> None:
    context = context_of([70, 10, 20], [(1,), (2,), (3,)], horizon=60)
    assert utilisations(context, disk_usage(context)) == pytest.approx([0.7, 0.45, 0.45])


def test_every_copy_counts_not_only_the_leaders() -> None:
    # Broker 3 leads nothing but holds a copy of what broker 2 leads, and is the fullest.
    context = context_of([10, 10, 60], [(1, 2), (2, 3)], horizon=30)
    assert utilisations(context, disk_usage(context)) == pytest.approx([0.4, 0.4, 0.6])


def test_the_highest_as_low_as_can_be_is_not_enough() -> None:
    # Broker 1 is in every set, so the highest is the same whatever one does; the others can still be level.
    context = context_of([50, 0, 20, 40], [(1, 2), (1, 3), (1, 4)], horizon=40)
    assert utilisations(context, disk_usage(context)) == pytest.approx([0.9, 0.3, 0.3, 0.4])


def test_as_many_replicas_as_brokers_leave_nothing_to_choose() -> None:
    context = context_of([50, 0, 20], [(1, 2, 3), (2, 1, 3), (3, 1, 2)], horizon=30)
    assert disk_usage(context) == pytest.approx([1 / 3] * 3)


def test_shares_use_more_partitions_than_a_vertex_of_the_program_would() -> None:
    pairs = [(a, b) for a in range(1, 7) for b in range(1, 7) if a < b]
    context = context_of([10, 12, 14, 16, 18, 20], pairs, horizon=200)
    shares = disk_usage(context)
    assert utilisations(context, shares) == pytest.approx([(90 + 400) / 600] * 6)
    assert (shares > 0.01).sum() >= 14


def test_dataset_spread_evens_what_is_led_while_disks_have_room() -> None:
    context = context_of([50, 0, 0], [(1,), (2,), (3,)], led={1: 10.0, 2: 40.0, 3: 0.0}, horizon=50)
    assert dataset_spread(context) * 50 == pytest.approx([20, 0, 30])


def test_dataset_spread_fills_no_disk_above_four_fifths() -> None:
    context = context_of([70, 0, 50], [(1,), (2,), (3,)], horizon=50)
    assert dataset_spread(context) * 50 == pytest.approx([10, 20, 20], abs=0.2)


def test_dataset_spread_leaves_a_disk_alone_that_is_too_full_already() -> None:
    context = context_of([81, 0, 40], [(1,), (2,), (3,)], horizon=30)
    assert dataset_spread(context).tolist() == [0, 0.5, 0.5]


def test_dataset_spread_counts_every_copy_on_a_disk() -> None:
    sets = [(1, 2), (2, 3), (3, 2)]
    context = context_of([75, 20, 20], sets, horizon=20)
    assert dataset_spread(context) * 20 == pytest.approx([5, 7.5, 7.5], abs=0.2)
    assert dataset_spread(context_of([20, 75, 20], sets, horizon=20)) * 20 == pytest.approx(
        [20 / 3] * 3
    )  # a copy of all is there, whatever one does


def test_dataset_spread_knows_no_disk_too_full_of_which_nobody_knows_the_capacity() -> None:
    context = context_of([90, 0, 0], [(1,), (2,), (3,)], horizon=60, is_known=False)
    assert dataset_spread(context) == pytest.approx([1 / 3] * 3)


def test_dataset_spread_gives_half_to_whom_one_is_half_as_willing_to_send_to() -> None:
    context = context_of([0, 0, 0], [(1,), (2,), (3,)], willing=[0.5, 1, 1])
    assert dataset_spread(context) == pytest.approx([0.2, 0.4, 0.4])


def test_dataset_spread_takes_a_brokers_volumes_for_one_broker() -> None:
    first, second = 1 | 1 << 32, 1 | 2 << 32
    context = replace(
        context_of([0, 0, 0], [(1,), (2,), (3,)]),
        broker_ids=(2, first, second),
        leader_bytes=np.array([30.0, 10.0, 20.0]),
        replica_sets=tuple(ReplicaSet((id_,), (id_,)) for id_ in (2, first, second)),
    )
    assert dataset_spread(context) == pytest.approx([0.5, 0.25, 0.25])


def test_dataset_spread_levels_disks_where_all_get_too_full() -> None:
    context = context_of([90, 60], [(1,), (2,)], horizon=50)
    assert utilisations(context, dataset_spread(context)) == pytest.approx([1.0, 1.0])


def test_dataset_spread_divides_a_leaders_bytes_evenly_among_its_partitions() -> None:
    context = context_of([0, 0, 0], [(1, 2), (1, 3), (2, 1)], horizon=60)
    assert dataset_spread(context) == pytest.approx([0.25, 0.25, 0.5])


def test_replica_sets_are_told_apart_by_leader_and_brokers() -> None:
    snapshot = make_snapshot([0] * 3, topics={"t": [(1, 2, 3), (2, 1, 3), (1, 3, 2), (), (1, 2)]})
    assert group_replica_sets(snapshot.topics["t"]) == (
        ReplicaSet((1, 2, 3), (0, 2)),
        ReplicaSet((2, 1, 3), (1,)),
        ReplicaSet((1, 2), (4,)),
    )


def test_a_leader_that_is_not_the_preferred_one_comes_first() -> None:
    snapshot = make_snapshot([0] * 3, topics={"t": [(1, 2, 3)]}, leaderless={("t", 0)})
    assert group_replica_sets(snapshot.topics["t"]) == ()


def raises(_: GoalContext) -> FloatArray:
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        (raises, "RuntimeError: no idea"),
        (lambda _: np.array([np.nan, 1.0]), "finite"),
        (lambda _: np.array([-1.0, 2.0]), "at least 0"),
        (lambda _: np.zeros(2), "not all 0"),
        (lambda _: np.ones(3), "has shape"),
        (lambda _: "many", "could not convert"),
    ],
)
def test_a_goal_that_fails_is_put_aside_and_the_others_go_on(goal: Goal, said: str) -> None:
    context = context_of([0, 0], [(1,), (2,)])
    good: Callable[[GoalContext], FloatArray] = disk_usage
    mixed = mix_goals([Weighted("bad", 3.0, goal), Weighted("good", 1.0, good)], context)
    assert mixed.shares == pytest.approx([0.5, 0.5])
    assert mixed.names == {"good"}
    assert said in mixed.put_aside["bad"]


def test_when_every_goal_fails_there_are_no_shares() -> None:
    mixed = mix_goals([Weighted("bad", 1.0, raises)], context_of([0, 0], [(1,), (2,)]))
    assert not len(mixed.shares)
    assert not mixed.names
