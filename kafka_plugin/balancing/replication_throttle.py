"""Throttles on the replication of what is being moved, and of nothing else.

Two settings on the brokers concerned hold the rate at which they send and take throttled replicas; two on
the topics concerned say which replicas those are. Somebody else's are respected: a rate that is set already
stays as it is (moves then go at that rate), and to lists of replicas only the missing entries are added, and
only these are taken out again.

Without an entry in a list a rate throttles nothing. So lists are taken off first, which any broker can do; a
rate can only be taken off by its own broker, so that of a dead one is left for the next time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evenload.kafka_plugin.balancing.admin import BalanceAdmin, SettingChange
from evenload.kafka_plugin.balancing.record import ThrottleRecord
from evenload.kafka_plugin.errors import BalanceInterruptedError
from evenload.router.moves.plan import Move

__all__ = ["FoundThrottle", "find_throttles", "lift_throttle", "plan_throttle", "set_throttle"]

_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_LEADERS = "leader.replication.throttled.replicas"
_FOLLOWERS = "follower.replication.throttled.replicas"
_LISTS = (_LEADERS, _FOLLOWERS)
_POLL_S = 0.05
_KNOWN_S = 5.0


@dataclass(frozen=True, slots=True)
class FoundThrottle:
    """A setting of a broker (by id) or of a topic (by name)."""

    of: int | str
    name: str
    value: str


def plan_throttle(admin: BalanceAdmin, moves: Sequence[Move], bytes_per_s: int) -> ThrottleRecord:
    """What would have to be set for these moves, beside what is set already."""
    brokers = sorted(
        {broker_id for move in moves for broker_id in (*move.replica_ids_before, *move.added_ids)}
    )
    rates = {}
    for broker_id in brokers:
        there = admin.settings(broker_id, _RATES)
        if missing := [name for name in _RATES if name not in there]:
            rates[broker_id] = dict.fromkeys(missing, str(bytes_per_s))
    replicas: dict[str, dict[str, list[str]]] = {}
    for topic in sorted({move.topic_partition.topic for move in moves}):
        there = admin.settings(topic, _LISTS)
        for name in _LISTS:
            listed = there.get(name, "").split(",")
            entries = [entry for entry in _entries(name, topic, moves) if entry not in listed]
            if entries and "*" not in listed:
                replicas.setdefault(topic, {})[name] = entries
    return ThrottleRecord(rates=rates, replicas=replicas)


def set_throttle(admin: BalanceAdmin, throttle: ThrottleRecord, *, timeout_s: float) -> None:
    """Puts it on, and waits until brokers know: what is moved before that goes unthrottled.

    Brokers learn of changes in the order in which they were made. So lists come first: whoever knows its rate
    knows the lists too.
    """
    for topic, lists in throttle.replicas.items():
        changes = [
            SettingChange(name=name, operation="APPEND", value=",".join(entries))
            for name, entries in lists.items()
        ]
        admin.change_settings(topic, changes)
    for broker_id, rates in throttle.rates.items():
        changes = [SettingChange(name=name, operation="SET", value=value) for name, value in rates.items()]
        admin.change_settings(broker_id, changes)
    deadline_s = time.monotonic() + timeout_s
    for broker_id, rates in throttle.rates.items():
        while admin.settings(broker_id, list(rates)) != rates:
            if time.monotonic() > deadline_s:
                reason = f"broker {broker_id} doesn't know its rate after {timeout_s:.0f} s"
                raise BalanceInterruptedError("setting throttles", reason)
            time.sleep(_POLL_S)


def lift_throttle(
    admin: BalanceAdmin, throttle: ThrottleRecord, *, kept: ThrottleRecord | None = None
) -> ThrottleRecord | None:
    """Takes off what is ours and has not been changed by somebody else since.

    Args:
        admin: the cluster.
        throttle: what to take off.
        kept: what of ours stays: entries in the same lists, which the broker that is asked may not have yet.

    Returns:
        What is left, as its brokers don't answer: rates without effect. None when nothing is.
    """
    staying = kept.replicas if kept is not None else {}
    gives_up_at_s = time.monotonic() + _KNOWN_S
    for topic, lists in throttle.replicas.items():
        there = admin.settings(topic, _LISTS)
        admin.change_settings(
            topic,
            [
                _taken_out(name, entries, there[name], is_all=name not in staying.get(topic, {}))
                for name, entries in lists.items()
                if name in there
            ],
        )
        emptying = {name: lists[name] for name in lists if name not in staying.get(topic, {})}
        _delete_emptied(admin, topic, emptying, gives_up_at_s)
    left = {}
    for broker_id, rates in throttle.rates.items():
        try:
            there = admin.settings(broker_id, _RATES)
            ours = [name for name, value in rates.items() if there.get(name) == value]
            admin.change_settings(broker_id, [SettingChange(name=name, operation="DELETE") for name in ours])
        except BalanceInterruptedError:
            left[broker_id] = rates
    return ThrottleRecord(rates=left) if left else None


def find_throttles(admin: BalanceAdmin) -> tuple[tuple[FoundThrottle, ...], tuple[int | str, ...]]:
    """All that is set on any broker and on any topic, whoever has set it; and those that didn't tell.

    Rates of a broker that is down are without effect meanwhile.
    """
    found: list[FoundThrottle] = []
    untold: list[int | str] = []
    for broker_id in admin.broker_ids():
        try:
            rates = admin.settings(broker_id, _RATES)
        except BalanceInterruptedError:
            untold.append(broker_id)
        else:
            found += [FoundThrottle(broker_id, name, value) for name, value in sorted(rates.items())]
    of_topics, untold_topics = admin.settings_of_topics(_LISTS)
    for topic, lists in of_topics.items():
        found += [FoundThrottle(topic, name, value) for name, value in sorted(lists.items())]
    return tuple(found), (*untold, *untold_topics)


def _delete_emptied(
    admin: BalanceAdmin, topic: str, lists: Mapping[str, Sequence[str]], gives_up_at_s: float
) -> None:
    """Lists in which nothing is left: whoever takes out the last entry leaves an empty one, which stays set.

    Who read an older list than there was has taken the last entry out without knowing; and the broker that
    is asked now may not know yet what was taken out, so it is asked until it does. An entry that somebody
    else adds in the milliseconds in which it doesn't hear of that is lost: Kafka deletes by name alone.
    """
    while lists:
        there = admin.own_settings(topic, list(lists))
        if time.monotonic() > gives_up_at_s or all(
            set(entries).isdisjoint(there.get(name, "").split(",")) for name, entries in lists.items()
        ):
            emptied = [SettingChange(name=name, operation="DELETE") for name in there if not there[name]]
            admin.change_settings(topic, emptied)
            return
        time.sleep(_POLL_S)


def _taken_out(name: str, entries: Sequence[str], value: str, *, is_all: bool) -> SettingChange:
    if is_all and set(value.split(",")) <= set(entries):  # an empty list would stay as a setting
        return SettingChange(name=name, operation="DELETE")
    return SettingChange(name=name, operation="SUBTRACT", value=",".join(entries))


def _entries(name: str, topic: str, moves: Sequence[Move]) -> Iterable[str]:
    """Leaders throttle what they send to new copies; any old copy may come to lead on the way."""
    for move in moves:
        if move.topic_partition.topic == topic:
            brokers = move.replica_ids_before if name == _LEADERS else move.added_ids
            for broker_id in brokers:
                yield f"{move.topic_partition.partition}:{broker_id}"
