"""Invariants of what follows from what was heard, for any course of answers and silences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector.snapshot import PartitionSnapshot
from evenload.telemetry_collector.sources.observation import BrokerStorage, ClusterLayout, Observations

BROKERS = range(1, 5)
WALL_BEGIN_S = 1e9


class _Placed(NamedTuple):
    replica_ids: tuple[int, ...]
    leader_id: int | None
    isr_ids: tuple[int, ...] = ()

    def is_served_by(self, broker_id: int) -> bool:
        return self.leader_id is not None and broker_id in (self.leader_id, *self.isr_ids)


UNWATCHED = _Placed((), None)  # nobody watches the topic any more, or it is gone


class _Listed(NamedTuple):
    brokers: frozenset[int]
    placed: _Placed | None  # the only partition of the only topic; None: topics not asked


class _Heard(NamedTuple):
    broker_id: int
    used_bytes: int


class _Missed(NamedTuple):
    broker_id: int


_replicas = st.permutations(BROKERS).map(lambda p: tuple(p[:2]))
_placed = _replicas.flatmap(
    lambda replicas: st.builds(
        _Placed,
        st.just(replicas),
        st.none() | st.sampled_from(replicas),
        st.sampled_from([(), replicas[:1], replicas[1:], replicas]),
    )
)
events = st.lists(
    st.one_of(
        st.builds(_Listed, st.frozensets(st.sampled_from(BROKERS)), st.none() | st.just(UNWATCHED) | _placed),
        st.builds(_Heard, st.sampled_from(BROKERS), st.integers(0, 100)),
        st.builds(_Missed, st.sampled_from(BROKERS)),
    ),
    max_size=40,
)


def _layout(listed: _Listed) -> ClusterLayout:
    topics = None
    if listed.placed is not None:
        replica_ids, leader_id, isr_ids = listed.placed
        placed = PartitionSnapshot(leader_id=leader_id, replica_ids=replica_ids, isr_ids=isr_ids)
        topics = {} if listed.placed is UNWATCHED else {"t": {0: placed}}
    return ClusterLayout(cluster_id="c", racks=dict.fromkeys(listed.brokers), topics=topics)


def _storage(used_bytes: int) -> BrokerStorage:
    return BrokerStorage(
        capacity_bytes=100, used_bytes=used_bytes, usable_bytes=None, bytes_by_topic_partition=None
    )


@dataclass
class _Told:
    """What is known of one broker, as a person would keep it."""

    used_bytes: int | None = None
    heard_at_s: float = 0.0
    missed_at_s: list[float] = field(default_factory=list)  # since it was heard
    led: bool = False
    is_down: bool = False  # as a person would have said at some time since it was heard

    def look(self, *, is_listed: bool, is_deposed: bool) -> None:
        if self.missed_at_s:
            has_witness = not is_listed or (self.led and is_deposed)
            self.is_down |= self.used_bytes is None or has_witness or len(self.missed_at_s) >= 3


@given(events, st.frozensets(st.sampled_from(BROKERS)))
def test_a_snapshot_says_of_each_broker_what_was_heard_last_and_how_fresh_that_is(
    course: list[_Listed | _Heard | _Missed], configured: frozenset[int]
) -> None:
    observations = Observations(
        capacity_bytes_by_broker=dict.fromkeys(configured, 100), forget_broker_after_s=1e9
    )
    told: dict[int, _Told] = {}
    alive: frozenset[int] = frozenset()
    placed = UNWATCHED
    listed_at_s: float | None = None
    for now_s, event in enumerate(course):
        match event:
            case _Listed():
                observations.hear_layout(_layout(event), asked_at_s=now_s)
                alive = event.brokers
                if event.placed is not None:
                    placed = event.placed
                for broker_id in (
                    event.brokers | configured | set(event.placed.replica_ids if event.placed else ())
                ):
                    told.setdefault(broker_id, _Told())
                listed_at_s = now_s
            case _Heard(broker_id, used_bytes):
                observations.hear_storage(broker_id, _storage(used_bytes), asked_at_s=now_s, latency_s=0.1)
                if broker_id in told:
                    told[broker_id] = _Told(used_bytes, now_s, led=broker_id == placed.leader_id)
            case _Missed(broker_id):
                is_open = observations.miss(broker_id, asked_at_s=now_s)
                if broker_id in told:
                    told[broker_id].missed_at_s.append(now_s)
        for broker_id, one in told.items():
            is_deposed = broker_id in placed.replica_ids and not placed.is_served_by(broker_id)
            one.look(is_listed=broker_id in alive, is_deposed=is_deposed)
        if isinstance(event, _Missed):
            assert is_open == (event.broker_id in told and not told[event.broker_id].is_down)

        assembled = observations.assemble(now_s=now_s, wall_now_s=WALL_BEGIN_S + now_s)
        if listed_at_s is None or any(t.used_bytes is None and not t.missed_at_s for t in told.values()):
            assert assembled is None
        if assembled is None:
            continue
        snapshot = assembled.snapshot
        assert set(snapshot.brokers) == told.keys() == observations.broker_ids
        assert snapshot.taken_at_s == WALL_BEGIN_S + assembled.measured_at_s
        for broker_id, broker in snapshot.brokers.items():
            one = told[broker_id]
            assert broker.is_reachable == (not one.is_down)
            assert broker.used_bytes == (one.used_bytes or 0)
            if not one.missed_at_s:
                assert assembled.measured_at_s <= one.heard_at_s
            if one.is_down:
                assert broker.unreachable_since_s == WALL_BEGIN_S + one.missed_at_s[0]
        answering = [one.heard_at_s for one in told.values() if not one.missed_at_s]
        if answering:
            assert assembled.measured_at_s == min(listed_at_s, *answering)


@given(
    st.lists(
        st.sampled_from(["answers", "misses", "misses"])
        | st.tuples(st.sampled_from([True, True, False]), st.booleans()),
        max_size=60,
    )
)
def test_a_broker_is_left_after_three_misses_in_a_row_or_one_and_the_clusters_word_and_never_before(
    course: list[str | tuple[bool, bool]],
) -> None:
    observations = Observations()
    observations.hear_layout(_layout(_Listed(frozenset({1, 2}), _Placed((1, 2), 1))), asked_at_s=0.0)
    for broker_id in (1, 2):
        observations.hear_storage(broker_id, _storage(5), asked_at_s=0.0, latency_s=0.1)
    is_listed = leads = True
    told = _Told(5, 0.0, led=True)
    for now_s, event in enumerate(course, start=1):
        if event == "answers":
            observations.hear_storage(1, _storage(5), asked_at_s=now_s, latency_s=0.1)
            told = _Told(5, now_s, led=leads)
        elif event == "misses":
            observations.miss(1, asked_at_s=now_s)
            told.missed_at_s.append(now_s)
        else:
            is_listed, leads = event  # type: ignore[misc]  # the two words are the only strings
            listed = _Listed(frozenset({1, 2} if is_listed else {2}), _Placed((1, 2), 1 if leads else 2))
            observations.hear_layout(_layout(listed), asked_at_s=now_s)
        told.look(is_listed=is_listed, is_deposed=not leads)
        assembled = observations.assemble(now_s=now_s, wall_now_s=now_s)
        assert assembled is not None
        assert assembled.snapshot.brokers[1].is_reachable == (not told.is_down)
        assert assembled.snapshot.brokers[2].is_reachable


@pytest.mark.parametrize(
    ("now", "is_reachable"),
    [
        # Broker 1 led partition 0 of t when it last answered, and nobody knows what it leads beside that.
        pytest.param({"t": _Placed((1, 2), 1, (1, 2))}, True, id="it leads"),
        pytest.param({"t": _Placed((1, 2), 2, (2,))}, False, id="another leads, and it isn't in sync"),
        pytest.param({"t": _Placed((1, 2), None, (1,))}, False, id="nobody leads"),
        pytest.param({"t": _Placed((1, 2), 2, (1, 2))}, True, id="another leads, and it is in sync"),
        pytest.param({"t": _Placed((2, 3), 2, (2, 3))}, True, id="its copy was moved away"),
        pytest.param({}, True, id="the topic isn't watched any more"),
        pytest.param({"u": _Placed((2, 3), 2, (2, 3))}, True, id="another topic is watched"),
        pytest.param(
            {"t": _Placed((1, 2), 2, (2,)), "u": _Placed((2, 1), 2, (2, 1))}, True, id="in sync elsewhere"
        ),
    ],
)
def test_a_missed_answer_is_enough_only_if_the_cluster_took_from_a_broker_what_it_had_led(
    now: dict[str, _Placed], is_reachable: bool
) -> None:
    def layout(topics: dict[str, _Placed]) -> ClusterLayout:
        return ClusterLayout(
            cluster_id="c",
            racks={1: None, 2: None, 3: None},
            topics={
                name: {
                    0: PartitionSnapshot(
                        leader_id=at.leader_id, replica_ids=at.replica_ids, isr_ids=at.isr_ids
                    )
                }
                for name, at in topics.items()
            },
        )

    observations = Observations()
    observations.hear_layout(layout({"t": _Placed((1, 2), 1, (1, 2))}), asked_at_s=0.0)
    for broker_id in (1, 2, 3):
        observations.hear_storage(broker_id, _storage(5), asked_at_s=0.0, latency_s=0.1)
    observations.hear_layout(layout(now), asked_at_s=1.0)
    assert observations.miss(1, asked_at_s=1.0) is is_reachable
    assembled = observations.assemble(now_s=1.0, wall_now_s=1.0)
    assert assembled is not None
    assert assembled.snapshot.brokers[1].is_reachable is is_reachable
