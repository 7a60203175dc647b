"""The baselines do what their names say."""

from __future__ import annotations

from collections import Counter

from benchmarks.strategies import by_evenload, by_free_capacity
from benchmarks.writers import by_shares
from evenload.telemetry_collector.testing import make_snapshot


def test_static_shares_are_kept_in_bytes_to_within_a_record() -> None:
    choose = by_shares([2.0, 2.0, 1.0])
    sent: Counter[int] = Counter()
    for number in range(1000):
        size_bytes = 1 + number % 7
        sent[choose(size_bytes)] += size_bytes
    total = sum(sent.values())
    assert abs(sent[0] - 0.4 * total) <= 7
    assert abs(sent[2] - 0.2 * total) <= 7


def test_placement_by_free_capacity_gives_each_broker_partitions_in_proportion() -> None:
    snapshot = make_snapshot([0, 100, 150], [200, 200, 200])  # free: 200, 100, 50
    assignment = by_free_capacity(snapshot, 1, 0)
    assert len(assignment) == 15
    led = Counter(replicas[0] for replicas in assignment)
    assert led[1] in (8, 9)
    assert led[2] in (4, 5)
    assert led[3] == 2


def test_copies_are_on_different_brokers_and_in_proportion_as_far_as_that_goes() -> None:
    snapshot = make_snapshot([0, 0, 0, 0], [400, 200, 200, 200])
    assignment = by_free_capacity(snapshot, 2, 0)
    held = Counter(broker for replicas in assignment for broker in replicas)
    assert all(len(set(replicas)) == 2 for replicas in assignment)
    assert held[1] in (15, 16)
    assert max(held[b] for b in (2, 3, 4)) - min(held[b] for b in (2, 3, 4)) <= 1


def test_evenloads_placement_has_as_many_partitions_to_compare_with() -> None:
    snapshot = make_snapshot([0, 100, 150], [200, 200, 200])
    assert len(by_evenload(snapshot, 2, 1000)) == len(by_free_capacity(snapshot, 2, 1000)) == 15
