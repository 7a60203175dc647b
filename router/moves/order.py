"""Put moves into an order in which each fits, and say what brokers hold and lead after them.

A copy that moves is there twice until the new one is complete. So a target needs room for what comes beside
all that it holds then, what will leave it at the same time included. In the order that is made here, each
move fits once those before it are complete; schedule.py begins as many at the same time as brokers can
take.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenload.router.min_max import FloatArray
from evenload.router.moves.plan import Move
from evenload.router.moves.state import IntArray, MoveState

__all__ = ["best_beginning", "change_of_bytes", "in_order"]


def in_order(state: MoveState, moves: Sequence[Move]) -> tuple[list[Move], int]:
    """The moves, each where it fits, and how many never do."""
    places = {broker_id: place for place, broker_id in enumerate(state.broker_ids)}
    used = state.used_before.copy()
    ordered: list[Move] = []
    left = list(moves)
    while left:
        waiting = []
        for move in left:
            targets = [places[broker_id] for broker_id in move.added_ids]
            if (used[targets] + move.size_bytes <= state.ceiling[targets]).all():
                ordered.append(move)
                used += change_of_bytes(state, [move])
            else:
                waiting.append(move)
        if len(waiting) == len(left):
            break
        left = waiting
    return ordered, len(left)


def best_beginning(state: MoveState, moves: list[Move]) -> list[Move]:
    """As many of the first moves as make the spread least, and leaders no less even."""
    used, led = state.used_before, state.num_led_before
    least, uneven = round(state.spread_of(used), 12), _unevenness(state, led)
    num_chosen = 0
    for num_moves, move in enumerate(moves, start=1):
        used = used + change_of_bytes(state, [move])
        led = led + _change_of_leaders(state, move)
        if state.spread_of(used) < least and _unevenness(state, led) <= uneven:
            least, num_chosen = round(state.spread_of(used), 12), num_moves
    return moves[:num_chosen]


def _unevenness(state: MoveState, led: IntArray) -> int:
    counts = led[state.is_levelled]
    return int(counts.max() - counts.min()) if len(counts) else 0


def _change_of_leaders(state: MoveState, move: Move) -> IntArray:
    change = np.zeros(len(state.broker_ids), dtype=np.int64)
    if len(move.replica_ids) > 1:
        change[state.broker_ids.index(move.leader_id_before)] -= 1
        change[state.broker_ids.index(move.replica_ids[0])] += 1
    return change


def change_of_bytes(state: MoveState, moves: Sequence[Move]) -> FloatArray:
    """[num_brokers] bytes that moves add to each broker."""
    places = {broker_id: place for place, broker_id in enumerate(state.broker_ids)}
    change: FloatArray = np.zeros(len(state.broker_ids), dtype=np.float64)
    for move in moves:
        partition = state.movable[move.topic_partition]
        for broker_id in move.added_ids:
            change[places[broker_id]] += partition.bytes_on(places[broker_id])
        for broker_id in move.removed_ids:
            change[places[broker_id]] -= partition.bytes_on(places[broker_id])
    return change
