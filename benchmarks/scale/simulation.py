"""Many producers that write one topic at once, each by its own route from its own delayed snapshot.

What is real: `Router`, `Route`, and all that they use. What is simulated: brokers are numbers, time goes in
seconds, and nothing fails. Each producer has its own rhythm: it measures brokers each 27 to 33 s, gets to
know what it measured 5 s later, decides then, and writes by that until the next: what it goes by is 5 to 38 s
old. What it has sent since its measurement it counts in. Producers don't know each other; how much will come
they don't know either, or each knows what it will send itself.

The idea behind "no herd": within a sampling period no broker gets more than twice its fair share, which is
what it would have got if all had decided at the period's beginning from what was true then, or an even share
of all bytes if that is more. (A broker that is due nothing still gets a batch from here and there.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.scale.clusters import REPLICATION, TOPIC, Cluster, Numbers, Size, make_cluster
from benchmarks.scale.large_optimum import best_levels
from evenload.kafka_plugin.routing.own_bytes import OwnPart
from evenload.router.config import RouterConfig
from evenload.router.route import Route
from evenload.router.router import Router

PERIOD_S = 30
JITTER_S = 3
DELAY_S = 5
UNDELAYED_STEP_S = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is written, and by whom.

    Attributes:
        num_producers: All write as fast.
        num_periods: How many sampling periods it lasts.
        period_fraction: Part of the cluster's capacity that is written in a period, all copies counted.
        turns_per_s: Batches that all producers together send in a second; with few, ratios are just noise.
        is_rest_known: Whether each producer knows how much it will still send itself.
    """

    num_producers: int
    num_periods: int
    period_fraction: float
    turns_per_s: int = 10_000
    is_rest_known: bool = False

    @property
    def turns_of_each(self) -> int:
        """What a producer sends in a second."""
        return self.turns_per_s // self.num_producers


@dataclass(slots=True)
class Period:
    """What happened in one sampling period. Arrays are [num_brokers].

    Attributes:
        got_bytes: What came to each broker.
        due_bytes: What would have, had all known at its beginning what was true.
        utilisation: At its end.
    """

    got_bytes: Numbers
    due_bytes: Numbers
    utilisation: Numbers

    @property
    def herd_ratio(self) -> float:
        """The most that a broker got, in fair shares."""
        return float((self.got_bytes / np.maximum(self.due_bytes, self.got_bytes.mean())).max())


@dataclass(slots=True)
class _Producer:
    """One producer: its route, and its books."""

    router: Router
    measured_at_s: int
    due_at_s: int
    used_bytes: Numbers
    sent_bytes: Numbers
    sent_when_measured_bytes: Numbers
    part: OwnPart = field(default_factory=OwnPart)
    route: Route | None = None


@dataclass
class Simulation:
    """A cluster, a load, and how far it is. Everything follows from the seed."""

    cluster: Cluster
    load: Load
    seed: int
    written_bytes: Numbers = field(init=False)
    num_decisions: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.written_bytes = np.zeros(len(self.cluster.layout))

    @cached_property
    def turn_bytes(self) -> int:
        """What a producer sends in one turn, one copy."""
        in_period = self.load.period_fraction * float(self.cluster.capacity_bytes.sum()) / REPLICATION
        return max(1, int(in_period / PERIOD_S / self.load.turns_per_s))

    @property
    def payload_bytes(self) -> int:
        """What all producers will have sent in the end, one copy."""
        num_turns = self.load.turns_of_each * self.load.num_producers * PERIOD_S * self.load.num_periods
        return num_turns * self.turn_bytes

    @property
    def used_bytes(self) -> Numbers:
        """[num_brokers] what brokers hold now."""
        return self.cluster.used_bytes + self.cluster.added_bytes(self.written_bytes)

    def run(self) -> list[Period]:
        """Write it all, as goals want it: what is looked at is whether producers that follow them herd."""
        draw = np.random.default_rng(self.seed)
        config = RouterConfig(batch_bytes=self.turn_bytes, safe_streams=False)
        producers = [self._begin(config, number, draw) for number in range(self.load.num_producers)]
        periods = []
        for number in range(self.load.num_periods):
            used_before = self.used_bytes
            due = self.cluster.added_bytes(self._shares_of_truth(config, number * PERIOD_S))
            for now_s in range(number * PERIOD_S, (number + 1) * PERIOD_S):
                used_now = self.used_bytes
                for producer in producers:
                    self._measure(producer, now_s, used_now, draw)
                    self._send(producer)
            got = self.used_bytes - used_before
            utilisation = self.used_bytes / self.cluster.capacity_bytes
            periods.append(Period(got, due * got.sum() / due.sum(), utilisation))
        return periods

    def run_undelayed(self) -> list[Numbers]:
        """Utilisations [num_brokers] at the end of each period if the truth were followed all the time."""
        config = RouterConfig(safe_streams=False)
        reached = []
        for number in range(self.load.num_periods):
            for now_s in range(number * PERIOD_S, (number + 1) * PERIOD_S, UNDELAYED_STEP_S):
                shares = self._shares_of_truth(config, now_s)
                self.written_bytes += shares * self.turn_bytes * self.load.turns_per_s * UNDELAYED_STEP_S
            reached.append(self.used_bytes / self.cluster.capacity_bytes)
        return reached

    def _begin(self, config: RouterConfig, number: int, draw: np.random.Generator) -> _Producer:
        """A producer that measured the cluster some time before the load began."""
        age_s = int(draw.integers(DELAY_S + 1, PERIOD_S + 1))
        num_partitions = len(self.cluster.layout)
        producer = _Producer(
            router=new_router(config, start=number / self.load.num_producers),
            measured_at_s=-age_s,
            due_at_s=PERIOD_S - age_s,
            used_bytes=self.cluster.used_bytes,
            sent_bytes=np.zeros(num_partitions),
            sent_when_measured_bytes=np.zeros(num_partitions),
        )
        producer.part.add(-age_s, 0, 0.0)
        self._decide(producer, now_s=0)
        return producer

    def _measure(
        self, producer: _Producer, now_s: int, used_bytes: Numbers, draw: np.random.Generator
    ) -> None:
        """Measure when it is time; decide when what was measured arrives."""
        if now_s == producer.due_at_s:
            producer.measured_at_s = now_s
            producer.due_at_s = now_s + PERIOD_S + int(draw.integers(-JITTER_S, JITTER_S + 1))
            producer.used_bytes = used_bytes
            producer.sent_when_measured_bytes = producer.sent_bytes.copy()
            producer.part.add(now_s, int(producer.sent_bytes.sum()), float(self.written_bytes.sum()))
        if now_s == producer.measured_at_s + DELAY_S:
            self._decide(producer, now_s)

    def _decide(self, producer: _Producer, now_s: int) -> None:
        own = producer.sent_bytes - producer.sent_when_measured_bytes
        sent_bytes = int(producer.sent_bytes.sum())
        rest = self.payload_bytes // self.load.num_producers - sent_bytes
        of_all_bytes = producer.part.of_all(rest, sent_bytes)
        producer.route = producer.router.route(
            self.cluster.snapshot(producer.used_bytes, producer.measured_at_s),
            TOPIC,
            num_partitions=len(self.cluster.layout),
            remaining_bytes=(of_all_bytes or rest) if self.load.is_rest_known else None,
            is_least=of_all_bytes is None,
            now_s=now_s,
            own_bytes={int(number): int(own[number]) for number in np.flatnonzero(own)},
            previous=producer.route,
        )
        self.num_decisions += 1

    def _send(self, producer: _Producer) -> None:
        assert producer.route is not None
        for _ in range(self.load.turns_of_each):
            partition = producer.route.partition_for(self.turn_bytes)
            producer.sent_bytes[partition] += self.turn_bytes
            self.written_bytes[partition] += self.turn_bytes

    def _shares_of_truth(self, config: RouterConfig, now_s: int) -> Numbers:
        """[num_partitions] shares that are decided now, from what is true."""
        rest = max(0, self.payload_bytes - int(self.written_bytes.sum()))
        route = new_router(config).route(
            self.cluster.snapshot(self.used_bytes, now_s),
            TOPIC,
            num_partitions=len(self.cluster.layout),
            remaining_bytes=rest if self.load.is_rest_known else None,
            now_s=now_s,
        )
        return shares_by_partition(route, len(self.cluster.layout))


def new_router(config: RouterConfig, *, start: float = 0.0) -> Router:
    """A router for which no time goes by while it decides.

    By a real clock, a busy machine makes a goal look too slow; the router would put it aside, and what is
    compared would be shares by no goal.
    """
    return Router(config, start=start, clock=lambda: 0.0)


def shares_by_partition(route: Route, num_partitions: int) -> Numbers:
    """[num_partitions] a route's shares."""
    shares = np.zeros(num_partitions)
    shares[list(route.shares)] = list(route.shares.values())
    return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came of a load. Utilisations are from 0 to 1, of the brokers that live and hold the topic.

    Attributes:
        state: The cluster's, before.
        load: What was written.
        spread_before: Highest less lowest.
        spreads: The same at the end of each period.
        undelayed_spreads: The same, had one router decided for all each 3 s from what was true.
        best_spread: The optimum's, for all that was written.
        herd_ratios: In each period, the most that a broker got, in fair shares.
        num_decisions: How many routes were decided.
    """

    state: str
    load: Load
    spread_before: float
    spreads: list[float]
    undelayed_spreads: list[float]
    best_spread: float
    herd_ratios: list[float]
    num_decisions: int


def simulate(state: str, size: Size, load: Load, seed: int) -> Simulated:
    """Write a load in a state, with delay and without."""
    cluster = make_cluster(state, size, seed)
    held = np.unique(cluster.replicas[cluster.writable])
    delayed = Simulation(cluster, load, seed)
    periods = delayed.run()
    payload = float(delayed.written_bytes.sum())
    best = best_levels(
        cluster.used_bytes / cluster.capacity_bytes,
        payload / cluster.capacity_bytes,
        cluster.replicas[cluster.writable],
    )
    return Simulated(
        state=state,
        load=load,
        spread_before=_spread(cluster.used_bytes / cluster.capacity_bytes, held),
        spreads=[_spread(period.utilisation, held) for period in periods],
        undelayed_spreads=[_spread(each, held) for each in Simulation(cluster, load, seed).run_undelayed()],
        best_spread=_spread(best, held),
        herd_ratios=[period.herd_ratio for period in periods],
        num_decisions=delayed.num_decisions,
    )


def _spread(utilisation: Numbers, held: NDArray[np.intp]) -> float:
    return float(np.ptp(utilisation[held]))
