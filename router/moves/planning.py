"""Plan moves of replicas that level what is there: the skew that routing new bytes can't reach.

The idea: a few hops of copies, from the fullest brokers to the emptiest, chosen by what each byte moved
brings (search.py); then put into an order in which each fits (order.py): a target has room for a copy that
comes beside all that it holds, because the sources hold theirs until the new ones are complete.

A partition without a leader, with a copy that is not in sync, or on a broker that doesn't answer is left
alone. Brokers that are to be drained are emptied first. Targets can be reached, are not cordoned and not
being emptied.

Invariants, checked in tests/property/router/moves/test_moves.py:
1. If moves are made in this order, one after the other, no broker is ever above its limit because of one.
2. A partition keeps its number of copies, all on distinct brokers, on at least as many racks as before.
3. Whoever leads goes on leading unless its own copy goes. Over partitions of several copies, the numbers of
   leaders get no less even (while nothing is emptied); an only copy takes its leader along.
4. The spread is never worse than before, and a plan without the bytes for all of it is no worse either.
5. No more bytes are moved than were allowed, and few more than a linear program's bound says must be.
6. The same snapshot gives the same plan.

Hops of single copies only, no exchanges: with partitions of about the same, large size, some spread is left.

Bytes are stored bytes. Read next: state.py for what is allowed, schedule.py for what is made at the same
time, bound.py for the bound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from evenload.router.min_max import FloatArray
from evenload.router.moves.bound import least_bytes_to_move
from evenload.router.moves.order import best_beginning, change_of_bytes, in_order
from evenload.router.moves.plan import Move, MovePlan, is_internal_topic
from evenload.router.moves.search import drain, level_by_hops, take_back_needless
from evenload.router.moves.state import MoveState
from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot, TopicPartition

__all__ = ["plan_moves", "settled"]

_SPREAD_GOAL = 0.005
_NAMED_MAX = 5


def plan_moves(
    snapshot: ClusterSnapshot,
    *,
    max_bytes: int | None = None,
    spread_goal: float = _SPREAD_GOAL,
    utilisation_limit: float = 0.95,
    drained: Collection[int] = (),
    excluded: Collection[TopicPartition] = (),
) -> MovePlan:
    """The moves that bring the brokers' utilisations within `spread_goal` of each other, or nearly.

    Args:
        snapshot: the cluster, with the sizes of all partitions.
        max_bytes: the most that may be moved, at least 0; None: as much as it takes.
        spread_goal: a spread that is good enough, from 0 to 1.
        utilisation_limit: no broker is filled above this.
        drained: brokers to be emptied, whatever that does to the spread.
        excluded: partitions that have to stay where they are.

    Raises:
        ValueError: an argument is outside what is said above.
    """
    _check(max_bytes, spread_goal)
    budget = np.inf if max_bytes is None else float(max_bytes)
    draining = sorted(set(drained))
    state = MoveState(snapshot, draining=draining, excluded=excluded, utilisation_limit=utilisation_limit)
    spread_before = state.spread()
    emptied, num_stuck = drain(state, budget)
    budget -= sum(state.partitions[place].size_bytes for place in emptied)
    levelled = level_by_hops(state, spread_goal=spread_goal, budget_bytes=budget)
    take_back_needless(state, levelled, spread_goal=spread_goal)
    order = list(dict.fromkeys([*emptied, *levelled]))
    wanted = [state.move_of(place) for place in order if place in state.changed]
    moves, num_unfit = in_order(state, wanted)
    if not draining:
        moves = best_beginning(state, moves)
    after = state.used_before + change_of_bytes(state, moves)
    spread_after = state.spread_of(after)
    return MovePlan(
        moves=tuple(moves),
        before=_by_broker(state, state.used_before),
        after=_by_broker(state, after),
        spread_before=spread_before,
        spread_after=spread_after,
        least_bytes=_least_bytes(state, after, spread_after),
        notes=tuple(_notes(state, moves, draining, num_stuck, num_unfit)),
    )


def settled(before: ClusterSnapshot, after: ClusterSnapshot) -> ClusterSnapshot:
    """`after`, with used bytes as they will be once brokers have deleted what moved away since `before`.

    Brokers free the space of a copy that has left only after `file.delete.delay.ms` (a minute by default),
    so volumes look fuller than the partitions on them. The sizes of partitions tell at once.
    """

    def used_bytes(broker: BrokerSnapshot) -> int:
        earlier = before.brokers.get(broker.broker_id)
        if earlier is None or not broker.is_reachable:
            return broker.used_bytes
        grown = sum(broker.bytes_by_topic_partition.values()) - sum(earlier.bytes_by_topic_partition.values())
        return max(0, min(broker.used_bytes, earlier.used_bytes + grown))

    brokers = {
        broker_id: dataclasses.replace(broker, used_bytes=used_bytes(broker))
        for broker_id, broker in after.brokers.items()
    }
    return dataclasses.replace(after, brokers=brokers)


def _check(max_bytes: int | None, spread_goal: float) -> None:
    if (max_bytes is not None and max_bytes < 0) or not 0 <= spread_goal <= 1:
        raise ValueError(
            f"max_bytes is {max_bytes}, spread_goal {spread_goal}: "
            "they have to be at least 0, and from 0 to 1"
        )


def _least_bytes(state: MoveState, after: FloatArray, spread: float) -> int:
    return least_bytes_to_move(
        used=state.used_before,
        capacity=state.capacity,
        movable=state.movable_bytes,
        drained=np.where(state.is_draining, state.used_before - after, 0.0),
        is_levelled=state.is_levelled,
        is_target=state.is_target,
        spread=spread,
    )


def _notes(
    state: MoveState,
    moves: Sequence[Move],
    draining: Sequence[int],
    num_stuck: int,
    num_unfit: int,
) -> list[str]:
    notes = []
    if num_stuck:
        brokers = ", ".join(map(str, draining))
        notes.append(
            f"{num_stuck} copies can't leave broker {brokers}: max_bytes doesn't cover them, or no other has "
            "the room, no copy of the same partition, and a rack that keeps copies apart."
        )
    if num_unfit:
        notes.append(
            f"{num_unfit} more moves would help, but there is no room for both copies while they are made."
        )
    notes += [
        f"broker {broker_id} can't be levelled: Kafka chooses which of its volumes a copy goes to, and no "
        "more is moved there than its fullest has room for."
        for broker_id in state.held_by_a_volume()
    ]
    if state.num_left:
        notes.append(
            f"{state.num_left} partitions are left where they are: they have no leader, or a copy that is "
            "not in sync or can't be reached, or are being reassigned."
        )
    internal = sorted({move.topic_partition.topic for move in moves} & _internal_topics(state))
    if internal:
        named = ", ".join(internal[:_NAMED_MAX]) + (", ..." if len(internal) > _NAMED_MAX else "")
        notes.append(f"internal topics are moved as well: {named}.")
    return notes


def _internal_topics(state: MoveState) -> set[str]:
    topics = {partition.topic_partition.topic for partition in state.partitions}
    return {topic for topic in topics if is_internal_topic(topic)}


def _by_broker(state: MoveState, used: FloatArray) -> dict[int, float]:
    return dict(zip(state.broker_ids, (used / state.capacity).tolist(), strict=True))
