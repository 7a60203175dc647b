"""What becomes of a snapshot whose brokers have several volumes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from evenload.router.volumes import broker_of, by_volume
from evenload.telemetry_collector.snapshot import ClusterSnapshot, LogDirSnapshot, TopicPartition
from evenload.telemetry_collector.testing import make_snapshot


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    """Up to 4 brokers, some with 2 or 3 log dirs; where a replica of topic "t" lies may be unknown."""
    num_brokers = draw(st.integers(1, 4))
    ids = list(range(1, num_brokers + 1))
    layout = [
        tuple(draw(st.permutations(ids))[: draw(st.integers(1, min(3, num_brokers)))])
        for _ in range(draw(st.integers(1, 8)))
    ]
    stored = {("t", number): draw(st.integers(0, 1000)) for number in range(len(layout))}
    snapshot = make_snapshot([0] * num_brokers, topics={"t": layout}, stored_bytes=stored)
    brokers = {}
    for broker_id, broker in snapshot.brokers.items():
        paths = draw(st.sampled_from([[], ["/a", "/b"], ["/a", "/b", "/c"]]))
        held: dict[str, list[TopicPartition]] = {path: [] for path in paths}
        for key in broker.bytes_by_topic_partition:
            if paths and draw(st.integers(0, 9)):
                held[draw(st.sampled_from(paths))].append(key)
        log_dirs = {
            path: LogDirSnapshot(
                capacity_bytes=100_000,
                used_bytes=draw(st.integers(0, 100_000)),
                topic_partitions=frozenset(keys),
            )
            for path, keys in held.items()
        }
        used = sum(each.used_bytes for each in log_dirs.values())
        announced = draw(st.integers(0, 10_000))
        brokers[broker_id] = replace(broker, log_dirs=log_dirs, used_bytes=used, announced_bytes=announced)
    return replace(snapshot, brokers=brokers)


@given(snapshots())
def test_a_broker_holds_over_its_volumes_what_it_held(snapshot: ClusterSnapshot) -> None:
    divided = by_volume(snapshot, "t")
    for broker_id, broker in snapshot.brokers.items():
        volumes = [v for place_id, v in divided.brokers.items() if broker_of(place_id) == broker_id]
        assert len(volumes) == max(1, len(broker.log_dirs))
        assert sum(v.used_bytes for v in volumes) == broker.used_bytes
        assert sum(v.announced_bytes for v in volumes) == broker.announced_bytes


@given(snapshots())
def test_each_replica_is_on_one_volume_of_its_broker(snapshot: ClusterSnapshot) -> None:
    divided = by_volume(snapshot, "t")
    for number, placed in snapshot.topics["t"].items():
        place_ids = divided.topics["t"][number].replica_ids
        assert [broker_of(place_id) for place_id in place_ids] == list(placed.replica_ids)
        assert set(place_ids) <= set(divided.brokers)
        for place_id, broker_id in zip(place_ids, placed.replica_ids, strict=True):
            key = TopicPartition("t", number)
            log_dirs = snapshot.brokers[broker_id].log_dirs
            if any(key in each.topic_partitions for each in log_dirs.values()):
                assert key in divided.brokers[place_id].bytes_by_topic_partition


def test_a_snapshot_without_several_volumes_comes_back_as_it_is() -> None:
    snapshot = make_snapshot([1, 2], topics={"t": [(1,), (2,)]})
    assert by_volume(snapshot, "t") is snapshot
