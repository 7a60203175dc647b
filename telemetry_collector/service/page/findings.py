"""What an operator has to know, in sentences, the most urgent first.

The idea: a finding is a function of what is shown, so the page never says something that its own numbers
don't show, and a test replays any night without a cluster. Each function looks for one kind of trouble and
says it once, about all the brokers that have it.

The bounds are those of deploy/prometheus/alerts.yml, so that page and pager agree
(tests/unit/project/test_deploy.py compares them).

Invariants, checked in tests/property/telemetry_collector/service/page/test_overview.py:
1. There is always at least one finding; "all is well" is said alone, and only when nothing else is.
2. The most urgent come first.
3. A broker that doesn't answer, or is full, is named in a critical finding.

Read next: overview.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from evenload.sizes import bytes_text
from evenload.telemetry_collector.service.page.overview_model import (
    BrokerOverview,
    Finding,
    Overview,
    Severity,
)

__all__ = ["ALMOST_FULL", "FULL_SOON_S", "FULL_VERY_SOON_S", "SPREAD_MAX", "find"]

ALMOST_FULL = 0.9
"""A broker that is fuller needs somebody today, whether or not bytes come."""
FULL_SOON_S = 24 * 3600.0
"""A broker that will be full sooner needs somebody today."""
FULL_VERY_SOON_S = 2 * 3600.0
"""A broker that will be full sooner needs somebody now."""
SPREAD_MAX = 0.1
"""Brokers whose utilisations lie further apart are uneven."""

_URGENCY: dict[Severity, int] = {"critical": 0, "warning": 1, "notice": 2, "fine": 3}


def find(overview: Overview) -> tuple[Finding, ...]:
    """All that is to be said about `overview`, the most urgent first."""
    found = [finding for look in _LOOKS for finding in look(overview)]
    found.sort(key=lambda finding: _URGENCY[finding.severity])
    return tuple(found) or (Finding(kind="fine", severity="fine", text=_all_is_well(overview)),)


def _measurements(overview: Overview) -> Iterator[Finding]:
    if overview.age_s is None:
        severity: Severity = "critical" if overview.num_failures else "notice"
        why = next((f": {question}: {reason}" for question, reason in overview.failures.items()), "")
        yield Finding(kind="nothing_measured", severity=severity, text=f"Nothing has been measured yet{why}.")
    elif overview.is_stale:
        yield Finding(
            kind="stale",
            severity="critical",
            text=f"Measurements are {_duration(overview.age_s)} old; "
            "producers don't decide from them any more.",
        )


def _unreachable(overview: Overview) -> Iterator[Finding]:
    silent = [broker for broker in overview.brokers if not broker.is_reachable]
    since = f"answered for {_duration(max((b.unreachable_s or 0.0 for b in silent), default=0.0))}"
    yield from _about(silent, "unreachable", "critical", f"hasn't {since}", f"haven't {since}")


def _full(overview: Overview) -> Iterator[Finding]:
    full = [broker for broker in overview.brokers if _is_full(broker)]
    yield from _about(full, "full", "critical", "is full", "are full")


def _filling(overview: Overview) -> Iterator[Finding]:
    soon: dict[Severity, list[BrokerOverview]] = {
        "critical": _full_within(overview, 0.0, FULL_VERY_SOON_S),
        "warning": _full_within(overview, FULL_VERY_SOON_S, FULL_SOON_S),
    }
    for severity, some in soon.items():
        first = _duration(min((b.full_in_s or 0.0 for b in some), default=0.0))
        yield from _about(
            some, "full_soon", severity, f"will be full in {first}", f"will be full, the first in {first}"
        )


def _announced(overview: Overview) -> Iterator[Finding]:
    small = [b for b in overview.brokers if (b.forecast_utilisation or 0.0) > 1.0 and not _is_full(b)]
    room = "no room for what loads have announced"
    yield from _about(small, "announced_too_much", "critical", f"has {room}", f"have {room}")


def _almost_full(overview: Overview) -> Iterator[Finding]:
    said = {broker.broker_id for broker in _full_within(overview, 0.0, FULL_SOON_S)}
    almost = [
        broker
        for broker in overview.brokers
        if broker.utilisation is not None
        and broker.utilisation > ALMOST_FULL
        and not _is_full(broker)
        and broker.broker_id not in said
    ]
    highest = max((broker.utilisation or 0.0 for broker in almost), default=0.0)
    yield from _about(
        almost,
        "almost_full",
        "warning",
        f"is {_percent(highest)} full",
        f"are more than {_percent(ALMOST_FULL)} full",
    )


def _spread(overview: Overview) -> Iterator[Finding]:
    if overview.utilisation_spread > SPREAD_MAX:
        known = [broker for broker in overview.brokers if broker.utilisation is not None]
        low, high = (choose(known, key=lambda b: b.utilisation or 0.0) for choose in (min, max))
        yield Finding(
            kind="uneven",
            severity="warning",
            text=f"Brokers are uneven by {overview.utilisation_spread * 100:.0f} points: "
            f"broker {high.broker_id} is {_percent(high.utilisation or 0.0)} full, "
            f"broker {low.broker_id} {_percent(low.utilisation or 0.0)}.",
            broker_ids=(high.broker_id, low.broker_id),
        )


def _fallbacks(overview: Overview) -> Iterator[Finding]:
    if overview.num_fallback_routes:
        reasons = sorted({route.reason.replace("_", " ") for route in overview.routes if route.reason})
        yield Finding(
            kind="fallback",
            severity="warning",
            text=f"{overview.num_fallback_routes} of {_many(overview.num_routes, 'route')} "
            f"{'is' if overview.num_fallback_routes == 1 else 'are'} a fallback to even shares: "
            f"{', '.join(reasons[:3])}.",
        )


def _unrouted(overview: Overview) -> Iterator[Finding]:
    for topic, count in overview.num_unrouted_by_topic.items():
        yield Finding(
            kind=f"unrouted {topic}",
            severity="notice",
            text=f"{_many(count, 'Java producer')} {'writes' if count == 1 else 'write'} topic {topic!r} "
            "without following its shares: for records with keys, or for want of evenload's partitioner.",
        )


def _functions(overview: Overview) -> Iterator[Finding]:
    for name, fault in overview.put_aside.items():
        yield Finding(kind="put_aside", severity="warning", text=f"'{name}' has been put aside: it {fault}.")


def _capacities(overview: Overview) -> Iterator[Finding]:
    unknown = [broker for broker in overview.brokers if not broker.capacity_bytes]
    yield from _about(
        unknown, "capacity_unknown", "warning", "has no known capacity", "have no known capacity"
    )


def _failures(overview: Overview) -> Iterator[Finding]:
    # A broker that doesn't answer has been said already; so has the lack of any snapshot.
    if overview.num_failures and overview.age_s is not None and all(b.is_reachable for b in overview.brokers):
        question, reason = next(iter(overview.failures.items()))
        more = f" (and {overview.num_failures - 1} more)" if overview.num_failures > 1 else ""
        yield Finding(kind="failures", severity="warning", text=f"Not measured: {question}: {reason}{more}.")


def _throttled(overview: Overview) -> Iterator[Finding]:
    throttled = [broker for broker in overview.brokers if broker.throttle_bytes_per_s is not None]
    if not throttled:
        if num_named := overview.num_throttled_replicas:
            yield Finding(
                kind="throttle_left",
                severity="notice",
                text=f"{_many(num_named, 'replica')} of the measured topics "
                f"{'is' if num_named == 1 else 'are'} named for a throttle, and no broker is known to have a "
                "rate: nothing is held back, but the next rate that is set will hold them too. "
                "kafka-configs.sh takes the lists off.",
            )
        return
    ids = tuple(sorted(broker.broker_id for broker in throttled))
    rate = min(broker.throttle_bytes_per_s or 0 for broker in throttled)
    held = (
        f"Replication is throttled to {bytes_text(rate)}/s on {_named(ids).lower()} "
        f"({_many(overview.num_throttled_replicas, 'replica')} of the measured topics named)"
    )
    if overview.num_moving:
        partitions = f"{_many(overview.num_moving, 'partition')}"
        text = f"{held}, and {partitions} {'is' if overview.num_moving == 1 else 'are'} being moved."
        yield Finding(kind="throttled", severity="notice", text=text, broker_ids=ids)
        return
    moves = "nothing moves under it" if overview.num_moving == 0 else "whether anything moves isn't known"
    yield Finding(
        kind="throttled_idle",
        severity="warning",
        text=f"{held}, and {moves}: `evenload balance` takes off what a dead balance has left; "
        "what somebody else has set, kafka-configs.sh takes off.",
        broker_ids=ids,
    )


def _on_purpose(overview: Overview) -> Iterator[Finding]:
    for kind, some in (
        ("drained", [b for b in overview.brokers if b.is_drained]),
        ("cordoned", [b for b in overview.brokers if b.is_cordoned and not b.is_drained]),
    ):
        yield from _about(some, kind, "notice", f"is {kind} by its operator", f"are {kind} by their operator")


def _warnings(overview: Overview) -> Iterator[Finding]:
    for question, warning in overview.warnings.items():
        yield Finding(kind=f"odd {question}", severity="notice", text=f"{question}: {warning.rstrip('.')}.")


_LOOKS: tuple[Callable[[Overview], Iterable[Finding]], ...] = (
    _measurements,
    _unreachable,
    _full,
    _filling,
    _announced,
    _almost_full,
    _functions,
    _fallbacks,
    _unrouted,
    _spread,
    _capacities,
    _failures,
    _throttled,
    _warnings,
    _on_purpose,
)


def _all_is_well(overview: Overview) -> str:
    known = [broker.utilisation for broker in overview.brokers if broker.utilisation is not None]
    return (
        f"All is well: {_many(len(overview.brokers), 'broker')}, "
        f"from {_percent(min(known, default=0.0))} to {_percent(max(known, default=0.0))} full."
    )


def _is_full(broker: BrokerOverview) -> bool:
    return (broker.utilisation or 0.0) >= 1.0 or broker.usable_bytes == 0


def _full_within(overview: Overview, from_s: float, to_s: float) -> list[BrokerOverview]:
    return [
        broker
        for broker in overview.brokers
        if broker.full_in_s is not None and from_s <= broker.full_in_s < to_s and not _is_full(broker)
    ]


def _about(
    brokers: Sequence[BrokerOverview], kind: str, severity: Severity, said_of_one: str, said_of_many: str
) -> Iterator[Finding]:
    if brokers:
        ids = tuple(sorted(broker.broker_id for broker in brokers))
        said = said_of_one if len(ids) == 1 else said_of_many
        yield Finding(kind=kind, severity=severity, text=f"{_named(ids)} {said}.", broker_ids=ids)


def _named(ids: Sequence[int]) -> str:
    if len(ids) == 1:
        return f"Broker {ids[0]}"
    if len(ids) <= 4:
        return f"Brokers {', '.join(map(str, ids[:-1]))} and {ids[-1]}"
    return f"Brokers {', '.join(map(str, ids[:3]))} and {len(ids) - 3} others"


def _percent(ratio: float) -> str:
    return f"{ratio:.0%}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"
