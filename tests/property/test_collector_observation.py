"""Invariants of what follows from what was heard, for any course of answers and silences."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from telemetry_collector.observation import BrokerStorage, ClusterLayout, Observations
from telemetry_collector.snapshot import PartitionSnapshot

BROKERS = range(1, 5)
WALL_BEGIN_S = 1e9


class _Listed(NamedTuple):
    brokers: frozenset[int]
    replica_ids: tuple[int, ...] | None  # of the only partition of the only topic; None: topics not asked


class _Heard(NamedTuple):
    broker_id: int
    used_bytes: int


class _Missed(NamedTuple):
    broker_id: int


events = st.lists(
    st.one_of(
        st.builds(
            _Listed,
            st.frozensets(st.sampled_from(BROKERS)),
            st.none() | st.permutations(BROKERS).map(lambda p: tuple(p[:2])),
        ),
        st.builds(_Heard, st.sampled_from(BROKERS), st.integers(0, 100)),
        st.builds(_Missed, st.sampled_from(BROKERS)),
    ),
    max_size=40,
)


def _layout(listed: _Listed) -> ClusterLayout:
    topics = None
    if listed.replica_ids is not None:
        placed = PartitionSnapshot(leader_id=None, replica_ids=listed.replica_ids, isr_ids=())
        topics = {"t": {0: placed}}
    return ClusterLayout(cluster_id="c", racks=dict.fromkeys(listed.brokers), topics=topics)


def _storage(used_bytes: int) -> BrokerStorage:
    return BrokerStorage(
        capacity_bytes=100, used_bytes=used_bytes, usable_bytes=None, bytes_by_topic_partition=None
    )


@given(events, st.frozensets(st.sampled_from(BROKERS)))
def test_a_snapshot_says_of_each_broker_what_was_heard_last_and_how_fresh_that_is(
    course: list[_Listed | _Heard | _Missed], configured: frozenset[int]
) -> None:
    observations = Observations(
        capacity_bytes_by_broker=dict.fromkeys(configured, 100), forget_broker_after_s=1e9
    )
    latest: dict[int, _Heard | _Missed] = {}  # the outcome that counts
    heard_at_s: dict[int, float] = {}
    silent_since_s: dict[int, float] = {}
    known: set[int] = set()
    listed_at_s: float | None = None
    for now_s, event in enumerate(course):
        match event:
            case _Listed():
                observations.hear_layout(_layout(event), asked_at_s=now_s)
                known |= event.brokers | configured | set(event.replica_ids or ())
                listed_at_s = now_s
            case _Heard(broker_id, used_bytes):
                observations.hear_storage(broker_id, _storage(used_bytes), asked_at_s=now_s, latency_s=0.1)
                if broker_id in known:
                    latest[broker_id] = event
                    heard_at_s[broker_id] = now_s
                    silent_since_s.pop(broker_id, None)
            case _Missed(broker_id):
                observations.miss(broker_id, asked_at_s=now_s)
                if broker_id in known:
                    latest[broker_id] = event
                    silent_since_s.setdefault(broker_id, now_s)

        assembled = observations.assemble(now_s=now_s, wall_now_s=WALL_BEGIN_S + now_s)
        if listed_at_s is None or known - latest.keys():
            assert assembled is None
        if assembled is None:
            continue
        snapshot = assembled.snapshot
        assert set(snapshot.brokers) == known == observations.broker_ids
        assert snapshot.taken_at_s == WALL_BEGIN_S + assembled.measured_at_s
        for broker_id, broker in snapshot.brokers.items():
            outcome = latest[broker_id]
            assert broker.is_reachable == isinstance(outcome, _Heard)
            if isinstance(outcome, _Heard):
                assert broker.used_bytes == outcome.used_bytes
                assert assembled.measured_at_s <= heard_at_s[broker_id]
            else:
                assert broker.unreachable_since_s == WALL_BEGIN_S + silent_since_s[broker_id]
        reachable = [heard_at_s[b] for b, outcome in latest.items() if isinstance(outcome, _Heard)]
        if reachable:
            assert assembled.measured_at_s == min(listed_at_s, *reachable)
