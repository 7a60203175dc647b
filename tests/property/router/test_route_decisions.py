"""What a router decides, for snapshots of every kind."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenload.router.config import RouterConfig
from evenload.router.forecasting.forecast import best_possible, forecast
from evenload.router.route import Route
from evenload.router.router import Router
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.testing import make_snapshot

MIB = 1 << 20
ROUTER = Router()
BOTH = Router(RouterConfig(goals={"disk_usage": 1.0, "dataset_spread": 1.0}))


@st.composite
def snapshots(draw: st.DrawFn, *, is_healthy: bool = False) -> ClusterSnapshot:
    """Up to 6 brokers and a topic "t" of up to 10 partitions, possibly with brokers nobody knows."""
    num_brokers = draw(st.integers(1, 6))
    ids = list(range(1, num_brokers + (1 if is_healthy else 2)))
    layout = []
    for _ in range(draw(st.integers(1, 10))):
        size = draw(st.integers(1 if is_healthy else 0, min(3, len(ids))))
        layout.append(tuple(draw(st.permutations(ids))[:size]))
    capacities = st.just(1000 * MIB) if is_healthy else st.sampled_from([None, 0, 500 * MIB, 1000 * MIB])
    used = st.integers(0, (900 if is_healthy else 1100) * MIB)
    unreachable = st.just(()) if is_healthy else st.lists(st.sampled_from(ids), max_size=2)
    leaderless = [] if is_healthy else draw(st.lists(st.integers(0, 9), max_size=3))
    return make_snapshot(
        draw(st.lists(used, min_size=num_brokers, max_size=num_brokers)),
        draw(st.lists(capacities, min_size=num_brokers, max_size=num_brokers)),
        topics={"t": layout},
        stored_bytes={("t", number): draw(st.integers(0, 10 * MIB)) for number in range(len(layout))},
        leaderless={("t", number) for number in leaderless},
        unreachable=draw(unreachable),
    )


remaining = st.one_of(st.none(), st.integers(0, 3000 * MIB))


def route(
    router: Router, snapshot: ClusterSnapshot, remaining_bytes: int | None, previous: Route | None = None
) -> Route:
    return router.route(
        snapshot,
        "t",
        num_partitions=len(snapshot.topics["t"]),
        remaining_bytes=remaining_bytes,
        now_s=snapshot.taken_at_s + 1,
        previous=previous,
    )


@settings(max_examples=100)
@given(snapshots(), remaining, st.sampled_from([ROUTER, BOTH]))
def test_shares_are_shares_for_any_snapshot(
    snapshot: ClusterSnapshot, remaining_bytes: int | None, router: Router
) -> None:
    decided = route(router, snapshot, remaining_bytes)
    assert math.fsum(decided.shares.values()) == pytest.approx(1.0)
    assert min(decided.shares.values()) > 0
    assert set(decided.shares) <= set(snapshot.topics["t"])
    assert decided.partition_for(1000) in decided.shares


@settings(max_examples=100)
@given(snapshots(), remaining)
def test_a_partition_without_a_leader_gets_nothing_while_another_has_one(
    snapshot: ClusterSnapshot, remaining_bytes: int | None
) -> None:
    layout = snapshot.topics["t"]
    led = {number for number, placed in layout.items() if placed.leader_id is not None}
    decided = route(ROUTER, snapshot, remaining_bytes)
    if led:
        assert set(decided.shares) <= led
        assert not decided.is_fallback
    else:
        assert decided.reason == "no_leader"


@settings(max_examples=100)
@given(snapshots(), remaining)
def test_a_broker_that_is_unreachable_or_too_full_gets_nothing_while_another_can_take_it(
    snapshot: ClusterSnapshot, remaining_bytes: int | None
) -> None:
    def can_take(broker_id: int) -> bool:
        broker = snapshot.brokers.get(broker_id)
        if broker is None or not broker.is_reachable:
            return False
        return broker.capacity_bytes is None or broker.used_bytes < 0.95 * broker.capacity_bytes

    layout = snapshot.topics["t"]
    good = {
        number
        for number, placed in layout.items()
        if placed.leader_id is not None and all(map(can_take, placed.replica_ids))
    }
    assume(good)
    assert set(route(ROUTER, snapshot, remaining_bytes).shares) <= good


@settings(max_examples=100)
@given(snapshots(is_healthy=True), st.integers(5 * MIB, 3000 * MIB))
def test_following_the_shares_to_the_end_reaches_the_best_that_is_possible(
    snapshot: ClusterSnapshot, remaining_bytes: int
) -> None:
    layout = snapshot.topics["t"]
    decided = route(ROUTER, snapshot, remaining_bytes)
    told = forecast(snapshot, layout, total_bytes=remaining_bytes, shares=decided.shares)
    best = best_possible(snapshot, layout, total_bytes=remaining_bytes)
    assert sorted(told.after.values()) == pytest.approx(sorted(best.values()), abs=1e-5)


@settings(max_examples=100)
@given(snapshots(is_healthy=True), remaining, st.lists(st.integers(0, 3 * MIB), min_size=6, max_size=6))
def test_shares_that_are_kept_leave_no_broker_further_off_than_the_band(
    snapshot: ClusterSnapshot, remaining_bytes: int | None, noise: list[int]
) -> None:
    layout = snapshot.topics["t"]
    before = route(ROUTER, snapshot, remaining_bytes)
    before.partition_for(1)
    later = make_snapshot(
        [b.used_bytes + more for b, more in zip(snapshot.brokers.values(), noise, strict=False)],
        1000 * MIB,
        topics={"t": [placed.replica_ids for placed in layout.values()]},
    )
    after = route(ROUTER, later, remaining_bytes, before)
    if after.shares == before.shares:
        told, fresh = (
            forecast(later, layout, total_bytes=remaining_bytes or 0, shares=each.shares).after
            for each in (after, route(ROUTER, later, remaining_bytes))
        )
        assert all(abs(told[i] - fresh[i]) <= 0.001 + 1e-6 for i in told)


@settings(max_examples=100)
@given(snapshots(), remaining)
def test_the_same_question_has_the_same_answer(
    snapshot: ClusterSnapshot, remaining_bytes: int | None
) -> None:
    one, two = (route(Router(), snapshot, remaining_bytes) for _ in range(2))
    assert one.shares == two.shares
    assert one.notes == two.notes
