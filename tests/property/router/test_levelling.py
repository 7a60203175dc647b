from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.router.levelling import (
    FORECAST_MAX,
    Goal,
    GoalContext,
    ReplicaSet,
    dataset_spread,
    disk_usage,
    mix_goals,
)
from evenload.router.min_max import FloatArray
from evenload.router.plugins import Weighted

POINT = 0.01


@st.composite
def contexts(draw: st.DrawFn, *, replication: int | None = None) -> GoalContext:
    num_brokers = draw(st.integers(replication or 1, 6))
    broker_ids = tuple(range(1, num_brokers + 1))
    num_partitions = draw(st.integers(1, 12))
    grouped: dict[tuple[int, ...], list[int]] = {}
    for partition in range(num_partitions):
        copies = replication or draw(st.integers(1, min(3, num_brokers)))
        leader, *others = draw(st.permutations(broker_ids))[:copies]
        grouped.setdefault((leader, *sorted(others)), []).append(partition)
    numbers = st.lists(st.integers(0, 10**9), min_size=num_brokers, max_size=num_brokers)
    capacities = st.lists(st.sampled_from([10**9, 2 * 10**9]), min_size=num_brokers, max_size=num_brokers)
    capacity_bytes = np.array(draw(capacities), dtype=float)
    return GoalContext(
        broker_ids=broker_ids,
        used_bytes=np.array(draw(numbers), dtype=float),
        capacity_bytes=capacity_bytes,
        known_capacity_bytes=capacity_bytes,
        willing=np.ones(num_brokers),
        leader_bytes=np.array(draw(numbers), dtype=float),
        replica_sets=tuple(ReplicaSet(ids, tuple(partitions)) for ids, partitions in grouped.items()),
        horizon_bytes=float(draw(st.sampled_from([10**6, 10**8, 10**9, 10**10]))),
    )


def levels(context: GoalContext, shares: FloatArray) -> FloatArray:
    used = dict(zip(context.broker_ids, context.used_bytes.tolist(), strict=True))
    for each, share in zip(context.replica_sets, shares.tolist(), strict=True):
        for broker_id in each.replica_ids:
            used[broker_id] += share * context.horizon_bytes
    return np.array(list(used.values())) / context.capacity_bytes


@settings(max_examples=100)
@given(contexts(), st.sampled_from([disk_usage, dataset_spread]))
def test_a_goal_gives_shares(context: GoalContext, goal: Goal) -> None:
    shares = goal(context)
    assert shares.shape == (len(context.replica_sets),)
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1.0)


@settings(max_examples=100)
@given(contexts())
def test_partitions_with_the_same_replicas_get_the_same(context: GoalContext) -> None:
    each: dict[frozenset[int], list[float]] = {}
    for replica_set, share in zip(context.replica_sets, disk_usage(context), strict=True):
        brokers = frozenset(replica_set.replica_ids)
        each.setdefault(brokers, []).append(float(share) / len(replica_set.partitions))
    for shares in each.values():
        assert shares == pytest.approx([shares[0]] * len(shares), abs=1e-9)


@settings(max_examples=100)
@given(contexts(replication=1), st.integers(0, 5), st.integers(1, 10**9))
def test_more_bytes_on_a_broker_never_raise_what_is_sent_there(
    context: GoalContext, which: int, more_bytes: int
) -> None:
    place = which % len(context.broker_ids)
    fuller = context.used_bytes.copy()
    fuller[place] += more_bytes
    other = replace(context, used_bytes=fuller)
    is_there = np.array([each.leader_id == context.broker_ids[place] for each in context.replica_sets])
    assert disk_usage(other)[is_there].sum() <= disk_usage(context)[is_there].sum() + 1e-12


@settings(max_examples=50)
@given(contexts())
def test_dataset_spread_leaves_who_gets_something_at_one_line_of_led_bytes(context: GoalContext) -> None:
    context = replace(context, known_capacity_bytes=1000 * context.capacity_bytes)  # room for anything
    got = dict.fromkeys(context.broker_ids, 0.0)
    for replica_set, share in zip(context.replica_sets, dataset_spread(context), strict=True):
        got[replica_set.leader_id] += float(share) * context.horizon_bytes
    before = dict(zip(context.broker_ids, context.leader_bytes, strict=True))
    led = {each.leader_id for each in context.replica_sets}
    after = {broker_id: before[broker_id] + got[broker_id] for broker_id in led}
    line = max(after[broker_id] for broker_id in led if got[broker_id] > 0)
    assert min(after.values()) >= line * (1 - 1e-9) - 1e-3


@settings(max_examples=200)
@given(contexts())
def test_dataset_spread_gets_the_fullest_disk_no_fuller_than_disk_usage_would(context: GoalContext) -> None:
    highest = float(levels(context, disk_usage(context)).max())
    assert levels(context, dataset_spread(context)).max() <= max(highest, FORECAST_MAX) + POINT


@settings(max_examples=200)
@given(contexts(replication=1))
def test_dataset_spread_evens_what_is_led_among_those_whose_disks_have_room(context: GoalContext) -> None:
    shares = dataset_spread(context)
    led = dict(zip(context.broker_ids, context.leader_bytes.tolist(), strict=True))
    got = dict.fromkeys(context.broker_ids, 0.0)
    for each, share in zip(context.replica_sets, shares.tolist(), strict=True):
        got[each.leader_id] += share * context.horizon_bytes
    full = dict(zip(context.broker_ids, levels(context, shares).tolist(), strict=True))
    after = [
        led[broker_id] + got[broker_id]
        for broker_id in context.broker_ids
        if got[broker_id] > 0 and full[broker_id] < FORECAST_MAX - POINT
    ]
    assert max(after, default=0.0) - min(after, default=0.0) <= 1e-6 * context.horizon_bytes + 1e-3


@settings(max_examples=50)
@given(contexts(), st.floats(0.1, 10), st.floats(0.1, 10))
def test_goals_are_mixed_by_weight(context: GoalContext, disk: float, spread: float) -> None:
    goals = [Weighted("disk_usage", disk, disk_usage), Weighted("dataset_spread", spread, dataset_spread)]
    expected = (disk * disk_usage(context) + spread * dataset_spread(context)) / (disk + spread)
    mixed = mix_goals(goals, context)
    assert mixed.shares == pytest.approx(expected, abs=1e-9)
    assert mixed.names == {"disk_usage", "dataset_spread"}
