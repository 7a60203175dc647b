"""How full each broker would be after a load, and could be at best, before a byte is written.

"How full will each broker be after H more bytes?" has three answers, for a topic that exists or a possible
placement: with given shares, with the best shares for these replica sets, and with copies anywhere. The
second is the best that routing can reach; no placement and no moves can beat the third. The differences
between them say what would help.

Bytes are stored bytes, of one copy; every copy is counted. The same arithmetic as in levelling.py, without
scores or limits: what would be possible if every broker took what it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evenload.router.brokers import BrokerTable, Layout, tabulate
from evenload.router.levelling import GoalContext, disk_usage, group_replica_sets
from evenload.router.min_max import FloatArray, level_anywhere
from evenload.telemetry_collector.snapshot import ClusterSnapshot, PartitionSnapshot

__all__ = ["Forecast", "best_possible", "forecast", "planned_layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Utilisation of each broker, by id, after the bytes to come.

    Attributes:
        now: before any of them.
        after: with the shares that were asked about.
        best: with the best shares for the topic's replica sets.
        anywhere: with the copies on any brokers, two of a partition never on one.
    """

    now: Mapping[int, float]
    after: Mapping[int, float]
    best: Mapping[int, float]
    anywhere: Mapping[int, float]


def forecast(
    snapshot: ClusterSnapshot,
    layout: Layout,
    *,
    total_bytes: int,
    shares: Mapping[int, float] | None = None,
) -> Forecast:
    """What `total_bytes` more in a topic with this `layout` would lead to.

    Args:
        snapshot: the cluster.
        layout: the topic's partitions by number, from a snapshot or `planned_layout`; at least one has a
            leader.
        total_bytes: stored bytes to come, one copy; at least 0.
        shares: the part of them that each partition gets; None: even over those with a leader.

    Raises:
        ValueError: no partition has a leader, or `total_bytes` is below 0.
    """
    if total_bytes < 0:
        raise ValueError(f"total_bytes is {total_bytes}, it has to be at least 0")
    writable = {number: placed for number, placed in layout.items() if placed.leader_id is not None}
    if not writable:
        raise ValueError("a forecast needs a partition that has a leader")
    table = tabulate(snapshot, layout)
    given = dict.fromkeys(writable, 1.0 / len(writable)) if shares is None else shares
    sets = [layout[number].replica_ids for number in given]
    added = table.added_bytes(sets, np.array(list(given.values())) * total_bytes)
    copies = round(np.mean([len(placed.replica_ids) for placed in writable.values()]))
    return Forecast(
        now=_by_broker(table, np.zeros(len(table.broker_ids))),
        after=_by_broker(table, added),
        best=_by_broker(table, _best_added(table, writable, total_bytes)),
        anywhere=_by_broker(table, _added_anywhere(table, copies, total_bytes)),
    )


def best_possible(snapshot: ClusterSnapshot, layout: Layout, *, total_bytes: int) -> dict[int, float]:
    """The utilisation of each broker, by id, with the best shares for the replica sets of `layout`."""
    return dict(forecast(snapshot, layout, total_bytes=total_bytes).best)


def planned_layout(replicas: Sequence[Sequence[int]]) -> dict[int, PartitionSnapshot]:
    """The layout that a topic would have, from its replica ids (as `place_partitions` returns them)."""
    return {
        number: PartitionSnapshot(leader_id=ids[0], replica_ids=tuple(ids), isr_ids=tuple(ids))
        for number, ids in enumerate(replicas)
    }


def _best_added(table: BrokerTable, writable: Layout, total_bytes: int) -> FloatArray:
    sets = group_replica_sets(writable)
    context = GoalContext(
        broker_ids=table.broker_ids,
        used_bytes=table.used_bytes,
        capacity_bytes=np.maximum(table.capacity_bytes, 1.0),
        known_capacity_bytes=table.known_capacity_bytes,
        willing=np.ones(len(table.broker_ids)),
        leader_bytes=np.zeros(len(table.broker_ids)),
        replica_sets=sets,
        horizon_bytes=max(1.0, total_bytes),
    )
    return table.added_bytes([each.replica_ids for each in sets], disk_usage(context) * total_bytes)


def _added_anywhere(table: BrokerTable, copies: int, total_bytes: int) -> FloatArray:
    capacity = np.maximum(table.capacity_bytes, 1.0)
    wanted = level_anywhere(table.used_bytes / capacity, max(1.0, total_bytes) / capacity, copies)
    return np.asarray(wanted * total_bytes)


def _by_broker(table: BrokerTable, added_bytes: FloatArray) -> dict[int, float]:
    return dict(zip(table.broker_ids, table.utilisation(added_bytes).tolist(), strict=True))
