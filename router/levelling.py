"""Turn a goal into shares: how much of what is still to come each replica set of a topic should get.

The idea: the unknown is a share for each distinct replica set (all partitions with the same leader and
the same other replicas), because a byte written to a partition lands on every broker of its set. With U_b
bytes used, a capacity C_b and H stored bytes to come, broker b ends at (U_b + H * sum of the shares of
the sets with b) / C_b.

A goal is a function from a `GoalContext` to one share for each replica set. Those registered under the
entry-point group `evenload.goals` are mixed by weight, as share vectors. Two are built in:

- `disk_usage` makes these utilisations lexicographically min-max: the highest as low as can be, then the
  next.
- `dataset_spread` does the same to the bytes of this topic that each broker leads, on which read speed
  depends, while no disk gets fuller than `FORECAST_MAX` for it. From there on, disks come first.

Invariants, checked in tests/property/router/test_levelling.py:
1. Shares are at least 0 and sum to 1; partitions with the same replicas get the same.
2. No other shares have sorted utilisations that come before (for disk_usage, in any of 400 random layouts).
3. More bytes on one broker never raise, by `disk_usage`, what is sent to a set that is just this broker.
4. By `dataset_spread`, brokers with room that get something end with the same bytes led, and no broker gets
   fuller than `FORECAST_MAX` that `disk_usage` would leave emptier (to within a point).

Bytes are stored bytes, per copy. Read next: min_max.py, which does the arithmetic; router.py, which
builds the context from a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from evenload.router.min_max import FloatArray, MinMaxProblem, level
from evenload.router.patience import OverdueError, Patience
from evenload.router.plugins import Weighted
from evenload.router.volumes import broker_of
from evenload.telemetry_collector.snapshot import PartitionSnapshot

__all__ = [
    "FORECAST_MAX",
    "Goal",
    "GoalContext",
    "MixedShares",
    "ReplicaSet",
    "dataset_spread",
    "disk_usage",
    "group_replica_sets",
    "mix_goals",
]

FORECAST_MAX = 0.8
"""The utilisation up to which disks may be filled for another end than to level them (Cruise Control's
`disk.capacity.threshold`, too)."""

# How much more disks count than reading once they are too full. They then are so by less than a point.
_DISKS_FIRST = 100.0


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """The brokers that hold some partitions of a topic, and these partitions.

    Attributes:
        replica_ids: the brokers, the leader first, the others ascending.
        partitions: the numbers of the partitions, ascending; what the set gets is divided evenly among them.
    """

    replica_ids: tuple[int, ...]
    partitions: tuple[int, ...]

    @property
    def leader_id(self) -> int:
        """The broker that accepts writes to these partitions."""
        return self.replica_ids[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalContext:
    """All that a goal may look at. Arrays have one entry for each broker, in the order of `broker_ids`.

    Attributes:
        broker_ids: every broker that is known, ascending, whether it holds the topic or not.
        used_bytes: stored bytes on each, the producer's own since the snapshot included.
        capacity_bytes: what each may hold, made smaller where scores are unwilling; above 0.
        known_capacity_bytes: what each may hold, as it is; infinite where nobody knows.
        willing: how willing one is to send to each; above 0, at most 1.
        leader_bytes: stored bytes of this topic that each leads.
        replica_sets: those that may get a share; at least one.
        horizon_bytes: H, stored bytes to come, per copy; above 0.
    """

    broker_ids: tuple[int, ...]
    used_bytes: FloatArray
    capacity_bytes: FloatArray
    known_capacity_bytes: FloatArray
    willing: FloatArray
    leader_bytes: FloatArray
    replica_sets: tuple[ReplicaSet, ...]
    horizon_bytes: float

    def num_partitions(self) -> FloatArray:
        """[num_sets] how many partitions each replica set has."""
        return np.array([len(replica_set.partitions) for replica_set in self.replica_sets], dtype=np.float64)


Goal = Callable[[GoalContext], FloatArray]


def group_replica_sets(partitions: Mapping[int, PartitionSnapshot]) -> tuple[ReplicaSet, ...]:
    """The replica sets of the partitions that have a leader, in the order of their first partitions."""
    grouped: dict[tuple[int, ...], list[int]] = {}
    for partition in sorted(partitions):
        placed = partitions[partition]
        if placed.leader_id is not None:
            followers = sorted(set(placed.replica_ids) - {placed.leader_id})
            grouped.setdefault((placed.leader_id, *followers), []).append(partition)
    return tuple(ReplicaSet(replica_ids, tuple(numbers)) for replica_ids, numbers in grouped.items())


def disk_usage(context: GoalContext) -> FloatArray:
    """Shares that leave the fullest broker as empty as can be, then the next: (U_b + added_b) / C_b."""
    return level(
        MinMaxProblem(
            base=context.used_bytes / context.capacity_bytes,
            gain=context.horizon_bytes / context.capacity_bytes,
            sets=_positions(context, (replica_set.replica_ids for replica_set in context.replica_sets)),
            counts=context.num_partitions(),
        )
    )


def dataset_spread(context: GoalContext) -> FloatArray:
    """Shares that even the bytes of this topic that each broker leads, while disks have room for that.

    A broker to which one is half as willing to send counts as leading twice as much. Volumes of a broker are
    one in what it leads, and each for itself in how full it gets.
    """
    reading = _reading(context)
    even = level(reading)
    place = {broker_id: position for position, broker_id in enumerate(context.broker_ids)}
    members = [tuple(place[broker_id] for broker_id in each.replica_ids) for each in context.replica_sets]
    added = np.zeros(len(place))
    for positions, share in zip(members, even.tolist(), strict=True):
        added[list(positions)] += share * context.horizon_bytes
    limit = FORECAST_MAX * context.known_capacity_bytes
    if not (context.used_bytes + added > limit)[added > 0].any():
        return even
    return level(_with_disks(reading, float(reading.levels(even).max()), members, context))


def _reading(context: GoalContext) -> MinMaxProblem:
    """What each broker leads, in what is to come."""
    leaders = [broker_of(each.leader_id) for each in context.replica_sets]
    broker_ids, positions = np.unique(leaders, return_inverse=True)
    of_place = np.array([broker_of(place_id) for place_id in context.broker_ids])
    is_leader = np.isin(of_place, broker_ids)
    at = np.searchsorted(broker_ids, of_place[is_leader])
    led = np.bincount(at, context.leader_bytes[is_leader], minlength=len(broker_ids))
    willing = np.zeros(len(broker_ids))
    willing[at] = context.willing[is_leader]
    return MinMaxProblem(
        base=led / context.horizon_bytes / willing,
        gain=1.0 / willing,
        sets=tuple((position,) for position in positions.tolist()),
        counts=context.num_partitions(),
    )


def _with_disks(
    reading: MinMaxProblem, line: float, members: Sequence[tuple[int, ...]], context: GoalContext
) -> MinMaxProblem:
    """The same with each disk as one more broker, whose level is above all others' once it is too full.

    Args:
        reading: what each broker leads.
        line: the level that it would have if disks had room.
        members: [num_sets] the places of each set's brokers in the context's arrays.
        context: what is known.
    """
    num_leaders = len(reading.base)
    is_known = np.isfinite(context.known_capacity_bytes)
    capacity = np.maximum(context.known_capacity_bytes[is_known], 1.0)
    # Nobody leads more than all, which is `num_leaders` times the line.
    steepness = _DISKS_FIRST * num_leaders * line
    disks = np.cumsum(is_known) - 1 + num_leaders
    return MinMaxProblem(
        base=np.append(
            reading.base, line + steepness * (context.used_bytes[is_known] / capacity - FORECAST_MAX)
        ),
        gain=np.append(reading.gain, steepness * context.horizon_bytes / capacity),
        sets=tuple(
            (*leader, *(int(disks[position]) for position in positions if is_known[position]))
            for leader, positions in zip(reading.sets, members, strict=True)
        ),
        counts=reading.counts,
    )


@dataclass(frozen=True, slots=True)
class MixedShares:
    """What the goals make of it together.

    Attributes:
        shares: [num_sets] summing to 1; empty when every goal failed.
        names: the goals that had a say.
        put_aside: by the name of each goal that failed, how.
    """

    shares: FloatArray
    names: frozenset[str]
    put_aside: Mapping[str, str]


def mix_goals(
    goals: Sequence[Weighted[Goal]],
    context: GoalContext,
    *,
    patience: Patience | None = None,
) -> MixedShares:
    """The goals' share vectors, mixed by weight; a goal that fails is put aside, the others go on.

    Args:
        goals: those in force.
        context: what they are asked about.
        patience: how long a goal of somebody else's may take; None: as long as it wants.
    """
    vectors: dict[str, FloatArray] = {}
    put_aside: dict[str, str] = {}
    patience = patience or Patience()
    for name, weight, goal in goals:
        try:
            vectors[name] = weight * patience.ask(goal, partial(_ask, goal, context))
        except OverdueError as overdue:
            put_aside[name] = str(overdue)
        except Exception as error:  # noqa: BLE001 - anybody's code; whatever it raises, producing goes on
            put_aside[name] = f"failed ({type(error).__name__}: {error})"
    total = sum(vectors.values(), np.zeros(0 if not vectors else len(context.replica_sets)))
    return MixedShares(np.asarray(total / (total.sum() or 1.0)), frozenset(vectors), put_aside)


def _ask(goal: Goal, context: GoalContext, _check_time: Callable[[str], None]) -> FloatArray:
    return _checked(goal(context), len(context.replica_sets))


def _checked(shares: FloatArray, num_sets: int) -> FloatArray:
    vector = np.asarray(shares, dtype=np.float64)
    if vector.shape != (num_sets,):
        raise ValueError(f"has shape {vector.shape}, not one share for each of {num_sets} replica sets")
    if not np.isfinite(vector).all() or (vector < 0).any() or not vector.sum() > 0:
        raise ValueError("shares have to be finite, at least 0 and not all 0")
    return np.asarray(vector / vector.sum())


def _positions(context: GoalContext, sets: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    place = {broker_id: position for position, broker_id in enumerate(context.broker_ids)}
    return tuple(tuple(place[broker_id] for broker_id in members) for members in sets)
