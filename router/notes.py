"""A route's notes: sentences about what routing leaves uneven, whom it leaves out, and what would help.

Routing chooses among the partitions that a topic has. It can't lower a broker that is too full already, reach
a broker without a partition, or part brokers that share every replica set. None of that is hidden: each is a
note on the route, and on every page that shows it.

Numbers are rounded, so that a note stays the same while nothing of interest changes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evenload.router.brokers import BrokerTable
from evenload.router.levelling import FORECAST_MAX, ReplicaSet
from evenload.router.min_max import FloatArray
from evenload.router.safe_shares import SPREAD_MAX
from evenload.router.volumes import name_of
from evenload.sizes import bytes_text

__all__ = ["Decision", "Restraint", "notes_on", "put_aside_notes"]

# Utilisations that differ by less are even, as far as a person is concerned.
_SPREAD_MIN = 0.01
_NAMED_MAX = 5
# Less of a difference in what brokers lead is hardly waited for.
_LED_MIN = 0.02

Restraint = Literal["even", "bounded"]
"""Why a stream's shares aren't those that goals want: disks are even enough, or a bound was reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided for a topic, and from what.

    Attributes:
        topic: the topic.
        table: the brokers.
        all_sets: every replica set of the topic that has a leader.
        sets: those of them that may get a share.
        shares: [num_sets] what each of `sets` gets.
        goals: names of those that had a say.
        leader_bytes: [num_brokers] what each leads of the topic.
        restraint: what holds back a stream, of which nobody knows how much is to come.
        horizon_bytes: stored bytes to come, per copy.
        left_out: by broker id, why it should get nothing.
        closed: brokers that nothing can or should be put on, whether they hold the topic or not.
        leaderless: partitions that have no leader.
        lagging: partitions that have too few replicas in sync.
        unknown: partitions that the snapshot does not hold.
        put_aside: by name of a goal or score function, what was wrong with it.
    """

    topic: str
    table: BrokerTable
    all_sets: tuple[ReplicaSet, ...]
    sets: tuple[ReplicaSet, ...]
    shares: FloatArray
    goals: Collection[str]
    leader_bytes: FloatArray
    restraint: Restraint | None
    horizon_bytes: float
    left_out: Mapping[int, str]
    closed: Container[int]
    leaderless: Sequence[int]
    lagging: Sequence[int]
    unknown: Sequence[int]
    put_aside: Mapping[str, str]


def notes_on(decision: Decision) -> tuple[str, ...]:
    """The notes for a route, most urgent first; none when everything can be levelled."""
    return tuple(
        sentence
        for part in (
            put_aside_notes,
            _left_out,
            _unwritable,
            _capacities,
            _all_alike,
            _unreached,
            _uneven,
            _uneven_reading,
        )
        for sentence in part(decision)
    )


def put_aside_notes(decision: Decision) -> tuple[str, ...]:
    """The goals and score functions that have no say, and why."""
    return tuple(f"{name!r} was put aside: it {fault}." for name, fault in decision.put_aside.items())


def _left_out(decision: Decision) -> Iterator[str]:
    written_to = {broker_id for replica_set in decision.sets for broker_id in replica_set.replica_ids}
    reasons: dict[tuple[str, bool], list[int]] = {}
    for broker_id, reason in decision.left_out.items():
        reasons.setdefault((reason, broker_id in written_to), []).append(broker_id)
    for (reason, is_written_to), broker_ids in reasons.items():
        who = _brokers(broker_ids)
        if is_written_to:
            yield f"{who} should get nothing ({reason}), but no other can take data of {decision.topic!r}."
        else:
            yield f"{who} left out: {reason}."


def _unwritable(decision: Decision) -> Iterator[str]:
    if decision.leaderless:
        yield (
            f"partitions {_list(decision.leaderless)} of {decision.topic!r} have no leader: "
            "nothing is sent there until one is elected."
        )
    if decision.lagging:
        written_to = {number for each in decision.sets for number in each.partitions}
        are_alone = bool(written_to.intersection(decision.lagging))
        so = ", but there are no others" if are_alone else ": nothing is sent there until they caught up"
        yield (
            f"partitions {_list(decision.lagging)} of {decision.topic!r} have too few replicas in sync "
            f"to take records{so}."
        )
    if decision.unknown:
        yield (
            f"partitions {_list(decision.unknown)} of {decision.topic!r} are not in the snapshot yet: "
            "nothing is sent there."
        )


def _capacities(decision: Decision) -> Iterator[str]:
    table = decision.table
    held = table.used_bytes - table.announced_bytes
    over = np.array(table.broker_ids)[~table.is_assumed & (held > table.capacity_bytes)].tolist()
    if over:
        yield (
            f"{_brokers(over)} {_holds(over)} more than the capacity that is configured. "
            "Correct capacity_bytes_by_broker, or make room."
        )
    assumed = table.is_assumed & table.is_known
    if not assumed.any():
        return
    if assumed[table.is_known].all():
        yield (
            "no broker's capacity is known: bytes are levelled as if all were equal. "
            "Configure capacity_bytes_by_broker."
        )
        return
    who = _brokers(np.array(table.broker_ids)[assumed].tolist())
    yield (
        f"{who}: capacity not known, the smallest that is known of another is assumed. "
        "Configure capacity_bytes_by_broker."
    )


def _all_alike(decision: Decision) -> Iterator[str]:
    if _are_all_alike(decision):
        yield (
            f"every partition of {decision.topic!r} has a copy on all {len(decision.table.broker_ids)} "
            "brokers: routing can't change how full they get. Fewer replicas, or more brokers, would."
        )


def _are_all_alike(decision: Decision) -> bool:
    brokers = set(decision.table.broker_ids)
    return len(brokers) > 1 and all(set(each.replica_ids) == brokers for each in decision.all_sets)


def _unreached(decision: Decision) -> Iterator[str]:
    table = decision.table
    holding = {broker_id for replica_set in decision.all_sets for broker_id in replica_set.replica_ids}
    highest = max(after for broker_id, after in _after(decision).items() if broker_id in holding)
    emptier = [
        broker_id
        for broker_id, now in zip(
            table.broker_ids, table.utilisation(np.zeros(len(table.broker_ids))), strict=True
        )
        if broker_id not in holding and broker_id not in decision.closed and now < highest - _SPREAD_MIN
    ]
    if emptier:
        yield (
            f"{_brokers(emptier)} could take data but {_holds(emptier)} no partition of {decision.topic!r}. "
            "Adding partitions there, or moving replicas there, would help."
        )


def _uneven(decision: Decision) -> Iterator[str]:
    if "disk_usage" not in decision.goals:
        return  # nobody wants level disks
    holding = {broker_id for replica_set in decision.all_sets for broker_id in replica_set.replica_ids}
    after = {broker_id: level for broker_id, level in _after(decision).items() if broker_id in holding}
    open_ids = [broker_id for broker_id in after if broker_id not in decision.left_out]
    fullest, emptiest = max(after, key=after.__getitem__), min(open_ids or after, key=after.__getitem__)
    spread = after[fullest] - after[emptiest]
    if spread < _SPREAD_MIN or _are_all_alike(decision):
        return
    got = {
        broker_id
        for replica_set, share in zip(decision.sets, decision.shares, strict=True)
        for broker_id in replica_set.replica_ids
        if share > 0
    }
    yield (
        f"{spread:.0%} of utilisation will stay between broker {name_of(fullest)} ({after[fullest]:.0%}) "
        f"and broker {name_of(emptiest)} ({after[emptiest]:.0%}) "
        f"after the next {bytes_text(decision.horizon_bytes)}: "
        f"{_why_uneven(decision, fullest, is_written=fullest in got)}."
    )


def _why_uneven(decision: Decision, fullest: int, *, is_written: bool) -> str:
    if decision.restraint == "even":
        return f"nobody knows how much is to come, and below {SPREAD_MAX:.0%} shares stay even then"
    if decision.restraint == "bounded":
        return (
            "nobody knows how much is to come, so no leader gets more than twice its even share, and each "
            "partition a tenth of its own. Saying it (`expect`) would help"
        )
    if is_written:
        why = "it shares replica sets with the others. Partitions with other replica sets would help"
    else:
        why = (
            "it gets nothing, but what it holds stays there. More data, or moving replicas off it, would help"
        )
    return f"broker {name_of(fullest)} can't be lowered, {why}"


def _uneven_reading(decision: Decision) -> Iterator[str]:
    if "dataset_spread" not in decision.goals:
        return
    table = decision.table
    leaders = [replica_set.replica_ids[:1] for replica_set in decision.sets]
    led = decision.leader_bytes + table.added_bytes(leaders, decision.shares * decision.horizon_bytes)
    after, most = _after(decision), float(led.max())
    crowded = [
        broker_id
        for broker_id, size_bytes, is_assumed in zip(
            table.broker_ids, led.tolist(), table.is_assumed.tolist(), strict=True
        )
        if (broker_id,) in leaders
        and not is_assumed
        and after[broker_id] > FORECAST_MAX - _SPREAD_MIN
        and size_bytes < (1 - _LED_MIN) * most
    ]
    if crowded:
        yield (
            f"{_brokers(crowded)} will have less of {decision.topic!r} than others, and readers wait for "
            f"those: disks come first from {FORECAST_MAX:.0%} on."
        )


def _after(decision: Decision) -> dict[int, float]:
    sets = [replica_set.replica_ids for replica_set in decision.sets]
    added = decision.table.added_bytes(sets, decision.shares * decision.horizon_bytes)
    return dict(zip(decision.table.broker_ids, decision.table.utilisation(added).tolist(), strict=True))


def _brokers(broker_ids: Iterable[int]) -> str:
    ids = sorted(broker_ids)
    return f"broker {name_of(ids[0])}" if len(ids) == 1 else f"brokers {_list(ids)}"


def _holds(broker_ids: Sequence[int]) -> str:
    return "holds" if len(broker_ids) == 1 else "hold"


def _list(numbers: Sequence[int]) -> str:
    named = ", ".join(map(name_of, numbers[:_NAMED_MAX]))
    more = len(numbers) - _NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named
