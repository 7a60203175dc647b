"""Keep the shares of a stream whose end nobody knows from making a hot spot of the emptiest broker.

Levelling alone may send all that comes to one leader: on brokers 60/60/20 % full that is what fills the third
soonest, and it is right for a load that ends. A stream doesn't end: one leader would take what was meant for
all, and one consumer would read it. So, where nobody says how much is to come:

- Shares stay even while disks are: within `SPREAD_MAX`, and none forecast above `FORECAST_MAX`. Levelling
  that has begun goes on until a tenth of that spread is left, so that shares don't change to and fro.
- Otherwise a leader gets at most `LEADER_MAX` times its even share, a partition at most `PARTITION_MAX` times
  and at least `PARTITION_MIN` of its own.
- Unless that would overfill a disk: then as much of the bounds is given up as that disk needs.

The idea: goals are anybody's functions, so bounds aren't put into them. They are asked; what is over a bound
is given just that; and they are asked again for the rest, with what is given counted as stored. Each round
brings one partition or leader at least to its bound for good. As even shares are within all bounds, there is
always somebody left to take the rest. In clusters where asking takes long, the last rounds divide what is
over among those who have room, in proportion to what they get.

Invariants, checked in tests/property/router/test_safe_shares.py:
1. Shares are at least 0, sum to 1, and are within the bounds, unless a disk would be overfilled.
2. No disk is overfilled that wouldn't be without bounds.
3. Shares that were within the bounds already stay as they are.
4. For sets without a broker in common, `disk_usage` within the bounds is the best that there is.

Shares have no unit; bytes are stored bytes. Read next: router.py, which asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from evenload.router.brokers import BrokerTable
from evenload.router.levelling import FORECAST_MAX, GoalContext
from evenload.router.min_max import FloatArray

__all__ = [
    "LEADER_MAX",
    "PARTITION_MAX",
    "PARTITION_MIN",
    "SPREAD_MAX",
    "even_shares",
    "is_even_enough",
    "safe_shares",
]

LEADER_MAX = 2.0
PARTITION_MAX = 3.0
PARTITION_MIN = 0.1
SPREAD_MAX = 0.05

_SPREAD_LEFT = 0.1
# Asking about so many sets in all takes a quarter of a second; from then on, what is over goes to the others
# in proportion to what they have.
_ASKED_SETS_MAX = 6_000
_ASKS_MAX = 20  # of goals of somebody else, which may take a moment each
_ROUNDING = 1e-9

Ask = Callable[[GoalContext], FloatArray]
"""Answers [num_sets] shares that sum to 1, or nothing where no goal has an answer."""


def even_shares(context: GoalContext) -> FloatArray:
    """[num_sets] the same for each partition."""
    counts = context.num_partitions()
    return np.asarray(counts / counts.sum())


def is_even_enough(
    context: GoalContext, table: BrokerTable, willing: FloatArray, *, is_levelling: bool
) -> bool:
    """Whether disks are so even, and so far from full, that there is nothing to level.

    Args:
        context: the replica sets that may be written to, and what is to come.
        table: the brokers.
        willing: [num_brokers] how willing one is to send to each; where that differs, somebody wants skew.
        is_levelling: whether shares aren't even so far.
    """
    holding = np.isin(
        table.broker_ids, [broker_id for each in context.replica_sets for broker_id in each.replica_ids]
    )
    if np.ptp(willing[holding]) > 0:
        return False
    now = table.utilisation(np.zeros(len(holding)))[holding]
    spread_max = SPREAD_MAX * (_SPREAD_LEFT if is_levelling else 1.0)
    return bool(
        np.ptp(now) < spread_max
        and _forecast(context, table, even_shares(context))[holding].max() <= FORECAST_MAX
    )


def safe_shares(
    wanted: FloatArray, context: GoalContext, table: BrokerTable, ask: Ask, *, utilisation_limit: float
) -> FloatArray:
    """[num_sets] shares within the bounds, as near to what goals make of it as these leave room for.

    Args:
        wanted: [num_sets] what goals say without bounds; summing to 1.
        context: what they were asked about.
        table: the brokers, with capacities as they are.
        ask: asks the goals again.
        utilisation_limit: a disk that would be fuller is overfilled.
    """
    bounded = _bounded(wanted, context, table, ask)
    free, kept = _forecast(context, table, wanted), _forecast(context, table, bounded)
    # Levels are linear in shares: so much of what goals want brings each overfilled disk down to the limit.
    most = np.maximum(free, utilisation_limit)
    over = kept > most + _ROUNDING
    part = float(((kept - most)[over] / (kept - free)[over]).max(initial=0.0))
    return np.asarray(part * wanted + (1.0 - part) * bounded)


def _forecast(context: GoalContext, table: BrokerTable, shares: FloatArray) -> FloatArray:
    return table.utilisation(_added(context, table, shares))


def _added(context: GoalContext, table: BrokerTable, shares: FloatArray) -> FloatArray:
    """[num_brokers] bytes that come to each, all copies."""
    sets = [each.replica_ids for each in context.replica_sets]
    return table.added_bytes(sets, shares * context.horizon_bytes)


def _bounded(wanted: FloatArray, context: GoalContext, table: BrokerTable, ask: Ask) -> FloatArray:
    even = even_shares(context)
    leader_ids, leader = np.unique([each.leader_id for each in context.replica_sets], return_inverse=True)

    def led(shares: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(leader, shares, minlength=len(leader_ids)), dtype=np.float64)

    most, most_led = PARTITION_MAX * even, LEADER_MAX * led(even)

    def fitting(given: FloatArray, more: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What part of `more` each partition, and each leader, has room for; 1 where all of it fits."""
        return _part(most - given, more), _part(most_led - led(given), led(more))

    given = PARTITION_MIN * even
    if min(each.min() for each in fitting(np.zeros(len(even)), wanted)) >= 1.0 and (wanted >= given).all():
        return wanted
    is_open = np.ones(len(even), dtype=bool)
    num_asks_max = min(_ASKS_MAX, max(1, _ASKED_SETS_MAX // len(even)))
    answer = np.zeros(0)
    # Each round brings a partition or a leader at least to its bound.
    for num_asked in range(len(even) + len(leader_ids)):
        if num_asked < num_asks_max:
            answer = ask(_rest(context, table, given, is_open))
        if not answer.any():
            return _towards(even, given + (1.0 - given.sum()) * even, fitting)
        more = np.zeros(len(even))
        more[is_open] = (1.0 - given.sum()) * answer / answer.sum()
        part, part_led = fitting(given, more)
        if min(part.min(), part_led.min()) >= 1.0:
            return given + more
        is_tight = (part < 1.0) & (part <= part_led[leader])
        # A leader that has a tight partition may have room for the others yet: the next round tells.
        has_tight = np.bincount(leader, is_tight, minlength=len(leader_ids)) > 0
        is_tight |= ((part_led < 1.0) & ~has_tight)[leader]
        given = given + np.where(is_tight, np.minimum(part, part_led[leader]) * more, 0.0)
        answer = more[is_open & ~is_tight]
        is_open &= ~is_tight
        if not is_open.any() or given.sum() > 1.0 - _ROUNDING:
            break
    return np.asarray(given / given.sum())


def _towards(
    even: FloatArray,
    wanted: FloatArray,
    fitting: Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]],
) -> FloatArray:
    """As far on the straight line from even shares to `wanted` as all bounds allow; both have the floors."""
    part = min(float(each.min()) for each in fitting(even, wanted - even))
    return np.asarray(even + part * (wanted - even))


def _part(room: FloatArray, more: FloatArray) -> FloatArray:
    is_over = more > np.maximum(room, 0.0) + _ROUNDING
    return np.where(is_over, np.maximum(room, 0.0) / np.where(is_over, more, 1.0), 1.0)


def _rest(context: GoalContext, table: BrokerTable, given: FloatArray, is_open: FloatArray) -> GoalContext:
    """What goals are asked about once `given` is taken for stored, and only some sets are open to more."""
    leaders = [each.replica_ids[:1] for each in context.replica_sets]
    led_bytes = table.added_bytes(leaders, given * context.horizon_bytes)
    return replace(
        context,
        used_bytes=context.used_bytes + _added(context, table, given),
        leader_bytes=context.leader_bytes + led_bytes,
        replica_sets=tuple(
            each for each, is_left in zip(context.replica_sets, is_open, strict=True) if is_left
        ),
        horizon_bytes=context.horizon_bytes * (1.0 - float(given.sum())),
    )
