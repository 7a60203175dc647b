"""A workload under a policy, in virtual time: the same governor, on an engine that only reckons.

A job trains at its curve's speed. A start takes a while until its first step, and a stop takes a while too.
Of a broker that would have to give more than it can, all who read from it get the same part of what they ask.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from evenload.governor.deciding.curves import SpeedCurve
from evenload.governor.deciding.state import Policy
from evenload.governor.errors import StuckError
from evenload.governor.governing.cycle import run_cycle
from evenload.governor.governing.engine import Observed, Outcome, Stint, StintId, StintSeen
from evenload.governor.governing.governor import TICK_S, Governor
from evenload.governor.governing.jobs import Job, Wish
from evenload.governor.governing.kinds import RESIZE_COST_S, Kind, MeasuredSpeed
from evenload.governor.governing.orders import Phase
from evenload.governor.governing.records import Records

MEASURED_AFTER_S = 20.0  # from a stint's first step: its beginning is slow for other reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job of a workload."""

    job_id: str
    submitted_s: float
    asked_size: int
    samples: float
    speed: SpeedCurve
    kind: str = ""  # of jobs with the same speeds; empty: there is no other
    min_size: int = 1
    is_plain: bool = False  # nobody is told of its samples and speeds
    reads: Mapping[int, float] = field(default_factory=dict)  # bytes of each sample, by broker

    @property
    def wish(self) -> Wish:
        """What is submitted."""
        if self.is_plain:
            size = self.asked_size
            return Wish(
                job_id=self.job_id, kind="", samples=None, asked_size=size, min_size=size, max_size=size
            )
        return Wish(
            job_id=self.job_id,
            kind=self.kind or self.job_id,
            samples=self.samples,
            asked_size=self.asked_size,
            min_size=self.min_size,
            max_size=len(self.speed.samples_per_s) - 1,
            sizes=self.speed.sizes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What changes of size take, and what goes wrong."""

    start_s: float = RESIZE_COST_S  # from an order to start to the first step
    stop_s: float = 0.0  # from an order to stop to free slots; it trains on meanwhile
    failed_starts: float = 0.0  # the part of all starts that end without a step, 0 to 1
    slots_from: tuple[tuple[float, int], ...] = ()  # from this time on there are so many slots; ascending
    seed: int = 0  # which starts fail
    broker_bytes_per_s: Mapping[int, float] = field(default_factory=dict)  # others give whatever is asked


USUAL = Costs()


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a job."""

    job: Submission
    ended_s: float
    longest_wait_s: float  # of all its waits for slots
    num_resizes: int
    slot_seconds: float

    @property
    def completion_s(self) -> float:
        """From submission to end."""
        return self.ended_s - self.job.submitted_s


@dataclass(slots=True)
class _Stint:
    job: Submission
    size: int
    begins_with: float  # samples of the job that were done before
    ready_s: float  # of its first step
    fails: bool
    slowed: float = 1.0  # part of its speed that brokers leave it
    slowed_from_s: float = 0.0  # since when, if that is after its first step
    stops_s: float = math.inf
    ended_s: float | None = None
    outcome: Outcome | None = None

    @property
    def speed(self) -> float:
        """Samples/s, if brokers give whatever is asked."""
        return self.job.speed.samples_per_s[self.size]

    @property
    def _from_s(self) -> float:
        return max(self.ready_s, self.slowed_from_s)

    def samples_done(self, now_s: float) -> float:
        until_s = now_s if self.ended_s is None else self.ended_s
        trained_s = max(0.0, until_s - self._from_s)
        return min(self.job.samples, self.begins_with + self.slowed * self.speed * trained_s)

    def slow(self, slowed: float, now_s: float) -> None:
        """Trains at that part of its speed from now on."""
        if slowed != self.slowed:
            self.begins_with = self.samples_done(now_s)
            self.slowed, self.slowed_from_s = slowed, now_s

    @property
    def finishes_s(self) -> float:
        left = self.job.samples - self.begins_with
        return self._from_s + left / (self.slowed * self.speed)

    @property
    def next_end(self) -> tuple[float, Outcome]:
        by_itself = (self.ready_s, Outcome.FAILED) if self.fails else (self.finishes_s, Outcome.FINISHED)
        return by_itself if by_itself[0] <= self.stops_s else (self.stops_s, Outcome.STOPPED)


class SimulatedEngine:
    """A cluster in virtual time that trains jobs of a workload.

    Attributes:
        now_s: The time.
        cluster_id: Another one after a restart.
        most_bytes_per_s: What each broker that has a limit was asked for at the most.
    """

    def __init__(self, num_slots: int, costs: Costs, *, tells_speeds: bool = True) -> None:
        self.now_s = -math.inf
        self.cluster_id = "simulated"
        self._tells_speeds = tells_speeds
        self._num_slots, self._costs = num_slots, costs
        self._slots_from = list(reversed(costs.slots_from))
        self._chance = random.Random(costs.seed)
        self._jobs: dict[str, Submission] = {}
        self._samples_done: dict[str, float] = {}
        self._stints: dict[StintId, _Stint] = {}
        self._newest: dict[str, int] = {}
        self.most_bytes_per_s: dict[int, float] = {}

    def add(self, job: Submission) -> None:
        """A job that may be started from now on."""
        self._jobs[job.job_id] = job
        self._samples_done[job.job_id] = 0.0

    def forget(self, job_id: str) -> None:
        """A job that has ended."""
        self._stints = {key: stint for key, stint in self._stints.items() if key.job_id != job_id}

    @property
    def reads(self) -> dict[str, Mapping[int, float]]:
        """Bytes of each sample by broker, by job."""
        return {job_id: job.reads for job_id, job in self._jobs.items()}

    @property
    def num_held(self) -> int:
        """Slots in use."""
        return sum(stint.size for stint in self._stints.values() if not stint.outcome)

    @property
    def next_event_s(self) -> float:
        """When something happens next by itself."""
        times = [self._slots_from[-1][0]] if self._slots_from else []
        for stint in self._stints.values():
            if not stint.outcome:
                moments = (stint.ready_s, stint.ready_s + MEASURED_AFTER_S)
                times += [moment for moment in moments if moment > self.now_s]
                times.append(stint.next_end[0])
        return min(times, default=math.inf)

    def advance(self, now_s: float) -> None:
        """Lets everything happen until then; not past the next event."""
        self.now_s = now_s
        for key, stint in self._stints.items():
            if not stint.outcome and (end := stint.next_end)[0] <= now_s:
                self._end(key, *end)
        while self._slots_from and self._slots_from[-1][0] <= now_s:
            self._num_slots = self._slots_from.pop()[1]
            for key in reversed(self._stints):  # the newest were on the nodes that are lost
                if self.num_held > self._num_slots and not self._stints[key].outcome:
                    self._end(key, now_s, Outcome.FAILED)
        if self._costs.broker_bytes_per_s:
            self._share_brokers()

    def _share_brokers(self) -> None:
        """Slows down who reads from a broker that is asked for more than it can give."""
        training = [
            stint for stint in self._stints.values() if not stint.outcome and stint.ready_s <= self.now_s
        ]
        asked: defaultdict[int, float] = defaultdict(float)
        for stint in training:
            for broker, num_bytes in stint.job.reads.items():
                asked[broker] += stint.speed * num_bytes
        limits = self._costs.broker_bytes_per_s
        for broker in limits:
            self.most_bytes_per_s[broker] = max(self.most_bytes_per_s.get(broker, 0.0), asked[broker])
        parts = {broker: min(1.0, limit / asked[broker]) for broker, limit in limits.items() if asked[broker]}
        for stint in training:
            stint.slow(min((parts.get(broker, 1.0) for broker in stint.job.reads), default=1.0), self.now_s)

    def _end(self, key: StintId, ended_s: float, outcome: Outcome) -> None:
        stint = self._stints[key]
        stint.ended_s, stint.outcome = ended_s, outcome
        self._samples_done[key.job_id] = stint.samples_done(ended_s)

    def look(self, current: Collection[StintId] = ()) -> Observed:  # noqa: ARG002 - the engine's signature
        """What there is now."""
        seen = {key: self._seen(stint) for key, stint in self._stints.items()}
        return Observed(cluster_id=self.cluster_id, num_slots=self._num_slots, stints=seen)

    def _seen(self, stint: _Stint) -> StintSeen:
        has_trained = not stint.fails and stint.ready_s <= (stint.ended_s or self.now_s)
        is_measured = self._tells_speeds and has_trained and stint.ready_s + MEASURED_AFTER_S <= self.now_s
        return StintSeen(
            samples_done=stint.samples_done(self.now_s),
            has_trained=has_trained,
            samples_per_s=stint.slowed * stint.speed if is_measured else None,
            outcome=stint.outcome,
        )

    def restart(self) -> None:
        """The cluster is started anew: no stint lives on, and none is remembered."""
        for key in [key for key, stint in self._stints.items() if not stint.outcome]:
            self._end(key, self.now_s, Outcome.FAILED)
        self._stints.clear()
        self.cluster_id += "'"

    def start(self, stint: Stint) -> None:
        """Begins a stint; one that was begun already is left as it is.

        One that is older than another of its job ends at once: run storage knows the newer.
        """
        job_id = stint.id.job_id
        if stint.id.number <= self._newest.get(job_id, 0):
            return
        self._newest[job_id] = stint.id.number
        for key in [key for key in self._stints if key.job_id == job_id]:
            assert self._stints[key].outcome, f"{job_id} has two stints"
            del self._stints[key]
        self._stints[stint.id] = _Stint(
            job=self._jobs[job_id],
            size=stint.size,
            begins_with=self._samples_done[job_id],
            ready_s=self.now_s + self._costs.start_s,
            fails=self._chance.random() < self._costs.failed_starts,
        )
        if self._costs.broker_bytes_per_s:
            self._share_brokers()

    def stop(self, stint_id: StintId) -> None:
        """Stops a stint; one that isn't there, or is stopping, is left as it is."""
        stint = self._stints.get(stint_id)
        if stint and stint.stops_s == math.inf:
            stint.stops_s = self.now_s + self._costs.stop_s


class _Watched:
    """A journal that keeps nothing, as nobody begins anew, and tells who got or lost slots.

    Attributes:
        ended: Jobs that have ended, in this order.
    """

    def __init__(self, engine: SimulatedEngine, tell: Callable[[float, str, int], None] | None) -> None:
        self._engine, self._tell = engine, tell
        self._sizes: dict[str, int] = {}
        self.ended: list[Job] = []

    def write(self, changes: Records) -> None:
        """Tells what has changed."""
        for job in changes.jobs.values():
            if job.ending:
                self._engine.forget(job.job_id)
                self.ended.append(job)
            if self._tell and job.size != self._sizes.get(job.job_id, 0):
                self._sizes[job.job_id] = job.size
                self._tell(self._engine.now_s, job.job_id, job.size)

    def prove(self) -> None:
        """Nobody else writes."""


def simulate(
    workload: Sequence[Submission],
    policy: Policy,
    *,
    num_slots: int,
    costs: Costs = USUAL,
    wait_max_s: float = math.inf,
    is_learning: bool = False,
    knows_brokers: bool = True,
    on_resize: Callable[[float, str, int], None] | None = None,
    on_end: Callable[[SimulatedEngine], None] | None = None,
) -> list[Ended]:
    """Runs a workload to its end.

    Args:
        workload: Jobs of different ids, by submission.
        costs: What starts and stops take, and what goes wrong.
        wait_max_s: As `decide` takes it.
        is_learning: Whether speeds are found out as jobs run, and not known from the beginning.
        knows_brokers: Whether it is known what jobs read, and what brokers can give.
        on_end: Told of the engine in the end.
        on_resize: Told when a job holds another number of slots: the time, its id, how many.

    Returns:
        All jobs, in the order in which they ended.

    Raises:
        StuckError: The policy starts nothing though all slots are free, and no job is still to come.
    """
    coming = list(reversed(workload))
    engine = SimulatedEngine(num_slots, costs, tells_speeds=is_learning)
    journal = _Watched(engine, on_resize)
    kinds = {} if is_learning else {job.wish.kind: _known(job, costs) for job in workload if not job.is_plain}
    governor = Governor(policy, wait_max_s=wait_max_s, records=Records({}, kinds, None))
    by_id = {job.job_id: job for job in workload}
    now_s = idle_since_s = workload[0].submitted_s if workload else 0.0
    patience_s = wait_max_s if wait_max_s < math.inf else 0.0
    while coming or governor.jobs:
        now_s = max(
            now_s,
            min(engine.next_event_s, governor.due_s, coming[-1].submitted_s if coming else math.inf),
        )
        engine.advance(now_s)
        while coming and coming[-1].submitted_s <= now_s:
            engine.add(coming[-1])
            governor.submit(coming.pop().wish, now_s)
            if knows_brokers and costs.broker_bytes_per_s:
                governor.set_reads(engine.reads, costs.broker_bytes_per_s, now_s)
        run_cycle(governor, journal, engine, now_s)
        if coming or any(job.phase is not Phase.WAITING for job in governor.jobs.values()):
            idle_since_s = now_s
        elif now_s - idle_since_s > patience_s + 2 * TICK_S:
            raise StuckError(tuple(governor.jobs), num_slots)
    if on_end:
        on_end(engine)
    return [_ended(by_id[job.job_id], job) for job in journal.ended]


def _known(job: Submission, costs: Costs) -> Kind:
    speeds = {
        size: (MeasuredSpeed(StintId("", size), speed),)
        for size, speed in enumerate(job.speed.samples_per_s)
        if size > 0
    }
    return Kind(speeds=speeds, resize_costs_s=(costs.start_s + costs.stop_s,))


def _ended(job: Submission, record: Job) -> Ended:
    return Ended(
        job=job,
        ended_s=record.ended_s,
        longest_wait_s=record.longest_wait_s,
        num_resizes=record.stint - 1,
        slot_seconds=record.slot_seconds,
    )
