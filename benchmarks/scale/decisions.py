"""How long the router takes to decide a topic's shares, and how good they are.

What is timed is `Router.route` as a producer calls it when a snapshot comes: with bytes of its own in every
partition, and a route that it follows already. Levels are compared with those of the exact optimum
(large_optimum.py) for the same bytes to come. Three numbers say how they differ: the *line* (the highest
level of a broker that gets anything; what is higher was so before), the *spread* (highest less lowest), and,
rank by rank from the highest down, the mean and the largest difference. The goal is on the first two. A
single broker far down may differ by more: a hundredth of a point more at the line can free points below it.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.outcome import POINT
from benchmarks.scale.clusters import REPLICATION, TOPIC, Cluster, Numbers, Size, make_cluster
from benchmarks.scale.large_optimum import best_levels
from benchmarks.scale.simulation import new_router, shares_by_partition
from evenload.router.config import RouterConfig
from evenload.router.min_max import MinMaxProblem, level
from evenload.router.router import Router

OWN_BYTES = 1_000_000
REPETITIONS = 7
NOW_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Of one decision: medians, in seconds, of time passed and of processor time; and of the first one."""

    state: str
    seconds: float
    processor_s: float
    first_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the router's shares leave above the optimum, in points.

    Attributes:
        state: Of the cluster.
        remaining: Part of the capacity that is to come, all copies counted; None where nobody knows.
        line_points: By how much the highest level of who gets anything is above the optimum's.
        spread_points: By how much the spread is.
        mean_points: The mean difference by rank, either way.
        worst_points: The largest difference by rank, either way.
        optimum_s: Processor time that the optimum took, in seconds.
    """

    state: str
    remaining: float | None
    line_points: float
    spread_points: float
    mean_points: float
    worst_points: float
    optimum_s: float


def time_decision(state: str, size: Size, seed: int) -> Timing:
    """Time the decisions of one producer that has sent to every partition."""
    cluster = make_cluster(state, size, seed)
    snapshot = cluster.snapshot(cluster.used_bytes, 0.0)
    router, route = Router(start=0.5), None
    own_bytes = dict.fromkeys(range(size.num_partitions), OWN_BYTES)
    passed, processor = [], []
    for _ in range(1 + REPETITIONS):
        begun_s, begun_processor_s = time.perf_counter(), time.process_time()
        route = router.route(
            snapshot,
            TOPIC,
            num_partitions=size.num_partitions,
            remaining_bytes=None,
            now_s=NOW_S,
            own_bytes=own_bytes,
            previous=route,
        )
        passed.append(time.perf_counter() - begun_s)
        processor.append(time.process_time() - begun_processor_s)
        route.partition_for(1)
    return Timing(
        state=state,
        seconds=statistics.median(passed[1:]),
        processor_s=statistics.median(processor[1:]),
        first_s=passed[0],
    )


def compare_with_optimum(state: str, size: Size, seed: int, remaining: float | None) -> Comparison:
    """What the router decides for a cluster, beside the optimum; a stream's without bounds."""
    cluster = make_cluster(state, size, seed)
    payload = payload_bytes(cluster, remaining)
    route = new_router(RouterConfig(safe_streams=False)).route(
        cluster.snapshot(cluster.used_bytes, 0.0),
        TOPIC,
        num_partitions=size.num_partitions,
        remaining_bytes=None if remaining is None else int(payload),
        now_s=NOW_S,
    )
    added = cluster.added_bytes(payload * shares_by_partition(route, size.num_partitions))
    start, gain = cluster.used_bytes / cluster.capacity_bytes, payload / cluster.capacity_bytes
    reached = start + added / cluster.capacity_bytes
    return _compare(state, remaining, reached, start, gain, cluster.replicas[cluster.writable])


def payload_bytes(cluster: Cluster, remaining: float | None) -> float:
    """Bytes to come, one copy: that part of the capacity with all copies, or what the router assumes."""
    capacity = float(cluster.capacity_bytes.sum())
    if remaining is None:
        return RouterConfig().horizon_fraction * capacity
    return remaining * capacity / REPLICATION


def compare_random(seed: int) -> Comparison:
    """Shares for a random cluster of 150 to 400 brokers, too many for the router's exact way."""
    draw = np.random.default_rng(seed)
    num_brokers, num_copies = int(draw.integers(150, 400)), int(draw.integers(2, 4))
    num_sets = num_brokers * int(draw.integers(3, 6))
    sets = np.array([draw.choice(num_brokers, num_copies, replace=False) for _ in range(num_sets)])
    capacity = draw.choice([1.0, 2.0, 4.0][: int(draw.integers(1, 4))], num_brokers)
    start = draw.uniform(0.3, 0.3 + draw.choice([0.02, 0.1, 0.4]), num_brokers)
    to_come = float(draw.choice([0.05, 0.15, 0.3])) * capacity.sum() / num_copies
    problem = MinMaxProblem(start, to_come / capacity, tuple(map(tuple, sets.tolist())), np.ones(num_sets))
    return _compare("random", None, problem.levels(level(problem)), start, to_come / capacity, sets)


def _compare(
    state: str,
    remaining: float | None,
    reached: Numbers,
    start: Numbers,
    gain: Numbers,
    sets: np.typing.NDArray[np.intp],
) -> Comparison:
    begun_s = time.process_time()
    best = best_levels(start, gain, sets)
    optimum_s = time.process_time() - begun_s
    held = np.unique(sets)
    difference = np.sort(reached[held])[::-1] - np.sort(best[held])[::-1]
    return Comparison(
        state=state,
        remaining=remaining,
        line_points=(_line(reached, start) - _line(best, start)) / POINT,
        spread_points=float(np.ptp(reached[held]) - np.ptp(best[held])) / POINT,
        mean_points=float(np.abs(difference).mean()) / POINT,
        worst_points=float(np.abs(difference).max()) / POINT,
        optimum_s=optimum_s,
    )


def _line(levels: Numbers, start: Numbers) -> float:
    return float(levels[levels > start + 1e-9].max())
