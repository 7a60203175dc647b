"""Choose brokers for the partitions of a topic that does not exist yet.

The idea: work out what each broker should get if copies could lie anywhere, give it leaders and copies in
that proportion, and mix partners, so that routing later has replica sets to choose from. Each broker
leads at least one partition where there are enough, full ones too: what routing can't reach, it can't
level later. Where reading is to be even, each broker leads as many, and only the other copies lie by room.

The choice is made once, from one snapshot; levelling from then on is routing's business.

Invariants, checked in tests/property/router/forecasting/test_placement.py:
1. Replicas of a partition are on distinct brokers, and on distinct racks where there are enough racks; where
   not, on as many as there are. A broker without a rack is a rack of its own.
2. Only reachable brokers are used; cordoned and avoided ones only where there are not enough others.
3. With at least as many partitions as brokers, every broker leads one; `evens_leaders`: no broker leads two
   more than another.
4. The same snapshot gives the same placement.

Read next: forecast.py, which says what a placement would lead to.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import numpy.typing as npt

from evenload.router.brokers import tabulate
from evenload.router.errors import NotEnoughBrokersError
from evenload.router.min_max import FloatArray, level_anywhere
from evenload.telemetry_collector.snapshot import ClusterSnapshot

__all__ = ["place_partitions"]

IntArray = npt.NDArray[np.int64]

_TIE = 1e-6


def place_partitions(
    snapshot: ClusterSnapshot,
    *,
    num_partitions: int,
    replication: int,
    total_bytes: int | None = None,
    avoid: Container[int] = (),
    evens_leaders: bool = False,
) -> list[tuple[int, ...]]:
    """Replica ids for partitions 0, 1, ..., the preferred leader first, as Kafka takes them.

    Args:
        snapshot: the cluster.
        num_partitions: how many, at least 1.
        replication: copies of each, at least 1.
        total_bytes: stored bytes that the topic will get, one copy; None when nobody knows: then copies
            are in proportion to free bytes.
        avoid: brokers that are being drained.
        evens_leaders: each broker leads as many partitions, whatever room it has.

    Raises:
        NotEnoughBrokersError: fewer brokers are reachable than copies are wanted.
        ValueError: a number is below 1 (`total_bytes`: below 0).
    """
    if num_partitions < 1 or replication < 1 or (total_bytes is not None and total_bytes < 0):
        raise ValueError(
            f"can't place {num_partitions} partitions of {replication} copies for {total_bytes} bytes: "
            "partitions and copies have to be at least 1, bytes at least 0"
        )
    broker_ids = _usable(snapshot, replication, avoid)
    wanted = _wanted_copies(snapshot, broker_ids, replication, total_bytes)
    num_brokers = len(broker_ids)
    least = np.full(num_brokers, 1 if num_partitions >= num_brokers else 0)
    # Where not all lead as many, those with room lead one more.
    led = 1.0 + _TIE * wanted if evens_leaders else wanted
    leaders = _apportion(num_partitions, led, least, np.full(num_brokers, num_partitions))
    copies = _apportion(num_partitions * replication, wanted, leaders, np.full(num_brokers, num_partitions))
    racks = _rack_numbers(snapshot, broker_ids)
    chosen = _choose_followers(_spread_out(leaders), copies - leaders, racks, replication)
    return [tuple(broker_ids[place] for place in places) for places in chosen]


def _usable(snapshot: ClusterSnapshot, replication: int, avoid: Container[int]) -> list[int]:
    """The brokers to place copies on, ascending."""
    reachable = sorted(broker_id for broker_id, broker in snapshot.brokers.items() if broker.is_reachable)
    if len(reachable) < replication:
        raise NotEnoughBrokersError(replication, tuple(reachable))
    wanted = [
        broker_id
        for broker_id in reachable
        if not snapshot.brokers[broker_id].is_cordoned and broker_id not in avoid
    ]
    # Kafka refuses a cordoned one by itself, with a sentence that names it.
    return wanted if len(wanted) >= replication else reachable


def _wanted_copies(
    snapshot: ClusterSnapshot, broker_ids: list[int], replication: int, total_bytes: int | None
) -> FloatArray:
    """[num_brokers] copies of each partition that a broker should hold: 0 to 1, summing to `replication`."""
    table = tabulate(snapshot, {})
    is_used = np.isin(table.broker_ids, broker_ids)
    used, capacity = table.used_bytes[is_used], np.maximum(table.capacity_bytes[is_used], 1.0)
    if total_bytes is None:
        total_bytes = int(np.maximum(0.0, capacity - used).sum() / replication)
    return level_anywhere(used / capacity, max(1.0, total_bytes) / capacity, replication)


def _apportion(total: int, wanted: FloatArray, least: IntArray, most: IntArray) -> IntArray:
    """Whole numbers from `least` to `most` that sum to `total`, nearest to proportion: largest remainders."""
    ideal = wanted / max(float(wanted.sum()), 1e-300) * total
    counts = np.clip(np.floor(ideal).astype(np.int64), least, most)
    while (short := total - int(counts.sum())) != 0:
        step = 1 if short > 0 else -1
        can_move = counts < most if short > 0 else counts > least
        lack = np.where(can_move, (ideal - counts) * step, -np.inf)
        counts[int(np.argmax(lack))] += step
    return counts


def _rack_numbers(snapshot: ClusterSnapshot, broker_ids: list[int]) -> IntArray:
    racks = [snapshot.brokers[broker_id].rack for broker_id in broker_ids]
    names = sorted({rack for rack in racks if rack is not None})
    return np.array(
        [names.index(rack) if rack is not None else len(names) + place for place, rack in enumerate(racks)]
    )


def _spread_out(counts: IntArray) -> list[int]:
    """Each place as often as its count, its occurrences as far apart as can be."""
    slots = [
        ((turn + 0.5) / count, place) for place, count in enumerate(counts.tolist()) for turn in range(count)
    ]
    return [place for _, place in sorted(slots)]


def _choose_followers(
    leaders: list[int], follow: IntArray, racks: IntArray, replication: int
) -> list[tuple[int, ...]]:
    """Completes each leader to a replica set; broker b follows about `follow[b]` times.

    In this order: a rack that the set does not have yet; a broker whose number is not used up; one that
    has to follow in every set that is left, to reach its number; one that has been with these partners
    least.
    """
    left = follow.astype(np.float64)
    sets_left = float(len(leaders)) - np.bincount(leaders, minlength=len(follow))
    together = np.zeros((len(follow), len(follow)))
    chosen = []
    for leader in leaders:
        members = [leader]
        for _ in range(replication - 1):
            clash = np.isin(racks, racks[members]).astype(np.float64)
            for rack in racks[members]:
                clash += racks == rack
            urgency = left / np.maximum(sets_left, 1.0)
            met = together[members].sum(axis=0) / np.maximum(follow, 1.0)
            cost = 1e6 * clash + 1e4 * (left <= 0) - 1e3 * (urgency >= 1.0) + met - urgency / 2
            cost[members] = np.inf
            best = int(np.argmin(cost))
            together[best, members] += 1
            together[members, best] += 1
            left[best] -= 1
            members.append(best)
        is_other = np.ones(len(follow))
        is_other[leader] = 0.0
        sets_left -= is_other
        chosen.append(tuple(members))
    return chosen
