"""Moves by example: what waits for room, what moves first, what is left and said."""

from __future__ import annotations

from dataclasses import replace

from evenload.router.moves.order import in_order
from evenload.router.moves.plan import Move, MovePlan
from evenload.router.moves.planning import plan_moves
from evenload.router.moves.schedule import MoveSchedule
from evenload.router.moves.state import MoveState
from evenload.telemetry_collector.snapshot import ClusterSnapshot, LogDirSnapshot, TopicPartition
from evenload.telemetry_collector.testing import make_snapshot


def state_of(snapshot: ClusterSnapshot) -> MoveState:
    return MoveState(snapshot, draining=(), excluded=(), utilisation_limit=0.95)


def move(number: int, size_bytes: int, source: int, target: int) -> Move:
    return Move(
        topic_partition=TopicPartition("t", number),
        size_bytes=size_bytes,
        replica_ids_before=(source,),
        leader_id_before=source,
        replica_ids=(target,),
    )


def test_a_copy_waits_until_what_it_takes_the_place_of_is_gone() -> None:
    snapshot = make_snapshot(
        [30, 80, 0], 100, topics={"t": [(1,), (2,)]}, stored_bytes={("t", 0): 30, ("t", 1): 40}
    )
    coming, leaving = move(0, 30, 1, 2), move(1, 40, 2, 3)
    assert in_order(state_of(snapshot), [coming, leaving]) == ([leaving, coming], 0)


def test_two_full_brokers_can_not_exchange_copies() -> None:
    snapshot = make_snapshot(
        [80, 80], 100, topics={"t": [(1,), (2,)]}, stored_bytes={("t", 0): 40, ("t", 1): 50}
    )
    assert in_order(state_of(snapshot), [move(0, 40, 1, 2), move(1, 50, 2, 1)]) == ([], 2)


def test_a_leader_goes_on_leading_and_an_only_copy_takes_its_leader_along() -> None:
    snapshot = make_snapshot(
        [90, 90, 0],
        100,
        topics={"t": [(1, 2)] * 3},
        stored_bytes={("t", number): 30 for number in range(3)},
    )
    plan = plan_moves(snapshot)
    assert [moved.removed_ids for moved in plan.moves] == [(2,), (1,)]
    assert plan.moves[0].replica_ids == (1, 3)
    assert plan.moves[1].replica_ids[0] in (2, 3)


def test_internal_topics_that_move_are_named() -> None:
    stored = {("__consumer_offsets", number): 10 for number in range(8)}
    snapshot = make_snapshot([80, 0], 100, topics={"__consumer_offsets": [(1,)] * 8}, stored_bytes=stored)
    plan = plan_moves(snapshot)
    assert plan.spread_after == 0
    assert plan.notes == ("internal topics are moved as well: __consumer_offsets.",)


def test_one_copy_that_is_too_large_to_help_stays() -> None:
    snapshot = make_snapshot([90, 0], 100, topics={"t": [(1,)]}, stored_bytes={("t", 0): 90})
    plan = plan_moves(snapshot)
    assert (plan.moves, plan.least_bytes, plan.spread_after) == ((), 0, 0.9)


def test_no_more_goes_to_a_broker_than_its_fullest_volume_has_room_for() -> None:
    stored = {("t", number): 5 for number in range(16)}
    snapshot = make_snapshot([80, 20], 100, topics={"t": [(1,)] * 16}, stored_bytes=stored)
    log_dirs = {
        "/a": LogDirSnapshot(capacity_bytes=50, used_bytes=20),
        "/b": LogDirSnapshot(capacity_bytes=50, used_bytes=0),
    }
    even = plan_moves(snapshot)
    assert (even.moved_bytes, even.notes) == (30, ())
    halves = replace(snapshot.brokers[2], log_dirs=log_dirs)
    plan = plan_moves(replace(snapshot, brokers={**snapshot.brokers, 2: halves}))
    assert plan.moved_bytes == 25  # 95 % of 50 is 47.5
    [note] = plan.notes
    assert note.startswith("broker 2 can't be levelled: Kafka chooses which of its volumes a copy goes to")


def scheduled(snapshot: ClusterSnapshot) -> tuple[MoveSchedule, MovePlan]:
    plan = plan_moves(snapshot)
    return MoveSchedule(plan.moves, small_bytes=0), plan


def test_moves_that_wait_are_looked_at_again_before_they_begin() -> None:
    stored = {("t", number): 100 for number in range(6)}
    snapshot = make_snapshot([600, 0, 0], 1000, topics={"t": [(1,)] * 6}, stored_bytes=stored)
    schedule, plan = scheduled(snapshot)
    assert schedule.begin() == ()
    assert schedule.look(snapshot) == ()
    assert schedule.begin() == plan.moves
    schedule, _ = scheduled(snapshot)
    down = replace(snapshot.brokers[2], unreachable_since_s=1.0)
    fuller = replace(snapshot.brokers[3], used_bytes=900)
    worse = replace(snapshot, brokers={**snapshot.brokers, 2: down, 3: fuller})
    assert schedule.look(worse) == ()
    assert schedule.begin() == ()
    assert schedule.num_waiting == len(plan.moves)
    assert schedule.look(snapshot) == ()  # the broker is back, and there is room
    assert schedule.begin() == plan.moves
    schedule, _ = scheduled(snapshot)
    schedule.look(worse)
    reasons = " ".join(schedule.give_up())
    assert "where it was to go takes nothing now" in reasons
    assert "no room for it any more" in reasons
    assert schedule.num_waiting == 0


def test_what_was_moved_by_somebody_else_stays_where_it_is() -> None:
    stored = {("t", 0): 50}
    snapshot = make_snapshot([100, 0, 0], 1000, topics={"t": [(1,)]}, stored_bytes=stored)
    elsewhere = make_snapshot([50, 0, 50], 1000, topics={"t": [(3,)]}, stored_bytes=stored)
    for later in (elsewhere, make_snapshot([0, 0, 0], 1000)):
        schedule = MoveSchedule([move(0, 50, 1, 2)], small_bytes=0)
        assert schedule.look(later) == ("partition 0 of 't' is not where it was any more; it stays.",)
        assert (schedule.begin(), schedule.num_waiting) == ((), 0)
    schedule = MoveSchedule([move(0, 50, 1, 2)], small_bytes=0)
    assert schedule.look(snapshot) == ()
    assert len(schedule.begin()) == 1


def test_a_copy_that_is_not_in_sync_holds_its_move_back_until_it_is() -> None:
    stored = {("t", 0): 50}
    snapshot = make_snapshot([50, 50, 0], 1000, topics={"t": [(1, 2)]}, stored_bytes=stored)
    behind = make_snapshot(
        [50, 50, 0], 1000, topics={"t": [(1, 2)]}, stored_bytes=stored, in_sync={("t", 0): [1]}
    )
    moved = replace(move(0, 50, 1, 3), replica_ids_before=(1, 2), replica_ids=(3, 2))
    schedule = MoveSchedule([moved], small_bytes=0)
    schedule.look(behind)
    assert (schedule.begin(), schedule.num_waiting) == ((), 1)
    schedule.look(snapshot)
    assert schedule.begin() == (moved,)


def test_a_later_move_never_takes_the_room_of_an_earlier_one() -> None:
    stored = {("t", 0): 50, ("t", 1): 40, ("t", 2): 30}
    snapshot = make_snapshot([50, 60, 30], 100, topics={"t": [(1,), (2,), (3,)]}, stored_bytes=stored)
    # The first waits until the second has left broker 2; the third would fit there before.
    moves = [move(1, 40, 2, 3), move(0, 50, 1, 2), move(2, 30, 3, 2)]
    schedule = MoveSchedule(moves, small_bytes=1000)
    schedule.look(snapshot)
    assert schedule.begin() == tuple(moves[:1])
