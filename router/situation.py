"""What a decision is made of: a topic's brokers, volume by volume, and who of them may be written to.

Bytes are stored bytes. Pure. Read next: router.py, which decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from evenload.router.brokers import BrokerTable, Layout, tabulate
from evenload.router.candidates import Candidates, choose_candidates
from evenload.router.levelling import ReplicaSet, group_replica_sets
from evenload.router.min_max import FloatArray
from evenload.router.scoring import Willingness
from evenload.router.volumes import by_volume
from evenload.telemetry_collector.snapshot import ClusterSnapshot

__all__ = ["Situation", "look"]

_IN_SYNC_UNSAID = 2


class Situation(NamedTuple):
    """What is known of a topic of which a partition has a leader.

    Attributes:
        snapshot: each volume of a broker in it as a broker.
        topic: the topic's name.
        layout: the partitions that the producer knows.
        own_stored: bytes that it has sent since the snapshot was taken, by partition.
        table: the brokers, as arrays.
        lagging: partitions with a leader and too few replicas in sync for a record to be taken, ascending.
        all_sets: the replica sets that have a leader; at least one.
        candidates: who of them may be written to.
    """

    snapshot: ClusterSnapshot
    topic: str
    layout: Layout
    own_stored: Mapping[int, float]
    table: BrokerTable
    lagging: tuple[int, ...]
    all_sets: tuple[ReplicaSet, ...]
    candidates: Candidates

    def growth_max_bytes(self) -> float:
        """By how much one copy of the topic can grow before retention deletes as much as comes."""
        numbers = (number for each in self.candidates.sets for number in each.partitions)
        growth = [self.snapshot.growth_max_bytes(self.topic, number) for number in numbers]
        return float(sum(math.inf if each is None else each for each in growth))

    def holding_capacity_bytes(self) -> FloatArray:
        """What each broker may hold that has a copy."""
        holding = {broker_id for each in self.all_sets for broker_id in each.replica_ids}
        return self.table.capacity_bytes[np.isin(self.table.broker_ids, list(holding))]

    def leader_bytes(self) -> FloatArray:
        """[num_brokers] bytes of the topic that each broker leads, own ones included."""
        led = self.snapshot.leader_bytes(self.topic)
        own = dict.fromkeys(self.table.broker_ids, 0.0)
        for number, size_bytes in self.own_stored.items():
            leader_id = self.layout[number].leader_id if number in self.layout else None
            if leader_id is not None:
                own[leader_id] += size_bytes
        return np.array(
            [led.get(broker_id, 0) + own[broker_id] for broker_id in self.table.broker_ids], dtype=np.float64
        )


def look(
    snapshot: ClusterSnapshot,
    topic: str,
    *,
    num_partitions: int,
    own_stored: Mapping[int, float],
    asked: Willingness,
    utilisation_limit: float,
) -> Situation | None:
    """Put together what a snapshot says of a topic; None where no partition has a leader.

    Args:
        snapshot: one that holds the topic.
        topic: its name.
        num_partitions: how many the producer knows; others are left out.
        own_stored: bytes that it has sent since the snapshot was taken, by partition.
        asked: how willing one is to send to each broker.
        utilisation_limit: from 0 to 1; fuller brokers get nothing while others can take the data.
    """
    volumes = by_volume(snapshot, topic)
    layout = {number: placed for number, placed in volumes.topics[topic].items() if number < num_partitions}
    all_sets = group_replica_sets(layout)
    if not all_sets:
        return None
    table = tabulate(volumes, layout, own_stored)
    lagging = _lagging(layout, volumes.config_of(topic).min_in_sync)
    in_sync = {number: placed for number, placed in layout.items() if number not in lagging}
    candidates = choose_candidates(
        group_replica_sets(in_sync) or all_sets, table, asked=asked, utilisation_limit=utilisation_limit
    )
    return Situation(volumes, topic, layout, own_stored, table, lagging, all_sets, candidates)


def _lagging(layout: Layout, min_in_sync: int | None) -> tuple[int, ...]:
    """The partitions with a leader that refuse records until more of their replicas are in sync.

    Where nobody may say how many it takes, a leader that is left alone by all its replicas counts as lagging:
    what it takes would be lost with it.
    """
    needed = _IN_SYNC_UNSAID if min_in_sync is None else min_in_sync
    return tuple(
        number
        for number, placed in sorted(layout.items())
        if placed.leader_id is not None and len(placed.isr_ids) < min(needed, len(placed.replica_ids))
    )
