"""Schedules, carried out on brokers whose throttle is shared fairly by what is under way."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.router.moves.plan import Move
from evenload.router.moves.planning import plan_moves
from evenload.router.moves.schedule import AT_ONCE, MoveSchedule
from evenload.telemetry_collector.snapshot import ClusterSnapshot, TopicPartition
from evenload.telemetry_collector.testing import make_snapshot

GIB = 1 << 30
THROTTLE = 50 << 20
LOOK_S = 3600.0  # seldom, as each look takes a moment of the test
SMALL_BYTES = 10 * THROTTLE
LIMIT = 0.95


@dataclass
class Cluster:
    """What brokers hold while copies come, each sent and taken at a throttle of its own."""

    snapshot: ClusterSnapshot
    now_s: float = 0.0
    left_bytes: dict[TopicPartition, float] = field(default_factory=dict)
    layout: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    size_bytes: dict[TopicPartition, int] = field(default_factory=dict)
    most_at_once: int = 0

    def __post_init__(self) -> None:
        for topic, placed in self.snapshot.topics.items():
            for number, each in placed.items():
                at = TopicPartition(topic, number)
                self.layout[at] = each.replica_ids
                holder = self.snapshot.brokers[each.replica_ids[0]]
                self.size_bytes[at] = holder.bytes_by_topic_partition[at]

    def measure(self, running: Mapping[TopicPartition, Move]) -> ClusterSnapshot:
        """As it is, with what has come of copies that are under way."""
        used = dict.fromkeys(self.snapshot.brokers, 0.0)
        for at, replica_ids in self.layout.items():
            for broker_id in replica_ids:
                used[broker_id] += self.size_bytes[at]
        for at, move in running.items():
            for broker_id in move.added_ids:
                used[broker_id] += self.size_bytes[at] - self.left_bytes[at]
        for broker_id, broker in self.snapshot.brokers.items():
            assert used[broker_id] <= max(broker.used_bytes, LIMIT * (broker.capacity_bytes or 0)) + 1
        topics: dict[str, list[Sequence[int]]] = {}
        for at in sorted(self.layout):
            topics.setdefault(at.topic, []).append(self.layout[at])
        return make_snapshot(
            [round(used[broker_id]) for broker_id in sorted(used)],
            [broker.capacity_bytes for _, broker in sorted(self.snapshot.brokers.items())],
            topics=topics,
            stored_bytes={tuple(at): size for at, size in self.size_bytes.items()},
        )

    def pass_time(self, running: Mapping[TopicPartition, Move], most_s: float) -> list[TopicPartition]:
        """Goes on until a copy is complete, or for so long; returns what is complete."""
        for at in running:
            self.left_bytes.setdefault(at, float(self.size_bytes[at]))
        rates = fair_rates(running)
        ends_s = min((self.left_bytes[at] / rate for at, rate in rates.items()), default=0.0)
        passed_s = min(most_s, ends_s)
        self.now_s += passed_s
        for at, rate in rates.items():
            self.left_bytes[at] -= rate * passed_s
        done = [at for at in running if self.left_bytes[at] < 1]
        for at in done:
            self.layout[at] = running[at].replica_ids
        return done


def fair_rates(running: Mapping[TopicPartition, Move]) -> dict[TopicPartition, float]:
    """Bytes a second of each move: a broker has a throttle for sending and one for taking, shared fairly."""
    links = {
        at: [link for b in move.added_ids for link in (("send", move.leader_id_before), ("take", b))]
        for at, move in running.items()
    }
    rates: dict[TopicPartition, float] = {}
    room = {link: float(THROTTLE) for used in links.values() for link in used}
    while len(rates) < len(running):
        copies = {
            link: [at for at, used in links.items() if at not in rates for each in used if each == link]
            for link in room
        }
        narrowest = min(
            (link for link in room if copies[link]), key=lambda each: room[each] / len(copies[each])
        )
        rate = room[narrowest] / len(copies[narrowest])
        for at in set(copies[narrowest]):
            rates[at] = rate
            for link in links[at]:
                room[link] -= rate
    return rates


def carry_out(cluster: Cluster, moves: Sequence[Move]) -> list[str]:
    """As the balance does it; returns what was left out and why."""
    schedule = MoveSchedule(moves, small_bytes=SMALL_BYTES, utilisation_limit=LIMIT)
    said: list[str] = []
    look_at_s = 0.0
    while schedule.num_waiting or schedule.running:
        if cluster.now_s >= look_at_s or not schedule.running:
            said += schedule.look(cluster.measure(schedule.running))
            look_at_s = cluster.now_s + LOOK_S
        schedule.begin()
        if not schedule.running:
            said += schedule.give_up()
        cluster.most_at_once = max(cluster.most_at_once, len(schedule.running))
        schedule.end(cluster.pass_time(schedule.running, max(0.0, look_at_s - cluster.now_s)))
    cluster.measure({})
    return said


def bound_s(moves: Sequence[Move]) -> float:
    """What the busiest broker needs for what it sends or takes, whatever the others do."""
    sent: dict[int, int] = {}
    taken: dict[int, int] = {}
    for move in moves:
        sent[move.leader_id_before] = sent.get(move.leader_id_before, 0) + move.moved_bytes
        for broker_id in move.added_ids:
            taken[broker_id] = taken.get(broker_id, 0) + move.size_bytes
    return max([*sent.values(), *taken.values()], default=0) / THROTTLE


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sizes_gib", [(60, 60), (20, 100)])
def test_twelve_brokers_and_four_new_ones_are_level_soon_after_the_busiest_could_be(
    seed: int, sizes_gib: tuple[int, int]
) -> None:
    chance = random.Random(seed)
    layout = [[1 + number % 12] for number in range(384)]
    stored = {("t", number): chance.randint(*sizes_gib) * GIB for number in range(len(layout))}
    used = [
        sum(size for (_, number), size in stored.items() if layout[number] == [broker_id])
        for broker_id in range(1, 17)
    ]
    cluster = Cluster(make_snapshot(used, 2 * max(used), topics={"t": layout}, stored_bytes=stored))
    plan = plan_moves(cluster.snapshot)
    assert 60 < len(plan.moves) < 130
    assert carry_out(cluster, plan.moves) == []
    assert cluster.now_s <= 1.3 * bound_s(plan.moves)
    assert cluster.most_at_once > 4


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSnapshot:
    """Up to 6 brokers, some of them nearly full, and partitions of up to three copies."""
    num_brokers = draw(st.integers(2, 6))
    layout = [
        draw(st.permutations(range(1, num_brokers + 1)))[: draw(st.integers(1, min(3, num_brokers)))]
        for _ in range(draw(st.integers(1, 25)))
    ]
    stored = {("t", number): draw(st.integers(0, 40)) * GIB for number in range(len(layout))}
    used = [
        sum(size for (_, number), size in stored.items() if broker_id in layout[number])
        for broker_id in range(1, num_brokers + 1)
    ]
    capacity = int(max(*used, GIB) / draw(st.sampled_from([0.4, 0.7, 0.95])))
    return make_snapshot(used, capacity, topics={"t": layout}, stored_bytes=stored)


@settings(max_examples=100)
@given(clusters())
def test_every_plan_comes_to_its_end_and_no_broker_is_overfilled_on_the_way(
    snapshot: ClusterSnapshot,
) -> None:
    cluster = Cluster(snapshot)
    plan = plan_moves(snapshot, utilisation_limit=LIMIT)
    assert carry_out(cluster, plan.moves) == []
    for move in plan.moves:
        assert cluster.layout[move.topic_partition] == move.replica_ids
    assert cluster.now_s >= bound_s(plan.moves) * (1 - 1e-6)


@settings(max_examples=50)
@given(clusters(), st.sampled_from([1.0, 1e18]))
def test_a_broker_has_no_more_under_way_than_it_may(snapshot: ClusterSnapshot, small_bytes: float) -> None:
    plan = plan_moves(snapshot)
    schedule = MoveSchedule(plan.moves, small_bytes=small_bytes)
    schedule.look(snapshot)
    begun = schedule.begin()
    assert bool(begun) == bool(plan.moves)
    for broker_id in snapshot.brokers:
        large = [m for m in begun if broker_id in (m.leader_id_before, *m.added_ids) and m.size_bytes]
        assert small_bytes > 1 or len(large) <= AT_ONCE
    assert schedule.begin() == ()
