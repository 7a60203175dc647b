"""Choose hops of replicas, best first, until the brokers are level or nothing helps any more.

The idea: the fewest bytes that level brokers to within a spread only cut off what is above a window of
utilisations and fill up what is below it, and water-filling says where that window lies. What is outside
of it, in bytes, is the *excess*. Of all hops, the one is made that takes away most excess for each byte moved
(at best 2: one at its source, one at its target), the largest of these first. When no hop helps, the broker
that is furthest outside is left as it is, and the others are levelled to a window of their own.

Afterwards, hops that turn out not to be needed for the spread that was reached are taken back, which makes up
for what was moved twice or for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evenload.router.brokers import BoolArray
from evenload.router.min_max import FloatArray
from evenload.router.moves.state import Hop, MoveState

__all__ = ["drain", "level_by_hops", "take_back_needless"]

# Excess taken away for each byte moved, of 1 at best, below which a hop isn't worth it.
_WORTH_MIN = 0.1
# Sources and targets that are looked at first: the fullest and the emptiest are nearly always the best.
_NEAREST = 8
_WINDOW_ROUNDS = 60


def drain(state: MoveState, budget_bytes: float) -> tuple[list[int], int]:
    """Empties the brokers that shall be, largest copies first, each to the broker that is emptiest then.

    Returns:
        The partitions (places) moved, and how many copies had to stay.
    """
    moved, num_stuck = [], 0
    for source in np.flatnonzero(state.is_draining).tolist():
        held = sorted(state.on_broker[source], key=lambda place: (-state.partitions[place].size_bytes, place))
        for place in held:
            size = state.partitions[place].size_bytes
            levels = (state.used + size) / state.capacity
            order = sorted(np.flatnonzero(state.is_target).tolist(), key=lambda b: (levels[b], b))
            hops = (Hop(place, source, target) for target in order)
            hop = next((hop for hop in hops if state.is_allowed(hop)), None)
            if hop is None or size > budget_bytes:
                num_stuck += 1
                continue
            state.apply(hop)
            budget_bytes -= size
            moved.append(place)
    return moved, num_stuck


def level_by_hops(state: MoveState, *, spread_goal: float, budget_bytes: float) -> list[int]:
    """Makes hops until the spread is at most `spread_goal`, the budget is used up or nothing helps.

    Returns:
        The partitions (places) moved, in the order of their first hops.
    """
    moved: dict[int, None] = {}
    active = state.is_levelled.copy()
    while active.sum() > 1 and state.spread() > spread_goal:
        window = _Window.over(state, active, spread_goal)
        while (hop := _best_hop(state, active, window, budget_bytes)) is not None:
            budget_bytes -= state.partitions[hop.partition].size_bytes
            state.apply(hop)
            moved.setdefault(hop.partition)
        outside = np.where(active, window.excess(state.used, state.capacity) / state.capacity, -1.0)
        if outside.max() <= 0:
            break
        active[int(np.argmax(outside))] = False
    return list(moved)


def take_back_needless(state: MoveState, places: list[int], *, spread_goal: float) -> None:
    """Leaves where they were those partitions without whose moves the spread is as good."""
    allowed = max(spread_goal, state.spread()) + 1e-12
    for place in sorted(places, key=lambda place: (-state.partitions[place].size_bytes, place)):
        partition = state.partitions[place]
        if place not in state.changed or any(state.is_draining[broker] for broker in partition.before):
            continue
        if len(partition.replicas) > 1 and partition.leader != partition.leader_before:
            continue  # others may have taken its place as leaders
        used = state.used.copy()
        for broker in partition.replicas:
            used[broker] -= partition.bytes_on(broker)
        for broker in partition.before:
            used[broker] += partition.bytes_on(broker)
        fits = (used <= np.maximum(state.ceiling, state.used_before)).all()
        if fits and state.spread_of(used) <= allowed:
            state.take_back(place)


@dataclass(frozen=True, slots=True)
class _Window:
    """The utilisations, from `low` to `high`, that brokers should end within."""

    low: float
    high: float

    @classmethod
    def over(cls, state: MoveState, active: BoolArray, spread: float) -> _Window:
        """The one for which as much has to leave the fuller brokers as is lacking on the emptier ones."""
        used, capacity = state.used[active], state.capacity[active]
        movable = state.movable_bytes[active]
        is_target = state.is_target[active]
        low, high = 0.0, float((used / capacity).max())
        for _ in range(_WINDOW_ROUNDS):
            middle = (low + high) / 2
            leaving = np.clip(used - (middle + spread) * capacity, 0.0, movable).sum()
            lacking = np.maximum(middle * capacity - used, 0.0)[is_target].sum()
            low, high = (middle, high) if leaving > lacking else (low, middle)
        return cls(low, low + spread)

    def excess(self, used: FloatArray, capacity: FloatArray) -> FloatArray:
        """Bytes that are too many or too few, for brokers that hold `used`."""
        above = np.maximum(used - self.high * capacity, 0.0)
        below = np.maximum(self.low * capacity - used, 0.0)
        return np.asarray(above + below)


def _best_hop(state: MoveState, active: BoolArray, window: _Window, budget_bytes: float) -> Hop | None:
    levels = state.used / state.capacity
    order = np.argsort(levels, kind="stable").tolist()
    targets = [broker for broker in order if active[broker] and state.is_target[broker]]
    sources = [broker for broker in reversed(order) if active[broker] and state.on_broker[broker]]
    if len(targets) > _NEAREST or len(sources) > _NEAREST:
        near = _best_among(state, sources[:_NEAREST], targets[:_NEAREST], window, budget_bytes)
        if near is not None:
            return near
    return _best_among(state, sources, targets, window, budget_bytes)


def _best_among(
    state: MoveState, sources: list[int], targets: list[int], window: _Window, budget_bytes: float
) -> Hop | None:
    """The allowed hop that is worth most; the largest of these, then the fullest source, emptiest target."""
    best: tuple[float, float] | None = None
    chosen: Hop | None = None
    for source in sources:
        for worth, size, hop in _hops_by_worth(state, source, targets, window, budget_bytes):
            if best is not None and (worth, size) <= best:
                break
            if state.is_allowed(hop):
                best, chosen = (worth, size), hop
                break
    return chosen


def _hops_by_worth(
    state: MoveState, source: int, targets: list[int], window: _Window, budget_bytes: float
) -> Iterator[tuple[float, float, Hop]]:
    """The hops from a broker that take excess away, best first."""
    places, coming, leaving = state.copies_on(source)
    others = [target for target in targets if target != source]
    if not len(places) or not others:
        return
    used, capacity = state.used, state.capacity
    at_source = window.excess(used[[source]], capacity[[source]])
    at_source = at_source - window.excess(used[source] - leaving, np.full(len(places), capacity[source]))
    at_targets = window.excess(used[others], capacity[others])[:, None] - window.excess(
        used[others][:, None] + coming, np.broadcast_to(capacity[others][:, None], (len(others), len(places)))
    )
    worth = np.where(
        (coming > 0) & (coming <= budget_bytes),
        (at_source + at_targets) / np.maximum(2.0 * coming, 1.0),
        0.0,
    ).round(9)
    chosen = np.argwhere(worth >= _WORTH_MIN)
    ranks = np.lexsort(
        (chosen[:, 0], chosen[:, 1], -coming[chosen[:, 1]], -worth[chosen[:, 0], chosen[:, 1]])
    )
    for target_at, place_at in chosen[ranks]:
        hop = Hop(int(places[place_at]), source, others[target_at])
        yield float(worth[target_at, place_at]), float(coming[place_at]), hop
