"""The sizes in a snapshot, not only what was reported, tell what it holds of a producer's own records."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import pytest

from evenload.kafka_plugin.routing.own_bytes import OwnBytes, OwnPart
from evenload.kafka_plugin.routing.topic_routing import TopicRouting
from evenload.router.config import RouterConfig
from evenload.router.route import Route
from evenload.router.router import Router
from evenload.telemetry_collector.cache import SnapshotCache
from evenload.telemetry_collector.testing import make_snapshot

MIB = 1 << 20


def _routing(cache: SnapshotCache, *, is_shared: bool = False) -> TopicRouting:
    return TopicRouting(
        "t",
        2,
        router=Router(RouterConfig(safe_streams=False)),
        cache=cache,
        batch_bytes=MIB,
        is_shared=is_shared,
    )


def _send(routing: TopicRouting, partition: int, size_bytes: int) -> None:
    """Sent, and acknowledged."""
    routing.own_bytes.add_sent(partition, size_bytes)
    routing.own_bytes.add_acknowledged(partition, size_bytes)


def _put(cache: SnapshotCache, held_mib: tuple[int, int], used_mib: tuple[int, int] | None = None) -> None:
    """A snapshot of now: partition 0 on broker 1, partition 1 on broker 2."""
    used = used_mib or held_mib
    cache.put(
        make_snapshot(
            [used[0] * MIB, used[1] * MIB],
            1000 * MIB,
            topics={"t": [(1,), (2,)]},
            stored_bytes={("t", 0): held_mib[0] * MIB, ("t", 1): held_mib[1] * MIB},
            taken_at_s=time.time(),
        )
    )


def test_records_that_brokers_have_but_nobody_reported_yet_count_once() -> None:
    cache = SnapshotCache(30.0)
    routing = _routing(cache)
    _put(cache, (0, 0))
    routing.refresh(100 * MIB)
    routing.own_bytes.add_sent(0, 30 * MIB)
    routing.own_bytes.add_sent(1, 30 * MIB)
    _put(cache, (30, 10))  # broker 1 has all of it, broker 2 a third; nothing is acknowledged

    route = routing.refresh(100 * MIB)

    assert abs(route.shares[0] - 0.5) < 1e-6


def test_what_the_topic_held_before_is_not_this_producers() -> None:
    cache = SnapshotCache(30.0)
    routing = _routing(cache)
    _put(cache, (50, 50))
    routing.refresh(100 * MIB)
    routing.own_bytes.add_sent(0, 30 * MIB)  # on its way: no broker has it
    _put(cache, (50, 50))

    route = routing.refresh(100 * MIB)

    assert abs(route.shares[0] - 0.35) < 1e-6  # 80 + 35 = 50 + 65


def test_growth_that_cannot_all_be_ones_own_is_not_believed() -> None:
    own = OwnBytes()
    own.add_sent(0, 100)
    own.add_sent(1, 100)
    assert own.since(time.monotonic(), {0: 100.0, 1: 40.0}) == {1: 60}
    assert own.since(time.monotonic(), {0: 100.0, 1: 400.0}) == {0: 100, 1: 100}


def test_a_producer_that_began_before_the_first_snapshot_takes_what_it_can_have_sent_for_its_own() -> None:
    cache = SnapshotCache(30.0)
    routing = _routing(cache)
    routing.own_bytes.add_sent(0, 20 * MIB)
    routing.own_bytes.add_sent(1, 20 * MIB)
    _put(cache, (20, 20))  # a new topic: all of it is this producer's

    route = routing.refresh(100 * MIB)

    assert abs(route.shares[0] - 0.5) < 1e-6
    routing.own_bytes.add_sent(1, 10 * MIB)
    assert abs(routing.refresh(100 * MIB).shares[0] - 0.55) < 1e-6


@pytest.fixture
def all_sent_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each snapshot is of a moment after all that was sent; the clock says only about that it is."""
    monkeypatch.setattr(OwnBytes, "sent_before", lambda self, _: self.total_sent)


def _shared(cache: SnapshotCache) -> TopicRouting:
    """Broker 1 holds 100 MiB more than broker 2, and this producer has sent 10 MiB of 40 that came."""
    routing = _routing(cache, is_shared=True)
    _put(cache, (0, 0), (150, 50))
    routing.refresh(60 * MIB)
    _send(routing, 1, 10 * MIB)
    _put(cache, (0, 40), (150, 90))
    return routing


@pytest.mark.usefixtures("all_sent_before")
def test_producers_that_know_their_own_rest_leave_room_for_that_of_others() -> None:
    route = _shared(SnapshotCache(30.0)).refresh(50 * MIB)

    assert abs(route.shares[0] - 0.35) < 1e-3  # 150 + 70 = 90 + 130: four times the own rest


def test_whose_share_is_not_known_yet_looks_ahead_as_if_nobody_knew_the_rest() -> None:
    cache = SnapshotCache(30.0)
    routing = _routing(cache, is_shared=True)
    _put(cache, (0, 0), (150, 50))
    unsaid = routing.refresh(None).shares
    assert routing.refresh(10 * MIB).shares == unsaid


def test_who_writes_alone_is_not_misled_by_what_is_on_its_way() -> None:
    part = OwnPart()
    part.add(0.0, 0, 0.0)
    part.add(0.1, 10, 900.0)  # brokers were slow to answer, and hold by then what was sent meanwhile
    assert part.of_all(5000, sent_bytes=1000) == 5000
    assert part.of_all(5000, sent_bytes=300) == 15000


@pytest.mark.usefixtures("all_sent_before")
def test_a_part_is_judged_by_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    routing = _shared(cache := SnapshotCache(30.0))
    routing.refresh(50 * MIB)
    later_s = time.monotonic() + 61.0
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    monkeypatch.setattr(routing.own_bytes, "_clock", lambda: later_s)
    _put(cache, (0, 40), (150, 90))
    routing.refresh(50 * MIB)
    _send(routing, 0, 10 * MIB)
    later_s += 1.0
    _put(cache, (10, 40), (160, 90))  # nobody else writes any more

    assert abs(routing.refresh(80 * MIB).shares[0] - 5 / 80) < 1e-3  # 160 + 5 = 90 + 75


def _rests_told(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    told: list[int | None] = []
    route = Router.route

    def listen(*arguments: Any, remaining_bytes: int | None, **known: Any) -> Route:
        told.append(remaining_bytes)
        return route(*arguments, remaining_bytes=remaining_bytes, **known)

    monkeypatch.setattr(Router, "route", listen)
    return told


@pytest.mark.usefixtures("all_sent_before")
def test_a_ratio_that_is_learnt_late_makes_nobodys_bytes_new(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SnapshotCache(30.0)
    routing = _routing(cache, is_shared=True)
    told = _rests_told(monkeypatch)
    _put(cache, (400, 400))
    routing.refresh(50 * MIB)
    _send(routing, 0, 10 * MIB)
    _put(cache, (403, 406))  # 3 MiB of ours, 6 of others
    routing.refresh(40 * MIB, expected_ratio=0.3)
    assert told[-1] == pytest.approx(120 * MIB)


@pytest.mark.usefixtures("all_sent_before")
def test_a_partition_that_had_no_leader_at_first_has_not_just_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SnapshotCache(30.0)
    routing = _routing(cache, is_shared=True)
    told = _rests_told(monkeypatch)
    _put(cache, (400, 400))
    whole = cache.latest()
    assert whole is not None
    leaderless = replace(whole.snapshot.topics["t"][1], leader_id=None)
    layout = {"t": {**whole.snapshot.topics["t"], 1: leaderless}}
    cache.put(replace(whole.snapshot, topics=layout))
    routing.refresh(50 * MIB)
    _send(routing, 0, 10 * MIB)
    _put(cache, (410, 400))
    routing.refresh(40 * MIB)
    assert told[-1] == 40 * MIB


def test_a_refused_record_costs_no_partition_its_turn() -> None:
    routing = TopicRouting("t", 3, router=None, cache=None, batch_bytes=MIB)
    stored = [0, 0, 0]
    for attempt in range(900):
        partition = routing.partition_for(MIB)
        if attempt % 3 or attempt % 7 == 0:
            routing.give_back(partition, MIB)
        else:
            stored[partition] += MIB
    assert max(stored) - min(stored) <= MIB
    assert routing.own_bytes.total_sent == sum(stored)


def test_a_refused_record_does_not_go_where_nothing_may_go_by_now() -> None:
    cache = SnapshotCache(30.0)
    routing = _routing(cache)
    _put(cache, (0, 0))
    routing.refresh(100 * MIB)
    routing.give_back(0, 0)
    _put(cache, (900, 0))
    routing.refresh(100 * MIB)
    assert routing.partition_for(MIB) == 1


def test_what_is_refused_of_a_turn_is_made_up_for() -> None:
    shares = {0: 0.5, 1: 0.3, 2: 0.2}
    routing = TopicRouting("t", 3, router=None, cache=None, batch_bytes=1000)
    routing._route = Route(shares, batch_bytes=1000)
    chance = random.Random(1)
    stored = [0, 0, 0]
    for _ in range(3000):
        size_bytes = chance.randint(500, 1500)
        partition = routing.partition_for(size_bytes)
        # Partition 0 is refused most of what it is sent.
        refused = chance.randint(0, size_bytes) if partition == 0 or chance.random() < 0.1 else 0
        if refused:
            routing.give_back(partition, refused)
        stored[partition] += size_bytes - refused
    total = sum(stored)
    assert routing.own_bytes.total_sent == total
    for partition, share in shares.items():
        assert abs(stored[partition] - share * total) < 5000


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_setting_the_machines_time_changes_no_decision(jump_s: float) -> None:
    cache = SnapshotCache(30.0)
    routing = _routing(cache)
    _put(cache, (0, 0))
    routing.refresh(100 * MIB)
    _send(routing, 0, 30 * MIB)
    snapshot = make_snapshot(
        [30 * MIB, 0],
        1000 * MIB,
        topics={"t": [(1,), (2,)]},
        stored_bytes={("t", 0): 0, ("t", 1): 0},  # so that only the clock tells whose bytes these are
        taken_at_s=time.time() + jump_s,
    )
    cache.put(snapshot, age_s=0.0)

    route = routing.refresh(70 * MIB)

    assert not route.is_fallback
    assert abs(route.shares[0] - 20 / 70) < 1e-3  # 30 + 20 = 0 + 50
