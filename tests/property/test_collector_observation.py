"""Invariants of what follows from what was heard, for any course of answers and silences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from telemetry_collector.observation import BrokerStorage, ClusterLayout, Observations
from telemetry_collector.snapshot import PartitionSnapshot

BROKERS = range(1, 5)
WALL_BEGIN_S = 1e9


class _Placed(NamedTuple):
    replica_ids: tuple[int, ...]
    leader_id: int | None


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
    lambda replicas: st.builds(_Placed, st.just(replicas), st.none() | st.sampled_from(replicas))
)
events = st.lists(
    st.one_of(
        st.builds(_Listed, st.frozensets(st.sampled_from(BROKERS)), st.none() | _placed),
        st.builds(_Heard, st.sampled_from(BROKERS), st.integers(0, 100)),
        st.builds(_Missed, st.sampled_from(BROKERS)),
    ),
    max_size=40,
)


def _layout(listed: _Listed) -> ClusterLayout:
    topics = None
    if listed.placed is not None:
        replica_ids, leader_id = listed.placed
        topics = {"t": {0: PartitionSnapshot(leader_id=leader_id, replica_ids=replica_ids, isr_ids=())}}
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

    def look(self, *, is_listed: bool, leads: bool) -> None:
        if self.missed_at_s:
            has_witness = not is_listed or (self.led and not leads)
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
    leader_id: int | None = None
    listed_at_s: float | None = None
    for now_s, event in enumerate(course):
        match event:
            case _Listed():
                observations.hear_layout(_layout(event), asked_at_s=now_s)
                alive = event.brokers
                if event.placed is not None:
                    leader_id = event.placed.leader_id
                for broker_id in (
                    event.brokers | configured | set(event.placed.replica_ids if event.placed else ())
                ):
                    told.setdefault(broker_id, _Told())
                listed_at_s = now_s
            case _Heard(broker_id, used_bytes):
                observations.hear_storage(broker_id, _storage(used_bytes), asked_at_s=now_s, latency_s=0.1)
                if broker_id in told:
                    told[broker_id] = _Told(used_bytes, now_s, led=broker_id == leader_id)
            case _Missed(broker_id):
                is_open = observations.miss(broker_id, asked_at_s=now_s)
                if broker_id in told:
                    told[broker_id].missed_at_s.append(now_s)
        for broker_id, one in told.items():
            one.look(is_listed=broker_id in alive, leads=broker_id == leader_id)
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
        told.look(is_listed=is_listed, leads=leads)
        assembled = observations.assemble(now_s=now_s, wall_now_s=now_s)
        assert assembled is not None
        assert assembled.snapshot.brokers[1].is_reachable == (not told.is_down)
        assert assembled.snapshot.brokers[2].is_reachable
