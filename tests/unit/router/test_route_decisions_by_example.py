from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evenload.router.config import RouterConfig
from evenload.router.errors import PluginError, WeightError
from evenload.router.levelling import GoalContext, disk_usage
from evenload.router.min_max import FloatArray
from evenload.router.route import Route
from evenload.router.router import Router
from evenload.router.scoring import ScoreContext
from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot, TopicConfig
from evenload.telemetry_collector.testing import make_snapshot

NOW_S = 1001.0


def route(router: Router, snapshot: ClusterSnapshot | None, **arguments: Any) -> Route:
    layout = snapshot.topics.get("t", {}) if snapshot is not None else {}
    defaults = {"num_partitions": len(layout) or 4, "remaining_bytes": None, "now_s": NOW_S}
    return router.route(snapshot, "t", **{**defaults, **arguments})


def shares(decided: Route) -> list[float]:
    return [decided.shares.get(partition, 0.0) for partition in range(max(decided.shares) + 1)]


# --- fallbacks


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (None, "no_snapshot"),
        (make_snapshot([0], taken_at_s=NOW_S - 31, topics={"t": [(1,)] * 4}), "stale_snapshot"),
        (make_snapshot([0], topics={"other": [(1,)]}), "unknown_topic"),
        (make_snapshot([0], topics={"t": [(1,), ()] * 2}, leaderless={("t", 0), ("t", 2)}), "no_leader"),
    ],
)
def test_without_anything_fresh_shares_are_even_and_the_reason_is_counted(
    snapshot: ClusterSnapshot | None, reason: str
) -> None:
    router = Router()
    decided = route(router, snapshot)
    assert shares(decided) == [0.25] * 4
    assert decided.is_fallback
    assert decided.reason == reason
    again = route(router, snapshot, previous=decided)
    assert again is decided
    assert router.fallbacks == {reason: 2}


def test_a_fallback_ends_with_the_first_fresh_snapshot() -> None:
    router = Router()
    before = route(router, None, num_partitions=2)
    after = route(router, make_snapshot([900, 0], 1000, topics={"t": [(1,), (2,)]}), previous=before)
    assert not after.is_fallback
    assert dict(after.shares) == pytest.approx({0: 0.05, 1: 0.95})


def test_a_clock_that_was_set_back_does_not_make_a_snapshot_stale() -> None:
    assert not route(Router(), make_snapshot([0], topics={"t": [(1,)]}), now_s=5.0).is_fallback


# --- how long turns are


@pytest.mark.parametrize(
    ("capacities", "remaining_bytes", "turn_bytes"),
    [
        ([2 << 40, 1 << 40], None, 4 << 20),  # as configured: nobody sees one turn more or less
        ([2 << 40, 10_000 << 20], None, 1 << 20),  # a ten-thousandth of the smaller
        ([1 << 30, 1 << 30], None, 256 << 10),
        ([2 << 40, 1 << 40], 400 << 20, 2 << 20),  # a hundredth of what a partition gets
        ([2 << 40, 1 << 40], 1 << 20, 32 << 10),
        ([1 << 30, 1 << 30], 1 << 40, 4 << 20),
    ],
)
def test_a_turn_is_short_where_one_more_or_less_would_be_seen(
    capacities: list[int], remaining_bytes: int | None, turn_bytes: int
) -> None:
    router = Router()
    snapshot = make_snapshot([0, 0], capacities, topics={"t": [(1,), (2,)]})
    assert route(router, snapshot, remaining_bytes=remaining_bytes).batch_bytes == turn_bytes


# --- what is counted


def test_own_bytes_since_the_snapshot_count_on_every_copy_as_stored() -> None:
    snapshot = make_snapshot([0, 0, 0], 1000, topics={"t": [(1, 2), (3,)]})
    decided = route(Router(), snapshot, remaining_bytes=400, own_bytes={0: 200, 7: 999}, stored_ratio=0.5)
    # 100 stored bytes are on brokers 1 and 2 already, 200 are to come: 50 and 150 make all three equal.
    assert shares(decided) == pytest.approx([0.25, 0.75])


def test_nothing_left_to_come_is_no_division_by_zero() -> None:
    snapshot = make_snapshot([10, 0], 1000, topics={"t": [(1,), (2,)]})
    assert not route(Router(), snapshot, remaining_bytes=0).is_fallback


def test_the_last_bytes_of_a_load_do_not_all_go_to_one_broker() -> None:
    snapshot = make_snapshot([500_000, 500_300, 500_200], 1_000_000, topics={"t": [(1,), (2,), (3,)]})
    assert min(shares(route(Router(), snapshot, remaining_bytes=10))) > 0.1


def test_without_a_known_rest_bytes_go_where_room_is_but_not_all_at_once() -> None:
    router = Router(RouterConfig(safe_streams=False))
    snapshot = make_snapshot([400, 300, 300], 1000, topics={"t": [(1,), (2,), (3,)]})
    assert shares(route(router, snapshot)) == pytest.approx([0, 0.5, 0.5])  # 5 % of 3000 ahead
    snapshot = make_snapshot([310, 300, 300], 1000, topics={"t": [(1,), (2,), (3,)]})
    assert shares(route(router, snapshot)) == pytest.approx([130 / 450, 160 / 450, 160 / 450])


# --- streams, of which nobody knows how much is to come


def test_no_leader_gets_more_than_twice_its_even_share_unless_it_is_said_what_comes() -> None:
    snapshot = make_snapshot([600, 600, 200], 1000, topics={"t": [(1,), (2,), (3,)]})
    assert shares(route(Router(), snapshot)) == pytest.approx([1 / 6, 1 / 6, 2 / 3])
    assert dict(route(Router(), snapshot, remaining_bytes=150).shares) == {2: 1.0}
    assert dict(route(Router(RouterConfig(safe_streams=False)), snapshot).shares) == {2: 1.0}


def test_each_partition_gets_a_tenth_of_its_even_share_at_least_and_three_times_it_at_most() -> None:
    layout = [(1,)] * 2 + [(2,)] * 2 + [(3,), (3, 1), (3, 2), (3, 1, 2)]
    snapshot = make_snapshot([700, 500, 100], 1000, topics={"t": layout})
    decided = shares(route(Router(), snapshot))
    assert min(decided) == pytest.approx(0.1 / 8)
    assert max(decided) == decided[4] == pytest.approx(3 / 8)
    assert sum(decided[4:]) <= 2 * 4 / 8 + 1e-9


def test_bounds_give_way_to_a_disk_that_they_would_overfill() -> None:
    snapshot = make_snapshot([940, 940, 100], 1000, topics={"t": [(1,), (2,), (3,)]})
    decided = route(Router(), snapshot)  # 150 to come: a sixth of them, or a tenth of a third, is too much
    assert pytest.approx(150 * decided.shares[0]) == 0.95 * 1000 - 940
    assert decided.shares[2] > 2 / 3


def test_streams_are_not_levelled_while_disks_are_nearly_even_and_far_from_full() -> None:
    layout = {"t": [(1,), (2,), (3,)]}

    def decided(*used: int, previous: Route | None = None) -> list[float]:
        return shares(route(Router(), make_snapshot(list(used), 1000, topics=layout), previous=previous))

    assert decided(349, 300, 300) == [1 / 3] * 3
    assert decided(351, 300, 300) != [1 / 3] * 3
    assert decided(760, 730, 730) != [1 / 3] * 3  # one would be 81 % full
    levelling = followed(route(Router(), make_snapshot([351, 300, 300], 1000, topics=layout)))
    assert decided(330, 300, 300, previous=levelling) != [1 / 3] * 3  # it goes on where it has begun
    assert decided(304, 300, 300, previous=levelling) == [1 / 3] * 3


def test_shares_that_are_even_but_for_rounding_are_no_levelling() -> None:
    layout = {"t": [(1,)] * 2 + [(2,)] * 3}  # (2/5)/2 isn't (3/5)/3 to the last bit
    even = followed(route(Router(), make_snapshot([300, 300], 1000, topics=layout)))
    again = route(Router(), make_snapshot([349, 300], 1000, topics=layout), previous=even)
    assert shares(again) == pytest.approx([0.2] * 5)


def test_a_partition_whose_broker_was_away_gets_its_part_of_a_stream_again() -> None:
    layout = {"t": [(1, 2, 3), (2, 3, 1), (3, 1, 2)]}  # all alike, so that no disk tells them apart
    away = make_snapshot([300] * 3, 1000, topics=layout, leaderless={("t", 0)})
    before = followed(route(Router(), away))
    assert 0 not in before.shares
    back = make_snapshot([300] * 3, 1000, topics=layout)
    assert shares(route(Router(), back, previous=before)) == pytest.approx([1 / 3] * 3)


def test_even_disks_say_nothing_to_weights_and_to_other_goals() -> None:
    snapshot = make_snapshot([10, 10], 1000, topics={"t": [(1,), (2,)]}, stored_bytes={("t", 0): 10})
    router = Router()
    router.reload(brokers={1: 0.5})
    assert shares(route(router, snapshot))[0] < 0.4
    spread = Router(RouterConfig(goals={"dataset_spread": 1.0}))
    assert shares(route(spread, snapshot))[0] < 0.5


def test_the_note_of_a_bounded_stream_says_what_would_help() -> None:
    snapshot = make_snapshot([600, 600, 200], 1000, topics={"t": [(1,), (2,), (3,)]})
    (note,) = route(Router(), snapshot).notes
    assert note.endswith(
        "nobody knows how much is to come, so no leader gets more than twice its even share, and each "
        "partition a tenth of its own. Saying it (`expect`) would help."
    )
    (note,) = route(Router(), make_snapshot([340, 300], 1000, topics={"t": [(1,), (2,)]})).notes
    assert note.endswith("nobody knows how much is to come, and below 5% shares stay even then.")


def test_a_rest_that_is_the_least_to_come_is_levelled_for_over_the_same_bytes_until_it_has_come() -> None:
    snapshot = make_snapshot([300, 0], 10_000, topics={"t": [(1,), (2,)]})
    first = route(Router(), snapshot, remaining_bytes=800, is_least=True)
    assert shares(first) == pytest.approx([0.35, 0.65])  # 5 % of 20,000 ahead
    later = route(Router(), snapshot, remaining_bytes=200, is_least=True, own_bytes={0: 210, 1: 390})
    assert shares(later) == pytest.approx([0.35, 0.65])  # 1,000 ahead of then
    ended = route(Router(), snapshot, remaining_bytes=100, is_least=True, own_bytes={0: 1000, 1: 1000})
    assert shares(ended) == pytest.approx([0, 1])  # its own rest


def test_partitions_that_the_producer_does_not_know_get_nothing() -> None:
    snapshot = make_snapshot([0, 0], 1000, topics={"t": [(1,), (2,), (1,), (2,)]})
    assert set(route(Router(), snapshot, num_partitions=2).shares) == {0, 1}


def test_partitions_that_the_snapshot_does_not_know_get_nothing_and_a_note() -> None:
    decided = route(Router(), make_snapshot([0, 0], 1000, topics={"t": [(1,), (2,)]}), num_partitions=4)
    assert set(decided.shares) == {0, 1}
    assert any("partitions 2, 3 of 't' are not in the snapshot yet" in note for note in decided.notes)


def test_the_leader_of_now_counts_not_the_preferred_one() -> None:
    snapshot = make_snapshot([0, 0, 0], 1000, topics={"t": [(1, 2), (2, 3)]}, unreachable={1})
    moved = snapshot.topics["t"][0]
    layout = {0: type(moved)(leader_id=2, replica_ids=(1, 2), isr_ids=(2,)), 1: snapshot.topics["t"][1]}
    snapshot = ClusterSnapshot(
        cluster_id="c",
        taken_at_s=1000.0,
        brokers={2: snapshot.brokers[2]},
        topics={"t": layout},
        topic_configs={"t": TopicConfig(min_in_sync=1)},
    )
    # Broker 1 is down and broker 3 unknown: neither set is whole, both are led by broker 2.
    assert shares(route(Router(), snapshot)) == pytest.approx([0.5, 0.5])


# --- who is left out


def test_an_unreachable_broker_is_left_out_and_said_so() -> None:
    decided = route(Router(), make_snapshot([0] * 3, topics={"t": [(1,), (2,), (3,)]}, unreachable={2}))
    assert dict(decided.shares) == pytest.approx({0: 0.5, 2: 0.5})
    assert "broker 2 left out: unreachable." in decided.notes


def test_a_follower_that_is_down_leaves_its_sets_out_while_there_are_others() -> None:
    decided = route(Router(), make_snapshot([0] * 3, topics={"t": [(1, 2), (2, 3), (3, 1)]}, unreachable={2}))
    assert dict(decided.shares) == {2: 1.0}


def test_where_every_set_has_a_broker_that_is_down_the_leader_decides() -> None:
    layout = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    decided = route(Router(), make_snapshot([0] * 3, topics={"t": layout}, unreachable={2}))
    assert dict(decided.shares) == pytest.approx({0: 0.5, 2: 0.5})
    assert any("should get nothing (unreachable), but no other can take" in note for note in decided.notes)


def test_a_full_broker_is_left_out_while_another_has_room() -> None:
    snapshot = make_snapshot([960, 10, 900], 1000, topics={"t": [(1,), (2,), (3,)]})
    assert 0 not in route(Router(), snapshot, remaining_bytes=10**6).shares


def test_own_bytes_can_fill_a_broker() -> None:
    snapshot = make_snapshot([900, 940], 1000, topics={"t": [(1,), (2,)]})
    assert set(route(Router(), snapshot, remaining_bytes=10**6, own_bytes={0: 60}).shares) == {1}


def test_when_all_are_full_the_least_full_takes_it() -> None:
    snapshot = make_snapshot([1500, 990, 1200], 1000, topics={"t": [(1,), (2,), (3,)]})
    decided = route(Router(), snapshot, remaining_bytes=100)
    assert dict(decided.shares) == {1: 1.0}
    assert any("should get nothing (95% full or more)" in note for note in decided.notes)


def test_a_full_broker_comes_before_one_that_is_down() -> None:
    snapshot = make_snapshot([990, 10], 1000, topics={"t": [(1,), (2,)]}, unreachable={2})
    assert dict(route(Router(), snapshot).shares) == {0: 1.0}


def test_when_all_are_down_one_tries_all_the_same() -> None:
    snapshot = make_snapshot([300, 100], 1000, topics={"t": [(1,), (2,)]}, unreachable={1, 2})
    assert shares(route(Router(), snapshot, remaining_bytes=400)) == pytest.approx([0.25, 0.75])


def test_a_broker_that_the_snapshot_does_not_know_is_left_out() -> None:
    decided = route(Router(), make_snapshot([0, 0], topics={"t": [(1,), (9,)]}))
    assert dict(decided.shares) == {0: 1.0}
    assert "broker 9 left out: not in the snapshot." in decided.notes


def test_one_broker_takes_everything() -> None:
    decided = route(Router(), make_snapshot([10], 1000, topics={"t": [(1,)] * 4}))
    assert shares(decided) == [0.25] * 4
    assert decided.notes == ()


# --- capacities that are missing


def test_without_any_capacity_bytes_are_levelled_and_said_so() -> None:
    snapshot = make_snapshot([300, 100, 0], None, topics={"t": [(1,), (2,), (3,)]})
    decided = route(Router(), snapshot, remaining_bytes=300)
    assert shares(decided) == pytest.approx([0, 100 / 300, 200 / 300])
    assert any("no broker's capacity is known: bytes are levelled" in note for note in decided.notes)


def test_where_one_capacity_is_missing_the_smallest_other_is_assumed() -> None:
    snapshot = make_snapshot([0, 0, 0], [4000, 1000, None], topics={"t": [(1,), (2,), (3,)]})
    decided = route(Router(), snapshot, remaining_bytes=600)
    assert shares(decided) == pytest.approx([4 / 6, 1 / 6, 1 / 6])
    assert any(note.startswith("broker 3: capacity not known") for note in decided.notes)


def test_a_broker_over_an_assumed_capacity_is_not_full() -> None:
    snapshot = make_snapshot([0, 5000], [1000, None], topics={"t": [(1,), (2,)]})
    assert shares(route(Router(), snapshot, remaining_bytes=10**6))[1] > 0.5


# --- scores


def night_shift(broker: BrokerSnapshot, context: ScoreContext) -> float:  # noqa: ARG001
    return 0.5 if broker.broker_id == 2 else 1.0


def test_a_broker_that_one_is_half_willing_to_send_to_gets_less_but_not_nothing() -> None:
    config = RouterConfig(score_functions={"reachability": 1.0, "night_shift": 1.0})
    router = Router(config, score_functions={"night_shift": night_shift})
    snapshot = make_snapshot([0, 0], 1000, topics={"t": [(1,), (2,)]})
    assert shares(route(router, snapshot, remaining_bytes=300)) == pytest.approx([2 / 3, 1 / 3])


def test_weights_change_while_routes_are_made() -> None:
    config = RouterConfig(score_functions={"night_shift": 0.0})
    router = Router(config, score_functions={"night_shift": night_shift})
    snapshot = make_snapshot([0, 0], 1000, topics={"t": [(1,), (2,)]})
    assert shares(route(router, snapshot)) == pytest.approx([1 / 2, 1 / 2])
    assert router.reload(score_functions={"night_shift": 1.0}) == ()
    assert shares(route(router, snapshot)) == pytest.approx([2 / 3, 1 / 3])


def test_bad_weights_leave_what_was_in_force_and_say_so() -> None:
    router = Router()
    told = router.reload(goals={"disk_usage": 0.0}, score_functions={"nonsense": 1.0})
    assert len(told) == 2
    assert all("What was in force stays" in sentence for sentence in told)
    snapshot = make_snapshot([900, 0], 1000, topics={"t": [(1,), (2,)]}, unreachable={1})
    assert dict(route(router, snapshot).shares) == {1: 1.0}


def test_weights_that_cannot_be_used_are_refused_at_the_start() -> None:
    with pytest.raises(PluginError):
        Router(RouterConfig(goals={"nonsense": 1.0}))
    with pytest.raises(WeightError):
        Router(RouterConfig(goals={"disk_usage": 0.0}))


# --- goals


def broken(_: GoalContext) -> FloatArray:
    raise ArithmeticError("no idea")


def test_a_goal_that_fails_is_named_and_the_others_decide() -> None:
    router = Router(RouterConfig(goals={"broken": 5.0, "disk_usage": 1.0}), goals={"broken": broken})
    decided = route(router, make_snapshot([100, 0], 1000, topics={"t": [(1,), (2,)]}), remaining_bytes=300)
    assert shares(decided) == pytest.approx([1 / 3, 2 / 3])
    assert "'broken' was put aside: it failed (ArithmeticError: no idea)." in decided.notes


def test_when_every_goal_fails_shares_are_even() -> None:
    router = Router(RouterConfig(goals={"broken": 1.0}), goals={"broken": broken})
    decided = route(router, make_snapshot([100, 0], 1000, topics={"t": [(1,), (2,)]}))
    assert decided.reason == "no_goal"
    assert shares(decided) == [0.5, 0.5]
    assert "no idea" in decided.notes[0]


def test_goals_see_own_bytes_in_what_is_led() -> None:
    seen: list[GoalContext] = []

    def spy(context: GoalContext) -> FloatArray:
        seen.append(context)
        return disk_usage(context)

    snapshot = make_snapshot([50, 50, 0], 1000, topics={"t": [(1, 2), (2,)]}, stored_bytes={("t", 0): 40})
    router = Router(RouterConfig(goals={"spy": 1.0}), goals={"spy": spy})
    route(router, snapshot, own_bytes={0: 10, 1: 4}, remaining_bytes=100)
    assert seen[0].leader_bytes.tolist() == [50, 4, 0]
    assert seen[0].used_bytes.tolist() == [60, 64, 0]


def test_dataset_spread_evens_leaders_where_disk_usage_would_not() -> None:
    snapshot = make_snapshot([700, 0], 1000, topics={"t": [(1,), (2,)]})
    disk = route(Router(), snapshot, remaining_bytes=100)
    spread = route(Router(RouterConfig(goals={"dataset_spread": 1.0})), snapshot, remaining_bytes=100)
    half = RouterConfig(goals={"disk_usage": 1.0, "dataset_spread": 1.0})
    assert shares(disk) == [0, 1]
    assert shares(spread) == [0.5, 0.5]
    assert shares(route(Router(half), snapshot, remaining_bytes=100)) == pytest.approx([0.25, 0.75])


# --- the dead band


def followed(decided: Route) -> Route:
    decided.partition_for(1)
    return decided


def test_noise_does_not_move_traffic() -> None:
    layout = {"t": [(1,), (2,), (3,)]}
    before = followed(
        route(Router(), make_snapshot([100_000] * 3, 10**6, topics=layout), remaining_bytes=10**5)
    )
    noisy = make_snapshot([100_300, 100_000, 99_800], 10**6, topics=layout)
    assert route(Router(), noisy, remaining_bytes=10**5, previous=before) is before


def test_more_than_noise_does() -> None:
    layout = {"t": [(1,), (2,), (3,)]}
    before = followed(
        route(Router(), make_snapshot([100_000] * 3, 10**6, topics=layout), remaining_bytes=10**5)
    )
    shifted = make_snapshot([110_000, 100_000, 99_800], 10**6, topics=layout)
    after = route(Router(), shifted, remaining_bytes=10**5, previous=before)
    assert after.shares[0] < 0.3


def test_a_broker_that_goes_down_ends_the_dead_band() -> None:
    layout = {"t": [(1,), (2,), (3,)]}
    before = followed(route(Router(), make_snapshot([0] * 3, 10**12, topics=layout), remaining_bytes=1))
    down = make_snapshot([0] * 3, 10**12, topics=layout, unreachable={1})
    assert 0 not in route(Router(), down, remaining_bytes=1, previous=before).shares


def test_leaders_that_moved_end_the_dead_band_when_reading_counts() -> None:
    router = Router(RouterConfig(goals={"dataset_spread": 1.0}))
    before = followed(route(router, make_snapshot([0] * 2, 10**12, topics={"t": [(1, 2), (2, 1)]})))
    moved = make_snapshot([0] * 2, 10**12, topics={"t": [(1, 2), (1, 2), (2, 1)]})
    assert shares(route(router, moved, previous=before)) == pytest.approx([0.25, 0.25, 0.5])


def test_a_change_of_what_is_noted_keeps_the_shares_and_the_place() -> None:
    layout = {"t": [(1,), (2,), (3,)]}
    before = followed(route(Router(), make_snapshot([0] * 3, 10**6, topics=layout), remaining_bytes=10**5))
    more = make_snapshot([0] * 4, 10**6, topics=layout)
    after = route(Router(), more, remaining_bytes=10**5, previous=before)
    assert after is not before
    assert after.shares == before.shares
    assert after.partition_for(10**9) != before.partition_for(10**9)  # partition 0 was ahead by a byte


# --- beginnings


def test_producers_that_start_together_begin_on_different_brokers() -> None:
    snapshot = make_snapshot([0] * 3, 1000, topics={"t": [(1,), (2,), (3,)]})
    begins = {
        route(Router(start=start), snapshot, previous=Route({0: 1, 1: 1, 2: 1})).partition_for(1)
        for start in np.linspace(0, 0.99, 9)
    }
    assert begins == {0, 1, 2}


@pytest.mark.parametrize(
    "wrong",
    [{"num_partitions": 0}, {"remaining_bytes": -1}, {"stored_ratio": 0.0}, {"stored_ratio": float("nan")}],
)
def test_arguments_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        route(Router(), make_snapshot([0], topics={"t": [(1,)]}), **wrong)


def test_a_start_outside_the_list_of_turns_is_refused() -> None:
    with pytest.raises(ValueError, match="start is 1"):
        Router(start=1)


# --- replicas in sync


@pytest.mark.parametrize(
    ("in_sync", "min_in_sync", "written"),
    [
        ({0: [1]}, None, {1, 2}),  # nobody may say how many it takes: a leader that is left alone
        ({0: [1, 2]}, None, {0, 1, 2}),
        ({0: [1]}, 1, {0, 1, 2}),
        ({0: [1]}, 2, {1, 2}),
        ({0: [1, 2], 2: [3, 1]}, 3, {1}),
        ({0: [1], 1: [2], 2: [3]}, 2, {0, 1, 2}),  # there is no other: rather try than stop
        ({}, 9, {0, 1, 2}),
    ],
)
def test_a_partition_that_can_take_no_records_gets_none_while_another_can(
    in_sync: dict[int, list[int]], min_in_sync: int | None, written: set[int]
) -> None:
    snapshot = make_snapshot(
        [100, 100, 100],
        1000,
        topics={"t": [(1, 2, 3), (2, 3, 1), (3, 1, 2)]},
        in_sync={("t", number): ids for number, ids in in_sync.items()},
    )
    if min_in_sync is not None:
        snapshot = replace(snapshot, topic_configs={"t": TopicConfig(min_in_sync=min_in_sync)})
    for remaining_bytes in (None, 300):
        decided = route(Router(), snapshot, remaining_bytes=remaining_bytes)
        assert set(decided.shares) == written
        lagging = [number for number, ids in in_sync.items() if len(ids) < min(min_in_sync or 2, 3)]
        assert any("too few replicas in sync" in note for note in decided.notes) == bool(lagging)


def test_shares_that_are_followed_end_where_a_partition_can_take_no_records_any_more() -> None:
    layout = {"t": [(1, 2), (2, 1)]}
    before = followed(route(Router(), make_snapshot([100, 100], 1000, topics=layout)))
    lagging = make_snapshot([100, 100], 1000, topics=layout, in_sync={("t", 0): [1]})
    after = route(Router(), lagging, previous=before)
    assert dict(after.shares) == {1: 1.0}
    assert after.notes[0] == (
        "partitions 0 of 't' have too few replicas in sync to take records: nothing is sent there until they "
        "caught up."
    )
