"""The simulation of large clusters, on small ones: its yardstick, its books, its verdict."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.optimum import best_utilisation
from benchmarks.results import write_json, write_svg
from benchmarks.scale.clusters import REPLICATION, STATES, Size, make_cluster, whole_snapshot
from benchmarks.scale.decisions import compare_random, compare_with_optimum, time_decision
from benchmarks.scale.large_optimum import best_levels
from benchmarks.scale.memory import measure_memory
from benchmarks.scale.report import Result, document, draw, passes, tables
from benchmarks.scale.simulation import Load, Simulated, Simulation, simulate
from evenload.kafka_plugin.routing.own_bytes import OwnPart

SMALL = Size(num_brokers=20, num_partitions=60, num_all_partitions=300)
LOAD = Load(num_producers=6, num_periods=3, period_fraction=0.05, turns_per_s=600)


@pytest.mark.parametrize("seed", range(12))
def test_the_large_optimum_is_the_one_that_asks_of_each_broker(seed: int) -> None:
    draw = np.random.default_rng(seed)
    num_brokers, copies = int(draw.integers(4, 9)), 2 + seed % 2
    held, capacity = draw.integers(0, 100, num_brokers), draw.choice([100, 200, 400], num_brokers)
    payload = float(draw.choice([5, 50, 300]))
    sets = np.array([draw.choice(num_brokers, copies, replace=False) for _ in range(draw.integers(2, 14))])
    slow = best_utilisation(
        other_bytes=dict(enumerate(held.tolist())),
        capacity_bytes=dict(enumerate(capacity.tolist())),
        replica_sets=sets.tolist(),
        payload_bytes=payload,
    )
    assert best_levels(held / capacity, payload / capacity, sets) == pytest.approx(
        list(slow.values()), abs=2e-4
    )


def test_the_work_of_a_decision_grows_no_faster_than_the_topic(
    count_lines: Callable[[Callable[[], object]], int],
) -> None:
    def decide(num_brokers: int) -> None:
        num_partitions = 3 * num_brokers
        size = Size(num_brokers=num_brokers, num_partitions=num_partitions, num_all_partitions=num_partitions)
        assert time_decision("even", size, 1).processor_s > 0

    decide(10)  # what is done once is done
    assert count_lines(lambda: decide(1_000)) < 12 * count_lines(lambda: decide(100))


@pytest.mark.parametrize("state", STATES)
def test_a_cluster_follows_from_its_seed_and_is_its_snapshot(state: str) -> None:
    cluster, same = make_cluster(state, SMALL, 3), make_cluster(state, SMALL, 3)
    assert cluster.layout == same.layout
    assert (cluster.used_bytes == same.used_bytes).all()
    snapshot = cluster.snapshot(cluster.used_bytes, 0.0)
    assert [broker.used_bytes for broker in snapshot.brokers.values()] == cluster.used_bytes.tolist()
    dead = {broker_id for broker_id, broker in snapshot.brokers.items() if not broker.is_reachable}
    assert dead == cluster.dead_ids
    assert all(placed.leader_id not in dead for placed in cluster.layout.values())
    assert all(len(set(placed.replica_ids)) == REPLICATION for placed in cluster.layout.values())


def test_a_whole_snapshot_holds_every_copy() -> None:
    snapshot = whole_snapshot(make_cluster("even", SMALL, 1), SMALL, 1)
    assert sum(map(len, snapshot.topics.values())) == SMALL.num_all_partitions
    copies = sum(len(broker.bytes_by_topic_partition) for broker in snapshot.brokers.values())
    assert copies == REPLICATION * SMALL.num_all_partitions


@functools.cache  # takes seconds, and two tests look at the same
def simulated(state: str) -> Simulated:
    return simulate(state, SMALL, LOAD, 1)


@pytest.mark.parametrize("state", STATES)
def test_producers_with_delayed_snapshots_level_without_herding(state: str) -> None:
    found = simulated(state)
    assert found.spreads[-1] < max(found.spread_before, found.best_spread + 0.01)
    assert found.spreads[-1] <= found.undelayed_spreads[-1] + 0.05
    assert max(found.herd_ratios) <= 2.0
    assert found.num_decisions >= LOAD.num_producers * LOAD.num_periods


@pytest.mark.parametrize("state", STATES)
def test_producers_that_know_their_own_rest_level_without_herding(state: str) -> None:
    load = replace(LOAD, is_rest_known=True)
    known, unknown = simulate(state, SMALL, load, 1), simulated(state)
    assert max(known.herd_ratios) <= 2.0
    assert known.spreads[-1] <= unknown.spreads[-1] + 0.01


def test_who_looks_at_its_own_rest_alone_is_seen_to_herd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnPart, "of_all", lambda _, remaining_bytes, __: remaining_bytes)
    load = replace(LOAD, num_producers=20, is_rest_known=True)
    assert max(simulate("20 joined empty", SMALL, load, 1).herd_ratios) > 2.0


def test_all_that_is_sent_is_written_on_every_copy_and_counted_by_its_producer() -> None:
    cluster = make_cluster("even", SMALL, 1)
    simulation = Simulation(cluster, LOAD, 1)
    periods = simulation.run()
    capacity = cluster.capacity_bytes.sum()
    written = LOAD.num_periods * LOAD.period_fraction * capacity
    assert sum(period.got_bytes.sum() for period in periods) == pytest.approx(written, rel=1e-3)
    assert (simulation.used_bytes - cluster.used_bytes).sum() == pytest.approx(written, rel=1e-3)
    assert all(period.due_bytes.sum() == pytest.approx(period.got_bytes.sum()) for period in periods)


def test_who_follows_the_emptiest_broker_is_seen_to_herd(monkeypatch: pytest.MonkeyPatch) -> None:
    def follow_the_emptiest(self: Simulation, producer: object) -> None:
        fullness = producer.used_bytes[self.cluster.replicas].max(axis=1)  # type: ignore[attr-defined]
        self.written_bytes[int(fullness.argmin())] += self.turn_bytes * LOAD.turns_per_s // LOAD.num_producers

    monkeypatch.setattr(Simulation, "_send", follow_the_emptiest)
    periods = Simulation(make_cluster("even", SMALL, 1), LOAD, 1).run()
    assert max(period.herd_ratio for period in periods) > 2.0


def test_a_result_is_written_and_a_goal_that_is_missed_is_told(tmp_path: Path) -> None:
    result = _result()
    assert passes(result)
    write_json(tmp_path / "scale.json", document(result))
    read = json.loads((tmp_path / "scale.json").read_text())
    assert all(read["goals"].values())
    assert len(read["simulated"]) == 1
    write_svg(tmp_path / "scale.svg", draw(result))
    slow = replace(result, timings=[replace(result.timings[0], seconds=0.6)])
    herd = replace(result, simulated=[replace(result.simulated[0], herd_ratios=[1.0, 2.1])])
    uneven = replace(result, compared=[replace(result.compared[0], line_points=0.6)])
    assert not any(map(passes, (slow, herd, uneven)))
    assert "FAILS" in _printed(slow)
    assert "FAILS" not in _printed(result)


def _result() -> Result:
    return Result(
        size=SMALL,
        timings=[replace(time_decision("even", SMALL, 1), seconds=0.1)],
        memory=measure_memory(SMALL, 1),
        compared=[compare_with_optimum("20 joined empty", SMALL, 1, remaining) for remaining in (None, 0.3)],
        random=[],
        simulated=[simulate("even", SMALL, replace(LOAD, num_periods=2), 1)],
    )


def _printed(result: Result) -> str:
    from rich.console import Console

    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(tables(result))
    return captured.get()


def test_shares_for_many_sets_have_their_line_near_the_optimum() -> None:
    found = compare_random(3)
    assert 0 <= found.line_points <= 0.5
    assert found.spread_points <= 0.5


def test_dead_brokers_get_nothing() -> None:
    cluster = make_cluster("10 dead", SMALL, 1)
    simulation = Simulation(cluster, LOAD, 1)
    simulation.run()
    assert (simulation.used_bytes == cluster.used_bytes)[list(cluster.dead_ids)].all()
