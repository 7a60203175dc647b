from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenload.router.brokers import BrokerTable
from evenload.router.levelling import GoalContext, ReplicaSet, dataset_spread, disk_usage
from evenload.router.min_max import FloatArray
from evenload.router.safe_shares import (
    LEADER_MAX,
    PARTITION_MAX,
    PARTITION_MIN,
    Ask,
    even_shares,
    safe_shares,
)

CAPACITY = 1000.0
ROUNDING = 1e-6


@st.composite
def contexts(draw: st.DrawFn, *, replication: int | None = None) -> GoalContext:
    """Up to 6 brokers of 1000 bytes, up to 12 partitions, and from 1 to 600 bytes to come."""
    num_brokers = draw(st.integers(replication or 1, 6))
    broker_ids = tuple(range(1, num_brokers + 1))
    grouped: dict[tuple[int, ...], list[int]] = {}
    for partition in range(draw(st.integers(1, 12))):
        leader, *others = draw(st.permutations(broker_ids))[: replication or draw(st.integers(1, 3))]
        grouped.setdefault((leader, *sorted(others)), []).append(partition)
    used = draw(st.lists(st.integers(0, 949), min_size=num_brokers, max_size=num_brokers))
    return GoalContext(
        broker_ids=broker_ids,
        used_bytes=np.array(used, dtype=float),
        capacity_bytes=np.full(num_brokers, CAPACITY),
        known_capacity_bytes=np.full(num_brokers, CAPACITY),
        willing=np.ones(num_brokers),
        leader_bytes=np.zeros(num_brokers),
        replica_sets=tuple(ReplicaSet(ids, tuple(numbers)) for ids, numbers in grouped.items()),
        horizon_bytes=float(draw(st.integers(1, 600))),
    )


def table_of(context: GoalContext) -> BrokerTable:
    no = np.zeros(len(context.broker_ids), dtype=bool)
    return BrokerTable(
        broker_ids=context.broker_ids,
        used_bytes=context.used_bytes,
        announced_bytes=np.zeros(len(no)),
        capacity_bytes=context.capacity_bytes,
        is_assumed=no,
        is_known=~no,
        is_full=no,
    )


def safe(context: GoalContext, goal: Ask = disk_usage, *, limit: float = 1e9) -> FloatArray:
    return safe_shares(goal(context), context, table_of(context), goal, utilisation_limit=limit)


def led(context: GoalContext, shares: FloatArray) -> dict[int, float]:
    total = dict.fromkeys(context.broker_ids, 0.0)
    for each, share in zip(context.replica_sets, shares.tolist(), strict=True):
        total[each.leader_id] += share
    return total


def levels(context: GoalContext, shares: FloatArray) -> FloatArray:
    sets = [each.replica_ids for each in context.replica_sets]
    table = table_of(context)
    return table.utilisation(table.added_bytes(sets, shares * context.horizon_bytes))


@settings(max_examples=200)
@given(contexts(), st.sampled_from([disk_usage, dataset_spread]))
def test_no_leader_and_no_partition_is_out_of_its_bounds(context: GoalContext, goal: Ask) -> None:
    shares, even = safe(context, goal), even_shares(context)
    assert shares.sum() == pytest.approx(1.0)
    assert (shares <= PARTITION_MAX * even + ROUNDING).all()
    assert (shares >= PARTITION_MIN * even - ROUNDING).all()
    even_led = led(context, even)
    for broker_id, share in led(context, shares).items():
        assert share <= LEADER_MAX * even_led[broker_id] + ROUNDING


@settings(max_examples=200)
@given(contexts(), st.sampled_from([0.8, 0.95]))
def test_bounds_overfill_no_disk_that_would_have_room_without_them(
    context: GoalContext, limit: float
) -> None:
    wanted = disk_usage(context)
    is_over = (
        levels(context, safe(context, limit=limit)) > np.maximum(levels(context, wanted), limit) + ROUNDING
    )
    assert not is_over.any()


@settings(max_examples=100)
@given(contexts())
def test_shares_that_are_within_bounds_stay_as_they_are(context: GoalContext) -> None:
    def even(asked: GoalContext) -> FloatArray:
        return even_shares(asked)

    assert safe(context, even).tolist() == even_shares(context).tolist()


@settings(max_examples=100)
@given(contexts(replication=1))
def test_without_a_broker_in_common_levelling_within_bounds_is_the_best_there_is(
    context: GoalContext,
) -> None:
    shares, even = safe(context), even_shares(context)
    least = PARTITION_MIN * even
    most = np.minimum(PARTITION_MAX, LEADER_MAX) * even
    ends = dict(zip(context.broker_ids, levels(context, shares).tolist(), strict=True))
    own = np.array([ends[each.leader_id] for each in context.replica_sets])
    can_give, can_take = shares > least + ROUNDING, shares < most - ROUNDING
    assume(can_give.any() and can_take.any())
    # Otherwise a little from the fullest of those that can give, to the emptiest that can take, were better.
    assert own[can_give].max() <= own[can_take].min() + 1e-5


@settings(max_examples=50)
@given(contexts())
def test_goals_that_fail_on_the_way_leave_shares_within_bounds(context: GoalContext) -> None:
    def fails_later(_: GoalContext) -> FloatArray:
        return np.zeros(0)

    wanted = disk_usage(context)
    shares = safe_shares(wanted, context, table_of(context), fails_later, utilisation_limit=1e9)
    even = even_shares(context)
    assert shares.sum() == pytest.approx(1.0)
    assert (shares <= PARTITION_MAX * even + ROUNDING).all()
    assert (shares >= PARTITION_MIN * even - ROUNDING).all()


@settings(max_examples=50)
@given(contexts(), st.integers(2, 5))
def test_shares_do_not_depend_on_the_unit_of_bytes(context: GoalContext, factor: int) -> None:
    larger = replace(
        context,
        used_bytes=factor * context.used_bytes,
        capacity_bytes=factor * context.capacity_bytes,
        horizon_bytes=factor * context.horizon_bytes,
    )
    before, after = levels(context, safe(context)), levels(larger, safe(larger))
    assert np.sort(after) == pytest.approx(np.sort(before), abs=1e-4)
