"""Move plans over random clusters: always feasible, never worse, and not far from the fewest bytes."""

from __future__ import annotations

import dataclasses
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.router.moves.plan import Move, MovePlan
from evenload.router.moves.planning import plan_moves
from evenload.telemetry_collector.snapshot import ClusterSnapshot, TopicPartition
from evenload.telemetry_collector.testing import make_snapshot

LIMIT = 0.95
GOAL = 0.005
MIB = 1 << 20


@st.composite
def clusters(draw: st.DrawFn, *, small_partitions: bool = False) -> ClusterSnapshot:
    """Brokers with racks or none, of different sizes; topics of 1 to 3 copies, skewed; some out of sync."""
    num_brokers = draw(st.integers(2, 8))
    ids = st.integers(1, num_brokers)
    has_racks = draw(st.booleans())
    racks = draw(
        st.lists(st.sampled_from(["a", "b", "c"]), min_size=num_brokers, max_size=num_brokers)
        if has_racks
        else st.just([None] * num_brokers)
    )
    topics: dict[str, list[list[int]]] = {}
    stored: dict[tuple[str, int], int] = {}
    for topic in draw(st.sampled_from([["t"], ["t", "u"], ["t", "u", "__consumer_offsets"]])):
        copies = draw(st.integers(1, min(3, num_brokers)))
        sets = st.lists(ids, min_size=copies, max_size=copies, unique=True)
        topics[topic] = draw(st.lists(sets, min_size=1, max_size=60 if small_partitions else 12))
        sizes = st.integers(2, 4) if small_partitions else st.integers(0, 40)
        for partition in range(len(topics[topic])):
            stored[topic, partition] = draw(sizes) * MIB
    used = Counter[int]()
    for topic, layout in topics.items():
        for partition, replica_ids in enumerate(layout):
            for broker_id in replica_ids:
                used[broker_id] += stored[topic, partition]
    other = draw(st.lists(st.integers(0, 30), min_size=num_brokers, max_size=num_brokers))
    held = [used[broker_id] + other[broker_id - 1] * MIB for broker_id in range(1, num_brokers + 1)]
    fill = draw(st.sampled_from([0.3, 0.6, 0.9]))
    factors = draw(st.lists(st.sampled_from([1, 2]), min_size=num_brokers, max_size=num_brokers))
    capacity = [int(max(*held, MIB) / fill) * factor for factor in factors]
    return make_snapshot(
        held,
        capacity,
        topics=topics,
        racks=racks,
        stored_bytes=stored,
        unreachable=draw(st.sets(ids, max_size=1)),
        leaderless=draw(st.sets(st.sampled_from(sorted(stored)), max_size=1)),
    )


@st.composite
def cordoned(draw: st.DrawFn, source: st.SearchStrategy[ClusterSnapshot]) -> ClusterSnapshot:
    snapshot = draw(source)
    broker_id = draw(st.sampled_from([None, *snapshot.brokers]))
    if broker_id is None:
        return snapshot
    broker = dataclasses.replace(snapshot.brokers[broker_id], is_cordoned=True)
    return dataclasses.replace(snapshot, brokers={**snapshot.brokers, broker_id: broker})


budgets = st.one_of(st.none(), st.integers(0, 200 * MIB))


def held_bytes(snapshot: ClusterSnapshot, broker_id: int, key: TopicPartition) -> int:
    return snapshot.brokers[broker_id].bytes_by_topic_partition[key]


def check_every_moment(snapshot: ClusterSnapshot, plan: MovePlan) -> dict[int, int]:
    """Carries a plan out, and demands that whoever gets something has the room; what brokers hold then."""
    used = {broker_id: broker.used_bytes for broker_id, broker in snapshot.brokers.items()}
    for move in plan.moves:
        for broker_id in move.added_ids:
            used[broker_id] += move.size_bytes
            assert used[broker_id] <= LIMIT * (snapshot.brokers[broker_id].capacity_bytes or 0)
        for broker_id in move.removed_ids:
            used[broker_id] -= held_bytes(snapshot, broker_id, move.topic_partition)
    return used


def check_placement(snapshot: ClusterSnapshot, move: Move, *, is_draining: bool) -> None:
    placed = snapshot.topics[move.topic_partition.topic][move.topic_partition.partition]
    assert move.replica_ids_before == placed.replica_ids
    assert len(set(move.replica_ids)) == len(move.replica_ids) == len(placed.replica_ids)
    assert move.size_bytes == held_bytes(snapshot, placed.leader_id or 0, move.topic_partition)
    assert move.added_ids
    for broker_id in move.added_ids:
        assert snapshot.brokers[broker_id].is_reachable
        assert not snapshot.brokers[broker_id].is_cordoned
    if placed.leader_id in move.replica_ids and not is_draining:
        assert move.replica_ids[0] == placed.leader_id

    def num_racks(ids: tuple[int, ...]) -> int:
        return len({snapshot.brokers[i].rack or f"only {i}" for i in ids})

    assert num_racks(move.replica_ids) >= num_racks(placed.replica_ids)


def leader_counts(snapshot: ClusterSnapshot, plan: MovePlan, ids: set[int]) -> list[int]:
    leaders = {
        (topic, number): placed.leader_id
        for topic, layout in snapshot.topics.items()
        for number, placed in layout.items()
        if len(placed.replica_ids) > 1
    }
    for move in plan.moves:
        if tuple(move.topic_partition) in leaders:
            leaders[tuple(move.topic_partition)] = move.replica_ids[0]
    counts = Counter(leaders.values())
    return sorted(counts[broker_id] for broker_id in ids)


def levels(snapshot: ClusterSnapshot, used: dict[int, int], ids: set[int]) -> list[float]:
    return [used[broker_id] / (snapshot.brokers[broker_id].capacity_bytes or 1) for broker_id in ids]


@settings(max_examples=150)
@given(cordoned(clusters()), budgets)
def test_every_move_fits_and_the_end_is_never_worse(snapshot: ClusterSnapshot, max_bytes: int | None) -> None:
    plan = plan_moves(snapshot, max_bytes=max_bytes, utilisation_limit=LIMIT)
    used = check_every_moment(snapshot, plan)
    for move in plan.moves:
        check_placement(snapshot, move, is_draining=False)
    assert len({move.topic_partition for move in plan.moves}) == len(plan.moves)
    assert max_bytes is None or plan.moved_bytes <= max_bytes
    ids = {broker_id for broker_id, broker in snapshot.brokers.items() if broker.is_reachable}
    before = levels(snapshot, {i: snapshot.brokers[i].used_bytes for i in ids}, ids)
    after = levels(snapshot, used, ids)
    assert abs(plan.spread_before - (max(before) - min(before))) < 1e-9
    assert abs(plan.spread_after - (max(after) - min(after))) < 1e-9
    assert plan.spread_after <= plan.spread_before
    assert (plan.spread_after < plan.spread_before) == bool(plan.moves)
    led_before = leader_counts(snapshot, dataclasses.replace(plan, moves=()), ids)
    led_after = leader_counts(snapshot, plan, ids)
    assert led_after[-1] - led_after[0] <= led_before[-1] - led_before[0]


@settings(max_examples=200)
@given(clusters(), st.integers(1, 8), budgets)
def test_a_draining_broker_is_emptied_as_far_as_others_have_room(
    snapshot: ClusterSnapshot, drained: int, max_bytes: int | None
) -> None:
    plan = plan_moves(snapshot, max_bytes=max_bytes, drained=[drained], utilisation_limit=LIMIT)
    check_every_moment(snapshot, plan)
    assert max_bytes is None or plan.moved_bytes <= max_bytes
    for move in plan.moves:
        check_placement(snapshot, move, is_draining=True)
        assert drained not in move.added_ids
        assert drained not in move.replica_ids or plan.notes
    is_emptied = [drained in move.replica_ids_before for move in plan.moves]
    if max_bytes is None and any(is_emptied):
        left = [
            TopicPartition(topic, number)
            for topic, layout in snapshot.topics.items()
            for number, placed in layout.items()
            if drained in placed.replica_ids
        ]
        moved = {move.topic_partition for move in plan.moves}
        assert set(left) <= moved or plan.notes


@settings(max_examples=50)
@given(cordoned(clusters()), budgets)
def test_the_same_snapshot_gives_the_same_plan(snapshot: ClusterSnapshot, max_bytes: int | None) -> None:
    assert plan_moves(snapshot, max_bytes=max_bytes) == plan_moves(snapshot, max_bytes=max_bytes)


@settings(max_examples=200)
@given(clusters(small_partitions=True))
def test_no_more_than_the_bound_is_moved_but_for_a_few_partitions(snapshot: ClusterSnapshot) -> None:
    plan = plan_moves(snapshot, spread_goal=GOAL, utilisation_limit=LIMIT)
    assert plan.moved_bytes >= plan.least_bytes - 1
    largest = max((move.size_bytes for move in plan.moves), default=0)
    assert plan.moved_bytes <= 1.25 * plan.least_bytes + len(snapshot.brokers) * largest


@settings(max_examples=100)
@given(clusters())
def test_what_is_excluded_stays(snapshot: ClusterSnapshot) -> None:
    plan = plan_moves(snapshot)
    for move in plan.moves[:1]:
        again = plan_moves(snapshot, excluded=[move.topic_partition])
        assert move.topic_partition not in {other.topic_partition for other in again.moves}
