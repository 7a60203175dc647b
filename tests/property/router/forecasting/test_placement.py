from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenload.router.errors import NotEnoughBrokersError
from evenload.router.forecasting.forecast import forecast, planned_layout
from evenload.router.forecasting.placement import place_partitions
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.testing import make_snapshot


@st.composite
def clusters(draw: st.DrawFn, *, has_racks: bool = True, brokers_max: int = 9) -> ClusterSnapshot:
    num_brokers = draw(st.integers(1, brokers_max))
    racks = st.sampled_from([None, "a", "b", "c"]) if has_racks else st.none()

    def each(values: st.SearchStrategy[int | None]) -> list[int | None]:
        return draw(st.lists(values, min_size=num_brokers, max_size=num_brokers))

    return make_snapshot(
        [used or 0 for used in each(st.integers(0, 1100))],
        each(st.sampled_from([1000, 2000, 4000, 0, None])),
        racks=draw(st.lists(racks, min_size=num_brokers, max_size=num_brokers)),
        unreachable=draw(st.sets(st.integers(1, num_brokers), max_size=num_brokers // 3)),
    )


def usable(snapshot: ClusterSnapshot) -> set[int]:
    return {broker_id for broker_id, broker in snapshot.brokers.items() if broker.is_reachable}


loads = st.one_of(st.none(), st.integers(0, 10_000))


@settings(max_examples=200)
@given(clusters(), st.integers(1, 40), st.integers(1, 4), loads)
def test_replicas_are_on_distinct_reachable_brokers_and_as_many_racks_as_can_be(
    snapshot: ClusterSnapshot, num_partitions: int, replication: int, total_bytes: int | None
) -> None:
    arguments = {"num_partitions": num_partitions, "replication": replication, "total_bytes": total_bytes}
    if len(usable(snapshot)) < replication:
        with pytest.raises(NotEnoughBrokersError):
            place_partitions(snapshot, **arguments)  # type: ignore[arg-type]
        return
    placed = place_partitions(snapshot, **arguments)  # type: ignore[arg-type]
    assert len(placed) == num_partitions
    rack = {i: snapshot.brokers[i].rack or f"only broker {i}" for i in usable(snapshot)}
    for replica_ids in placed:
        assert len(set(replica_ids)) == replication
        assert set(replica_ids) <= usable(snapshot)
        assert len({rack[i] for i in replica_ids}) == min(replication, len(set(rack.values())))


@settings(max_examples=100)
@given(clusters(), st.integers(1, 40), loads)
def test_with_enough_partitions_every_broker_leads_one(
    snapshot: ClusterSnapshot, num_partitions: int, total_bytes: int | None
) -> None:
    placed = place_partitions(snapshot, num_partitions=num_partitions, replication=1, total_bytes=total_bytes)
    leaders = {replica_ids[0] for replica_ids in placed}
    assert len(leaders) <= num_partitions
    if num_partitions >= len(usable(snapshot)):
        assert leaders == usable(snapshot)


@settings(max_examples=100)
@given(clusters(), st.integers(1, 40), st.integers(1, 3), loads)
def test_where_reading_is_to_be_even_every_broker_leads_as_many(
    snapshot: ClusterSnapshot, num_partitions: int, replication: int, total_bytes: int | None
) -> None:
    assume(len(usable(snapshot)) >= replication)
    placed = place_partitions(
        snapshot,
        num_partitions=num_partitions,
        replication=replication,
        total_bytes=total_bytes,
        evens_leaders=True,
    )
    led = Counter(dict.fromkeys(usable(snapshot), 0))
    led.update(replica_ids[0] for replica_ids in placed)
    assert max(led.values()) - min(led.values()) <= 1


@settings(max_examples=50)
@given(clusters(), st.integers(1, 20), loads)
def test_the_same_cluster_has_the_same_placement(
    snapshot: ClusterSnapshot, num_partitions: int, total_bytes: int | None
) -> None:
    one, two = (
        place_partitions(snapshot, num_partitions=num_partitions, replication=1, total_bytes=total_bytes)
        for _ in range(2)
    )
    assert one == two


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.sampled_from([1, 2, 4])), min_size=3, max_size=9),
    st.integers(1, 3),
    st.sampled_from([0.3, 0.7, 1.0]),
)
def test_routing_over_a_placement_comes_within_a_point_of_what_is_possible_anywhere(
    brokers: list[tuple[int, int]], replication: int, part_of_free: float
) -> None:
    mib = 1 << 20
    capacity = [size * 1000 * mib for _, size in brokers]
    used = [percent * of // 100 for (percent, _), of in zip(brokers, capacity, strict=True)]
    snapshot = make_snapshot(used, capacity)
    total_bytes = int(part_of_free * (sum(capacity) - sum(used)) / replication)
    placed = place_partitions(
        snapshot, num_partitions=12 * len(brokers), replication=replication, total_bytes=total_bytes
    )
    told = forecast(snapshot, planned_layout(placed), total_bytes=total_bytes)
    assert max(told.best.values()) <= max(told.anywhere.values()) + 0.01
