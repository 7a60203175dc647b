"""Decide where a topic's next bytes should go, from a snapshot.

The idea: a route is computed from scratch each time, by the same steps: who may be written to, how full each
broker is by now (the snapshot plus the producer's own bytes since), how willing one is to send to it, what
the goals make of that, and whether it differs enough from what is followed already. There is no state but the
weights in force, who is put aside, and counts; two routers that are given the same answer the same.

Deciding never raises because of what was measured. Where no partition has a leader, or nothing fresh is
known, shares are even: a fallback, with the reason in it.

Invariants, checked in tests/property/router/test_route_decisions.py:
1. Shares are at least 0 and sum to 1, for any snapshot.
2. A partition without a leader, or with too few replicas in sync, gets nothing while another has both.
3. A broker that is unreachable or over its limit gets nothing while another can take the data.
4. Shares that are kept because of the dead band leave no broker's utilisation further from the new ones' than
   the band.

Bytes are stored bytes; what a producer counts itself is payload, and `stored_ratio` turns it into stored
bytes. Read next: situation.py for what is known, candidates.py for who may be written to, levelling.py for
the goals, route.py for what is handed out.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from evenload.router.brokers import BrokerTable
from evenload.router.config import RouterConfig
from evenload.router.levelling import Goal, GoalContext, MixedShares, ReplicaSet, mix_goals
from evenload.router.min_max import FloatArray
from evenload.router.notes import Decision, Restraint, notes_on, put_aside_notes
from evenload.router.patience import Patience
from evenload.router.plugins import GOALS, SCORE_FUNCTIONS, PutAside, WeightedPlugins
from evenload.router.route import Route
from evenload.router.safe_shares import even_shares, is_even_enough, safe_shares
from evenload.router.scoring import (
    WILLINGNESS_MIN,
    ScoreContext,
    ScoreFunction,
    Willingness,
    capacity_as_seen,
    willingness,
)
from evenload.router.situation import Situation, look
from evenload.router.volumes import broker_of
from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot

__all__ = ["FallbackReason", "Router"]

FallbackReason = Literal["no_snapshot", "stale_snapshot", "unknown_topic", "no_leader", "no_goal"]
"""Why shares are even: nothing was measured yet; too long ago; the snapshot does not hold the topic; none of
its partitions has a leader; every goal failed."""

# Where other goals than disk_usage are in force, a previous route is kept only while each broker's part
# of the bytes led is within this of the new one's: utilisation alone would not see that reading is
# uneven.
_LEADER_SHARE_BAND = 0.02
_SKIPPED_ROUNDS = 4
# A load ends up to a turn away from its shares in each partition: a hundredth of what a partition gets.
_TURNS = 100
# A topic that retention lets grow by less is as large as it gets.
_GROWTH_MIN_BYTES = 1 << 20
_STEADY_NOTES = (
    "retention.bytes deletes as much as comes: how full brokers are doesn't depend on where data goes, so "
    "shares are even.",
)
_BATCH_BYTES_MIN = 32 * 1024
_SHARE_ROUNDING = 1e-9
# Where nobody knows how much is to come, a turn fills no broker by more than this part, or is short.
_TURN_FRACTION = 1e-4
_SHORT_TURN_BYTES = 256 * 1024


class Router:
    """Makes routes. Any thread may call `route` and `reload`, at the same time."""

    def __init__(
        self,
        config: RouterConfig | None = None,
        *,
        goals: Mapping[str, Goal] | None = None,
        score_functions: Mapping[str, ScoreFunction] | None = None,
        start: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        patience: type[Patience] = Patience,
    ) -> None:
        """Makes a router with the weights of its configuration in force.

        Args:
            config: what even means and how sure one has to be; by default `RouterConfig()`.
            goals: functions by name, which come before entry points of the same name.
            score_functions: likewise.
            start: from 0 to below 1, another one for each producer, so that those that start together
                don't send their first batches to the same partition.
            clock: seconds that only grow: how long functions take, and for how long they are put aside.
            patience: asks the functions, and is made of how long they may take and of the clock.

        Raises:
            PluginError: a goal or score function with a weight is not known or can't be imported.
            WeightError: a weight can't be used, or no goal has one above 0.
        """
        if not 0 <= start < 1:
            raise ValueError(f"start is {start}, it has to be from 0 to below 1")
        self.config = config or RouterConfig()
        self._start = start
        self._goals = WeightedPlugins(GOALS, self.config.goals, functions=goals, needs_one=True)
        self._score_functions = WeightedPlugins(
            SCORE_FUNCTIONS, self.config.score_functions, functions=score_functions
        )
        self._weight_by_broker: Mapping[int, float] = {}
        self._patience = patience(self.config.function_time_max_s, clock)
        self._goals_aside: PutAside[Goal] = PutAside(self.config.put_aside_s, clock)
        self._scores_aside: PutAside[ScoreFunction] = PutAside(self.config.put_aside_s, clock)
        self._fallbacks: Counter[str] = Counter()

    @property
    def fallbacks(self) -> dict[str, int]:
        """How many routes were fallbacks, by reason."""
        return dict(self._fallbacks)

    @property
    def put_aside(self) -> dict[str, str]:
        """The goals and score functions that have no say at the moment, by name, with what they did."""
        return self._goals_aside.current | self._scores_aside.current

    @property
    def put_aside_counts(self) -> dict[str, int]:
        """How often a goal or score function was put aside, by name."""
        return self._goals_aside.counts | self._scores_aside.counts

    def reload(
        self,
        *,
        goals: Mapping[str, float] | None = None,
        score_functions: Mapping[str, float] | None = None,
        brokers: Mapping[int, float] | None = None,
    ) -> tuple[str, ...]:
        """Puts other weights in force, from the next route on.

        Args:
            goals: weights by name, in place of all that were in force; None leaves them.
            score_functions: likewise.
            brokers: willingness by broker id, from 0 (drained) to 1, times what scores say; in place of
                all that was in force.

        Returns:
            A sentence for each of the three that was refused; its old weights stay in force.
        """
        told = (
            None if goals is None else self._goals.replace(goals),
            None if score_functions is None else self._score_functions.replace(score_functions),
            None if brokers is None else self._replace_brokers(brokers),
        )
        self._goals_aside.forgive()
        self._scores_aside.forgive()
        return tuple(complaint for complaint in told if complaint is not None)

    def _replace_brokers(self, weights: Mapping[int, float]) -> str | None:
        for broker_id, weight in weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
                return f"weight of broker {broker_id} is {weight!r}: has to be a number from 0 to 1."
        self._weight_by_broker = dict(weights)
        return None

    def explain(
        self, snapshot: ClusterSnapshot, topic: str = "", *, now_s: float | None = None
    ) -> Willingness:
        """How willing one is to send to each broker of a snapshot, and why.

        Args:
            snapshot: what is known.
            topic: the topic to be written, for score functions that look at it.
            now_s: the time, seconds since 1970; None: when the snapshot was taken.
        """
        at_s = snapshot.taken_at_s if now_s is None else now_s
        context = ScoreContext(snapshot=snapshot, topic=topic, now_s=at_s)
        return replace(self._ask(snapshot.brokers.values(), context), put_aside=self.put_aside)

    def route(
        self,
        snapshot: ClusterSnapshot | None,
        topic: str,
        *,
        num_partitions: int,
        remaining_bytes: int | None,
        now_s: float,
        is_least: bool = False,
        own_bytes: Mapping[int, int] | None = None,
        previous: Route | None = None,
        stored_ratio: float = 1.0,
    ) -> Route:
        """Shares over the partitions of a topic.

        Args:
            snapshot: what is known of the cluster, or None.
            topic: the topic's name.
            num_partitions: how many partitions the producer knows of, at least 1; others get nothing.
            remaining_bytes: payload bytes that this topic will still get, or None when nobody knows.
            now_s: the time, seconds since 1970.
            is_least: whether more than `remaining_bytes` may come, nobody knows how much.
            own_bytes: payload bytes that this producer has sent since the snapshot was taken, by partition.
            previous: the route followed so far. It is what comes back, itself, while nothing has changed.
            stored_ratio: stored bytes for each payload byte, above 0.

        Raises:
            ValueError: an argument is outside what is said above.
        """
        _check(num_partitions, remaining_bytes, stored_ratio)
        if snapshot is None:
            return self._fallback("no_snapshot", num_partitions, previous)
        if snapshot.age_s(now_s) > self.config.snapshot_age_max_s:
            return self._fallback("stale_snapshot", num_partitions, previous)
        if not snapshot.topics.get(topic):
            return self._fallback("unknown_topic", num_partitions, previous)
        own_stored = {number: size * stored_ratio for number, size in (own_bytes or {}).items()}
        known = look(
            snapshot,
            topic,
            num_partitions=num_partitions,
            own_stored=own_stored,
            asked=self._ask_of_topic(snapshot, topic, now_s),
            utilisation_limit=self.config.utilisation_limit,
        )
        if known is None:
            return self._fallback("no_leader", num_partitions, previous)
        growth = known.growth_max_bytes()
        if growth < _GROWTH_MIN_BYTES:
            return self._steady(known.candidates.sets, previous)
        remaining_stored = None if remaining_bytes is None else remaining_bytes * stored_ratio
        context = GoalContext(
            broker_ids=known.table.broker_ids,
            used_bytes=known.table.used_bytes,
            capacity_bytes=capacity_as_seen(
                known.table.used_bytes, known.table.capacity_bytes, known.candidates.willing
            ),
            known_capacity_bytes=known.table.known_capacity_bytes,
            willing=np.maximum(known.candidates.willing, WILLINGNESS_MIN),
            leader_bytes=known.leader_bytes(),
            replica_sets=known.candidates.sets,
            horizon_bytes=min(
                growth, self._horizon_bytes(remaining_stored, is_least, sum(own_stored.values()), known)
            ),
        )
        mixed = self._mix(context)
        restraint: Restraint | None = None
        if remaining_bytes is None and self.config.safe_streams and mixed.names:
            mixed, restraint = self._keep_safe(mixed, context, known, previous)
            if previous is not None and not _reaches_all(previous, known.candidates.sets):
                previous = None  # while brokers are even, it would keep a partition from its least for ever
        decision = self._decision(known, mixed, restraint, context, num_partitions)
        if not mixed.names:
            return self._fallback("no_goal", num_partitions, previous, put_aside_notes(decision))
        batch_bytes = self._batch_bytes(remaining_bytes, num_partitions, known)
        return self._follow(mixed, context, decision, previous, batch_bytes)

    def _mix(self, context: GoalContext) -> MixedShares:
        mixed = mix_goals(
            self._goals_aside.without(self._goals.current),
            context,
            patience=self._patience,
        )
        self._goals_aside.add(mixed.put_aside)
        return mixed

    def _keep_safe(
        self, mixed: MixedShares, context: GoalContext, known: Situation, previous: Route | None
    ) -> tuple[MixedShares, Restraint | None]:
        """The shares that a stream gets in place of those that goals want, and what holds it back."""
        # Even disks say nothing to other goals.
        if mixed.names == {"disk_usage"} and is_even_enough(
            context,
            known.table,
            known.candidates.willing,
            is_levelling=previous is not None and not _is_even(previous),
        ):
            return replace(mixed, shares=even_shares(context)), "even"
        safe = safe_shares(
            mixed.shares,
            context,
            known.table,
            lambda rest: self._mix(rest).shares,
            utilisation_limit=self.config.utilisation_limit,
        )
        is_bounded = not np.allclose(safe, mixed.shares)
        return replace(mixed, shares=safe), "bounded" if is_bounded else None

    def _decision(
        self,
        known: Situation,
        mixed: MixedShares,
        restraint: Restraint | None,
        context: GoalContext,
        num_partitions: int,
    ) -> Decision:
        """What was decided, for the notes."""
        layout = known.layout
        return Decision(
            topic=known.topic,
            table=known.table,
            all_sets=known.all_sets,
            sets=known.candidates.sets,
            shares=mixed.shares,
            goals=mixed.names,
            leader_bytes=context.leader_bytes,
            restraint=restraint,
            horizon_bytes=context.horizon_bytes,
            left_out=known.candidates.left_out,
            closed=self._closed(known.snapshot),
            leaderless=sorted(number for number, placed in layout.items() if placed.leader_id is None),
            lagging=known.lagging,
            unknown=sorted(set(range(num_partitions)) - set(layout)),
            put_aside=self.put_aside,
        )

    def _follow(
        self,
        mixed: MixedShares,
        context: GoalContext,
        decision: Decision,
        previous: Route | None,
        batch_bytes: int,
    ) -> Route:
        """A route of the new shares, or of the previous ones while they are as good."""
        notes = notes_on(decision)
        if (
            previous is None
            or not previous.has_begun
            or not self._is_within_band(previous, mixed, context, decision.table)
        ):
            shares = _by_partition(decision.sets, mixed.shares)
            return self._new(shares, previous, notes=notes, batch_bytes=batch_bytes)
        if previous.notes == notes:
            return previous
        return self._new(previous.shares, previous, notes=notes, batch_bytes=batch_bytes)

    def _steady(self, sets: Sequence[ReplicaSet], previous: Route | None) -> Route:
        """Even shares: whatever goes to a partition, as much is deleted there."""
        numbers = [number for each in sets for number in each.partitions]
        shares = dict.fromkeys(numbers, 1.0 / len(numbers))
        if previous is not None and previous.notes == _STEADY_NOTES and previous.shares == shares:
            return previous
        return self._new(shares, previous, notes=_STEADY_NOTES)

    def _skipped_turns(self, num_partitions: int) -> int:
        # At first every batch is due at once, and large shares go first; after about as many turns as
        # partitions, any stretch of turns has each as often as its share.
        return int(num_partitions * (1 + _SKIPPED_ROUNDS * self._start)) if self._start else 0

    def _ask_of_topic(self, snapshot: ClusterSnapshot, topic: str, now_s: float) -> Willingness:
        """How willing one is to send to each broker that holds the topic."""
        holding = {
            broker_id for placed in snapshot.topics[topic].values() for broker_id in placed.replica_ids
        }
        brokers = [
            snapshot.brokers[broker_id] for broker_id in sorted(holding) if broker_id in snapshot.brokers
        ]
        return self._ask(brokers, ScoreContext(snapshot=snapshot, topic=topic, now_s=now_s))

    def _closed(self, snapshot: ClusterSnapshot) -> frozenset[int]:
        return frozenset(
            place_id
            for place_id, broker in snapshot.brokers.items()
            if not broker.is_reachable
            or broker.is_cordoned
            or self._weight_by_broker.get(broker_of(place_id), 1.0) == 0
        )

    def _ask(self, brokers: Iterable[BrokerSnapshot], context: ScoreContext) -> Willingness:
        asked = willingness(
            brokers,
            context,
            self._scores_aside.without(self._score_functions.current),
            weight_by_broker=self._weight_by_broker,
            patience=self._patience,
        )
        self._scores_aside.add(asked.put_aside)
        return asked

    def _fallback(
        self,
        reason: FallbackReason,
        num_partitions: int,
        previous: Route | None,
        notes: tuple[str, ...] = (),
    ) -> Route:
        self._fallbacks[reason] += 1
        if previous is not None and previous.reason == reason and len(previous.shares) == num_partitions:
            return previous
        even = dict.fromkeys(range(num_partitions), 1.0 / num_partitions)
        return self._new(even, previous, reason=reason, notes=notes)

    def _new(
        self,
        shares: Mapping[int, float],
        previous: Route | None,
        *,
        notes: tuple[str, ...],
        reason: FallbackReason | None = None,
        batch_bytes: int | None = None,
    ) -> Route:
        return Route(
            shares,
            batch_bytes=batch_bytes or self.config.batch_bytes,
            reason=reason,
            notes=notes,
            previous=previous,
            skip_turns=self._skipped_turns(len(shares)),
        )

    def _batch_bytes(self, remaining_bytes: int | None, num_partitions: int, known: Situation) -> int:
        """How long to stay on a partition: less than configured where one turn more or less would be seen."""
        if remaining_bytes is None:
            unseen_bytes = int(_TURN_FRACTION * float(known.holding_capacity_bytes().min()))
            return min(self.config.batch_bytes, max(_SHORT_TURN_BYTES, unseen_bytes))
        unseen_bytes = remaining_bytes // (num_partitions * _TURNS)
        return min(self.config.batch_bytes, max(_BATCH_BYTES_MIN, unseen_bytes))

    def _horizon_bytes(
        self, remaining_bytes: float | None, is_least: bool, own_bytes: float, known: Situation
    ) -> float:
        capacity = known.holding_capacity_bytes()
        least_bytes = max(self.config.horizon_fraction_min * float(capacity.mean()), 1.0)
        unsaid_bytes = self.config.horizon_fraction * float(capacity.sum())
        if remaining_bytes is None:
            least_bytes = max(least_bytes, unsaid_bytes)
        elif is_least:  # less what came of it since: a load that is over soon would not be level by then
            least_bytes = max(least_bytes, unsaid_bytes - own_bytes)
        return max(remaining_bytes or 0.0, least_bytes)

    def _is_within_band(
        self, previous: Route, mixed: MixedShares, context: GoalContext, table: BrokerTable
    ) -> bool:
        """Whether following `previous` further would leave things as the new shares would."""
        if previous.is_fallback:
            return False
        sets = context.replica_sets
        before = np.array(
            [sum(previous.shares.get(number, 0.0) for number in each.partitions) for each in sets]
        )
        if before.sum() < 1.0 - 1e-9:  # some of it goes where nothing may go now
            return False
        change = (before - mixed.shares) * context.horizon_bytes
        copies = table.added_bytes([each.replica_ids for each in sets], change)
        if np.abs(copies / np.maximum(table.capacity_bytes, 1.0)).max() > self.config.dead_band:
            return False
        if mixed.names == {"disk_usage"}:
            return True
        led = table.added_bytes([each.replica_ids[:1] for each in sets], change) / context.horizon_bytes
        return bool(np.abs(led).max() <= _LEADER_SHARE_BAND)


def _check(num_partitions: int, remaining_bytes: int | None, stored_ratio: float) -> None:
    if num_partitions < 1:
        raise ValueError(f"num_partitions is {num_partitions}, it has to be at least 1")
    if remaining_bytes is not None and remaining_bytes < 0:
        raise ValueError(f"remaining_bytes is {remaining_bytes}, it has to be at least 0, or None")
    if not 0 < stored_ratio < math.inf:
        raise ValueError(f"stored_ratio is {stored_ratio}, it has to be finite and above 0")


def _reaches_all(route: Route, sets: Sequence[ReplicaSet]) -> bool:
    """Whether each partition of these gets something."""
    return all(number in route.shares for each in sets for number in each.partitions)


def _is_even(route: Route) -> bool:
    shares = route.shares.values()
    return max(shares) - min(shares) < _SHARE_ROUNDING


def _by_partition(sets: Sequence[ReplicaSet], shares: FloatArray) -> dict[int, float]:
    return {
        number: float(share) / len(each.partitions)
        for each, share in zip(sets, shares, strict=True)
        for number in each.partitions
    }
