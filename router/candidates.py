"""Choose which replica sets may be written to at all, of those that can take records.

A broker is *vetoed* when its willingness is 0 or the snapshot does not know it, and *full* when it is
over the limit. The best sets have neither; what is left decides how far down one has to go:

1. sets without a vetoed or full broker;
2. sets whose leader is neither (a follower that is down catches up later, one that is full gets as little as
   can be);
3. sets whose leader is not vetoed: all that could take the data are full;
4. any set with a leader, levelled as if everyone were willing: rather try than stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evenload.router.brokers import BrokerTable
from evenload.router.levelling import ReplicaSet
from evenload.router.min_max import FloatArray
from evenload.router.scoring import Willingness
from evenload.router.volumes import broker_of

__all__ = ["Candidates", "choose_candidates"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Who may be written to.

    Attributes:
        sets: the replica sets that may get a share; at least one.
        willing: [num_brokers] how willing one is to send to each broker of the table.
        left_out: by id, why a broker that holds the topic should get nothing (if it can be helped).
    """

    sets: tuple[ReplicaSet, ...]
    willing: FloatArray
    left_out: Mapping[int, str]


def choose_candidates(
    all_sets: tuple[ReplicaSet, ...],
    table: BrokerTable,
    *,
    asked: Willingness,
    utilisation_limit: float,
) -> Candidates:
    """The best sets of `all_sets` (at least one) that there are.

    Args:
        all_sets: the replica sets with a leader, and enough replicas in sync where there are any.
        table: the brokers as they are by now.
        asked: how willing one is to send to those that hold the topic; a missing one is vetoed.
        utilisation_limit: who is fuller is full.
    """
    holding = {broker_id for replica_set in all_sets for broker_id in replica_set.replica_ids}
    vetoed = {
        broker_id: asked.vetoes.get(broker_of(broker_id), "not in the snapshot")
        for broker_id in holding
        if not asked.by_broker.get(broker_of(broker_id))
    }
    full = {
        broker_id: why for broker_id, why in _full(table, utilisation_limit).items() if broker_id in holding
    }
    left_out = {**full, **vetoed}
    willing = np.array(
        [
            asked.by_broker.get(broker_of(broker_id), 0.0 if broker_id in holding else 1.0)
            for broker_id in table.broker_ids
        ]
    )
    best = tuple(each for each in all_sets if left_out.keys().isdisjoint(each.replica_ids))
    led_well = tuple(each for each in all_sets if each.leader_id not in left_out)
    led_at_all = tuple(each for each in all_sets if each.leader_id not in vetoed)
    if sets := best or led_well or led_at_all:
        return Candidates(sets, willing, left_out)
    return Candidates(all_sets, np.ones(len(willing)), left_out)


def _full(table: BrokerTable, limit: float) -> dict[int, str]:
    held = table.used_bytes - table.announced_bytes
    is_over = ~table.is_assumed & (held >= limit * table.capacity_bytes)
    return {
        broker_id: "its volumes are full" if has_no_room else f"{limit:.0%} full or more"
        for broker_id, over, has_no_room in zip(table.broker_ids, is_over, table.is_full, strict=True)
        if over or has_no_room
    }
