"""Put moves into steps that fit, and say what brokers hold and lead after them.

A copy that moves is there twice until the new one is complete. So a target needs room for all that comes in a
step beside all that it holds when the step begins, what will leave it in the same step included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenload.router.min_max import FloatArray
from evenload.router.moves.plan import Move, MoveStep
from evenload.router.moves.state import IntArray, MoveState

__all__ = ["best_beginning", "change_of_bytes", "in_steps"]


def in_steps(state: MoveState, moves: Sequence[Move], step_bytes: int) -> tuple[list[MoveStep], int]:
    """The moves in steps that fit, and how many never do."""
    places = {broker_id: place for place, broker_id in enumerate(state.broker_ids)}
    used = state.used_before.copy()
    left, steps = list(moves), []
    while left:
        chosen: list[Move] = []
        peak, so_far = used.copy(), 0
        for move in left:
            targets = [places[broker_id] for broker_id in move.added_ids]
            fits_step = not chosen or so_far + move.moved_bytes <= step_bytes
            if fits_step and (peak[targets] + move.size_bytes <= state.ceiling[targets]).all():
                chosen.append(move)
                peak[targets] += move.size_bytes
                so_far += move.moved_bytes
        if not chosen:
            break
        steps.append(MoveStep(tuple(chosen)))
        used += change_of_bytes(state, chosen)
        taken = {move.topic_partition for move in chosen}
        left = [move for move in left if move.topic_partition not in taken]
    return steps, len(left)


def best_beginning(state: MoveState, steps: list[MoveStep]) -> list[MoveStep]:
    """As many of the first steps as make the spread least, and leaders no less even."""
    used, led = state.used_before, state.num_led_before
    least, uneven = round(state.spread_of(used), 12), _unevenness(state, led)
    num_chosen = 0
    for num_steps, step in enumerate(steps, start=1):
        used = used + change_of_bytes(state, step.moves)
        led = led + _change_of_leaders(state, step.moves)
        if state.spread_of(used) < least and _unevenness(state, led) <= uneven:
            least, num_chosen = round(state.spread_of(used), 12), num_steps
    return steps[:num_chosen]


def _unevenness(state: MoveState, led: IntArray) -> int:
    counts = led[state.is_levelled]
    return int(counts.max() - counts.min()) if len(counts) else 0


def _change_of_leaders(state: MoveState, moves: Sequence[Move]) -> IntArray:
    change = np.zeros(len(state.broker_ids), dtype=np.int64)
    for move in moves:
        if len(move.replica_ids) > 1:
            change[state.broker_ids.index(move.leader_id_before)] -= 1
            change[state.broker_ids.index(move.replica_ids[0])] += 1
    return change


def change_of_bytes(state: MoveState, moves: Sequence[Move]) -> FloatArray:
    """[num_brokers] bytes that moves add to each broker."""
    places = {broker_id: place for place, broker_id in enumerate(state.broker_ids)}
    by_key = {partition.topic_partition: partition for partition in state.partitions}
    change: FloatArray = np.zeros(len(state.broker_ids), dtype=np.float64)
    for move in moves:
        partition = by_key[move.topic_partition]
        for broker_id in move.added_ids:
            change[places[broker_id]] += partition.bytes_on(places[broker_id])
        for broker_id in move.removed_ids:
            change[places[broker_id]] -= partition.bytes_on(places[broker_id])
    return change
