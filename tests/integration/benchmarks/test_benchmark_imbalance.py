"""The imbalance benchmark on a small scale: real brokers, one that is added, and moves under a throttle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.imbalance.moving import THROTTLED, measure_moves
from benchmarks.imbalance.writing import ADDED_BROKER, CONTENDERS, LEVEL, write_all
from benchmarks.layouts import MIB, Layout
from benchmarks.stage import BROKER_PROPERTIES
from benchmarks.strategies import EVENLOAD
from evenload.local_cluster import LocalCluster, temporary_cluster

SMALL = Layout(
    name="small",
    capacity_mib=(100, 100, 100, 100),
    assignment=[(1,), (2,), (3,)],
    held_mib={1: 30, 2: 15, 3: 10},
)


@pytest.fixture(scope="module")
def four_brokers() -> Iterator[LocalCluster]:
    """Brokers of its own: one of them is killed and started."""
    with temporary_cluster(num_brokers=4, broker_properties=BROKER_PROPERTIES) as cluster:
        yield cluster


@pytest.mark.torture
def test_evenload_finds_the_added_broker_and_gets_level_where_round_robin_does_not(
    four_brokers: LocalCluster,
) -> None:
    contenders = [each for each in CONTENDERS if each.name in (EVENLOAD, "round robin")]
    begun: list[str] = []
    ours, even = write_all(four_brokers, SMALL, contenders, records_per_s=100, started=begun.append)

    assert begun == [ours.contender, even.contender] == [EVENLOAD, "round robin"]
    assert ours.least_bytes == pytest.approx((14 + 19 + 29) * MIB, rel=0.01)
    assert 0 < ours.added_bytes < ours.least_bytes
    added = [each.utilisation[ADDED_BROKER] for each in ours.standings]
    assert added[0] == 0
    assert ours.found_s is not None
    assert ours.level_bytes is not None
    assert ours.standings[-1].spread < LEVEL
    assert ours.over_least is not None
    assert 0.99 < ours.over_least < 2  # of so little, what is written before it is noticed is a large part
    assert even.level_bytes is None
    assert even.standings[-1].written_bytes == pytest.approx(ours.level_bytes, rel=0.05)


@pytest.mark.torture
def test_moves_level_the_skew_with_hardly_more_than_the_least(four_brokers: LocalCluster) -> None:
    (moved,) = measure_moves(four_brokers, [THROTTLED], capacity_mib=100, started=lambda _: None)
    assert moved.spread_before == pytest.approx(0.7, abs=0.02)
    assert moved.spread_after < 0.2  # what the producer adds meanwhile is much, of such small brokers
    assert 1.0 <= moved.moved_bytes / moved.least_bytes < 1.2
    assert moved.took_s > 0
    assert len(moved.quiet_s) > 1000
    assert len(moved.staying_s) + len(moved.moving_s) == pytest.approx(1000 * moved.took_s, abs=50)
    assert min(moved.quiet_s) > 0
