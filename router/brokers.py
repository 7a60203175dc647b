"""How full each broker is by now, as arrays: the snapshot, what one has sent oneself since, and what other
loads have announced for it.

Where a capacity is missing, something has to be assumed, and it is said in a note: used plus usable bytes of
the broker's volumes if the broker tells them; else the smallest capacity that is known of another (careful:
it fills up first); else, when none is known, the same for all, so that bytes are levelled instead of
utilisations. The limit on utilisation does not apply to a capacity that was assumed.

Bytes are stored bytes. Arrays have one entry for each broker, in the order of `broker_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenload.router.min_max import FloatArray
from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot, PartitionSnapshot

__all__ = ["BoolArray", "BrokerTable", "Layout", "tabulate"]

BoolArray = npt.NDArray[np.bool_]
Layout = Mapping[int, PartitionSnapshot]
"""Where each partition of a topic is kept, by its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTable:
    """Every broker of the snapshot, and those that hold the topic but are not in the snapshot.

    Attributes:
        broker_ids: ascending.
        used_bytes: what each holds, own and announced bytes included; 0 where nothing is known.
        announced_bytes: the part of it that other loads have announced, and that may never come.
        capacity_bytes: what each may hold, or what is assumed.
        is_assumed: where the capacity is only assumed.
        is_known: where the broker is in the snapshot.
        is_full: where no room is left on the broker's volumes, whatever its capacity says.
    """

    broker_ids: tuple[int, ...]
    used_bytes: FloatArray
    announced_bytes: FloatArray
    capacity_bytes: FloatArray
    is_assumed: BoolArray
    is_known: BoolArray
    is_full: BoolArray

    @property
    def known_capacity_bytes(self) -> FloatArray:
        """What each may hold; infinite where that is only assumed."""
        return np.where(self.is_assumed, np.inf, self.capacity_bytes)

    @property
    def places(self) -> dict[int, int]:
        """The place of each broker in the arrays."""
        return {broker_id: place for place, broker_id in enumerate(self.broker_ids)}

    def utilisation(self, added_bytes: FloatArray) -> FloatArray:
        """Utilisation of each broker once `added_bytes` [num_brokers] have come."""
        return np.asarray((self.used_bytes + added_bytes) / np.maximum(self.capacity_bytes, 1.0))

    def added_bytes(self, sets: Sequence[Sequence[int]], bytes_by_set: FloatArray) -> FloatArray:
        """[num_brokers] what each holds more when each of `sets` (of broker ids) gets `bytes_by_set`."""
        places = self.places
        flat = [places[broker_id] for members in sets for broker_id in members]
        each = np.repeat(bytes_by_set, [len(members) for members in sets])
        return np.asarray(np.bincount(flat, each, minlength=len(self.broker_ids)), dtype=np.float64)


def tabulate(
    snapshot: ClusterSnapshot,
    layout: Layout,
    own_bytes: Mapping[int, float] | None = None,
) -> BrokerTable:
    """The brokers of a snapshot and of a topic's `layout`, with own stored bytes by partition counted in.

    Every copy of a partition counts, on each of its brokers. Bytes of partitions that are not in the layout
    count nowhere.
    """
    ids = {broker_id for placed in layout.values() for broker_id in placed.replica_ids}
    ids |= {placed.leader_id for placed in layout.values() if placed.leader_id is not None}
    broker_ids = tuple(sorted(ids | set(snapshot.brokers)))
    brokers = [snapshot.brokers.get(broker_id) for broker_id in broker_ids]
    place = {broker_id: position for position, broker_id in enumerate(broker_ids)}
    announced = np.array([broker.announced_bytes if broker else 0 for broker in brokers], dtype=np.float64)
    used = announced + np.array([broker.used_bytes if broker else 0 for broker in brokers], dtype=np.float64)
    for partition, size in (own_bytes or {}).items():
        if partition in layout:
            for broker_id in layout[partition].replica_ids:
                used[place[broker_id]] += size
    known = [_capacity(broker) for broker in brokers]
    assumed = _assumed_capacity([capacity for capacity in known if capacity is not None], used)
    return BrokerTable(
        broker_ids=broker_ids,
        used_bytes=used,
        announced_bytes=announced,
        capacity_bytes=np.array(
            [
                max(assumed, float(so_far)) if capacity is None else capacity
                for capacity, so_far in zip(known, used, strict=True)
            ]
        ),
        is_assumed=np.array([capacity is None for capacity in known]),
        is_known=np.array([broker is not None for broker in brokers]),
        is_full=np.array([broker is not None and broker.usable_bytes == 0 for broker in brokers]),
    )


def _capacity(broker: BrokerSnapshot | None) -> float | None:
    if broker is None:
        return None
    if broker.capacity_bytes is not None:
        return float(broker.capacity_bytes)
    if broker.usable_bytes is not None:
        return float(broker.used_bytes + broker.usable_bytes)
    return None


def _assumed_capacity(known: Sequence[float], used: FloatArray) -> float:
    if known:
        return min(known)
    return max(1.0, 2.0 * float(used.max(initial=0.0)))
