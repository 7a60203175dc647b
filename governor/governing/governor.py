"""What is done with all that happens: requests and what an engine sees come in, records and orders go out.

No thread, no clock, no I/O: each call says what time it is, so any moment can be played again. Whoever drives
it (cycle.py) writes down what has changed before it passes on the orders. An order is what a record says and
the engine doesn't show yet, so after a crash at any point the records alone say what is still to be done.

Invariants, checked in tests/property/governor/governing/test_crashes.py:
1. All jobs together never hold more slots than there are, by the records and by the engine.
2. No job ever has two stints at once.
3. Whatever fails and wherever it is interrupted, each job ends, and no sample of it is lost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from evenload.governor.deciding.curves import SpeedCurve, explored
from evenload.governor.deciding.decision import decide
from evenload.governor.deciding.stages import Notes
from evenload.governor.deciding.state import ClusterState, JobView, Policy, Team
from evenload.governor.errors import JobConflictError, JobUnknownError, QueueFullError
from evenload.governor.governing.engine import Observed, Outcome, Stint, StintId, StintSeen
from evenload.governor.governing.jobs import Ending, Job, Wish
from evenload.governor.governing.kinds import Kind
from evenload.governor.governing.orders import Phase, Start, next_orders
from evenload.governor.governing.records import NOTHING, Decision, Records

TICK_S = 60.0  # between decisions where nothing happens
REACTION_S = 0.5  # from an event to a decision: what comes together is decided together
START_UNSEEN_MAX_S = 120.0  # a start that isn't seen by then has failed
UNSEEN_GAP_S = 90.0  # without a look for so long, nobody could have seen it
ENDED_KEPT_S = 30 * 86_400.0  # a job that has ended can be looked at, and submitted again without effect,
ENDED_MAX = 10_000  # while there are no more than this
JOBS_MAX = 5000  # that have not ended
DECISIONS_MAX = 1000  # that are remembered
GUESS_S = 600.0  # what a job is taken to last while nothing was measured of its kind


class Orders(NamedTuple):
    """What an engine is to be told."""

    starts: tuple[Stint, ...]
    stops: tuple[StintId, ...]
    strays: tuple[StintId, ...]  # to be stopped as well: no record knows of them


class Governor:
    """Decides over jobs by a policy. For one thread.

    Attributes:
        wait_max_s: Who has waited so long gets a turn.
        teams: What is set of teams.
        decisions: The newest, oldest first.
        notes: Why jobs have another size than the policy wished for, as of the last decision.
        decides_from_s: No decision is made before, unless it is said what runs read.
        observed_s: When the engine was looked at last; minus infinity: not yet.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        policy_name: str = "",
        wait_max_s: float = math.inf,
        records: Records = NOTHING,
        decisions: Iterable[Decision] = (),
    ) -> None:
        """Begins with what was written down.

        Args:
            policy: What to wish for.
            policy_name: What decisions say of who made them.
            wait_max_s: As `decide` takes it.
            records: Nothing, or what an earlier one wrote.
            decisions: The newest that earlier ones made, oldest first.
        """
        self._policy = policy
        self.wait_max_s = wait_max_s
        self.notes: Notes = {}
        self.decisions: deque[Decision] = deque(decisions, DECISIONS_MAX)
        self._jobs = {key: job for key, job in records.jobs.items() if not job.ending}
        self._ended = {key: job for key, job in records.jobs.items() if job.ending}
        self._kinds = dict(records.kinds)
        self._cluster_id = records.cluster_id
        self._curves: dict[tuple[str, int, int, int, tuple[int, ...] | None], SpeedCurve] = {}
        self._num_slots = 0
        self._stints: Mapping[StintId, StintSeen] = {}
        self._due_s = math.inf
        self.observed_s = self._seen_since_s = -math.inf
        self._refused: dict[StintId, str] = {}
        self._changed_jobs: dict[str, Job] = {}
        self._changed_kinds: dict[str, Kind] = {}
        self._changed_cluster_id: str | None = None
        self._changed_policy: str | None = None
        self._changed_decision: Decision | None = None
        self._changed_teams: dict[str, Team] = {}
        self._forgotten: list[str] = []
        self._policy_name = policy_name
        self.teams = dict(records.teams)
        self._reads: dict[str, Mapping[int, float]] = {}
        self._read_budgets: dict[int, float] = {}
        self.decides_from_s = -math.inf

    @property
    def jobs(self) -> Mapping[str, Job]:
        """All that have not ended."""
        return self._jobs

    @property
    def ended(self) -> Mapping[str, Job]:
        """All that have ended."""
        return self._ended

    @property
    def due_s(self) -> float:
        """When to decide next."""
        return max(self._due_s, self.decides_from_s)

    @property
    def num_slots(self) -> int:
        """Slots that jobs can have, as far as the engine was seen."""
        return self._num_slots

    @property
    def num_free(self) -> int:
        """Slots that no job holds, as far as the engine was seen; below 0 where slots were lost."""
        return self._num_slots - sum(job.size for job in self._jobs.values())

    def job(self, job_id: str) -> Job:
        """One of all that there are.

        Raises:
            JobUnknownError: There is none of this name.
        """
        job = self._jobs.get(job_id) or self._ended.get(job_id)
        if job is None:
            raise JobUnknownError(job_id)
        return job

    def has_measured(self, job: Job) -> bool:
        """Whether it is known how fast a job of its kind is at its size."""
        return job.size in self.kind_of(job).speeds

    # Requests

    def submit(self, wish: Wish, now_s: float) -> Job:
        """Takes a job into the queue; one that is there with the same wish is left as it is.

        A name whose job was cancelled, or has ended and is wished for otherwise now (with more epochs, say),
        is a new job's.

        Raises:
            JobConflictError: There is one of this name with another wish, and it hasn't ended.
            QueueFullError: There are very many.
        """
        known = self._jobs.get(wish.job_id) or self._ended.get(wish.job_id)
        if known and known.wish == wish and known.ending is not Ending.CANCELLED:
            return known
        if known and not known.ending:
            raise JobConflictError(wish.job_id, _differing(known.wish, wish))
        if len(self._jobs) >= JOBS_MAX:
            raise QueueFullError(JOBS_MAX)
        # Numbers of stints go on: what storage has of the name is the new job's as well.
        number = known.stint if known else 0
        job = Job(wish=wish, submitted_s=now_s, wanted_since_s=now_s, since_s=now_s, stint=number)
        self._put(job)
        self._decide_soon(now_s)
        return job

    def cancel(self, job_id: str, now_s: float) -> Job:
        """Ends a job; one that has ended is left as it is."""
        return self._ask(job_id, lambda job: job if job.ending else job.cancelled(now_s), now_s)

    def hold(self, job_id: str, now_s: float) -> Job:
        """Stops a job until it is released; one that has ended is left as it is."""
        return self._ask(job_id, lambda job: job if job.ending else job.held(now_s), now_s)

    def release(self, job_id: str, now_s: float) -> Job:
        """Lets a job run that was held, or has failed.

        Raises:
            ValueError: It is neither.
        """
        return self._ask(job_id, lambda job: job.released(now_s), now_s)

    def resize(self, job_id: str, least: int, most: int | None, now_s: float) -> Job:
        """Has a job have from so many workers to so many from now on; None: to as many as it can ever have.

        Raises:
            ValueError: It can't have these.
        """

        def bounded(job: Job) -> Job:
            return job if job.ending else job.bounded(least, job.wish.limit if most is None else most)

        return self._ask(job_id, bounded, now_s)

    def _ask(self, job_id: str, change: Callable[[Job], Job], now_s: float) -> Job:
        self._put(changed := change(self.job(job_id)))
        self._decide_soon(now_s)
        return changed

    def set_team(self, name: str, team: Team, now_s: float) -> None:
        """Has a team have other limits and guarantees from now on."""
        self.teams[name] = self._changed_teams[name] = team
        self._decide_soon(now_s)

    def set_reads(
        self, reads: Mapping[str, Mapping[int, float]], budgets: Mapping[int, float], now_s: float
    ) -> None:
        """Knows what runs read from brokers, and what these can give, as `ClusterState` has it.

        It isn't written down: whoever says it says it again.
        """
        self.decides_from_s = -math.inf
        if (self._reads, self._read_budgets) != (reads, budgets):
            self._reads, self._read_budgets = dict(reads), dict(budgets)
            self._decide_soon(now_s)

    def set_policy(self, name: str, policy: Policy, now_s: float) -> None:
        """Has another policy decide from now on. What is on its way goes on."""
        self._policy, self._policy_name, self._changed_policy = policy, name, name
        self._decide_soon(now_s)

    def preview(self, policy: Policy, now_s: float) -> dict[str, tuple[int, int]]:
        """What another policy would change now: sizes as they are, and as it would have them, by job."""
        state = self.state(now_s)
        sizes = decide(state, policy, wait_max_s=self.wait_max_s)
        return {
            view.job_id: (view.size, sizes[view.job_id])
            for view in state.all_jobs
            if sizes[view.job_id] != view.size
        }

    # What an engine sees

    def observe(self, seen: Observed, now_s: float) -> None:
        """Follows what has become of stints."""
        if seen.cluster_id != self._cluster_id:
            self._lose_stints(now_s)
            self._cluster_id = self._changed_cluster_id = seen.cluster_id
        if now_s - self.observed_s > UNSEEN_GAP_S:
            self._seen_since_s = now_s  # nothing was ordered meanwhile
        self.observed_s = now_s
        if seen.num_slots != self._num_slots:
            self._num_slots = seen.num_slots
            self._decide_soon(now_s)
        self._stints = seen.stints
        for job in list(self._jobs.values()):
            if job.phase is not Phase.WAITING:
                self._follow(job, seen.stints.get(job.stint_id), now_s)
        self._order(now_s)

    def _is_lost(self, job: Job, now_s: float) -> bool:
        """Whether a start has been given long enough to be seen."""
        return now_s - max(job.size_since_s, self._seen_since_s) > START_UNSEEN_MAX_S

    def refuse(self, stint_id: StintId, reason: str) -> None:
        """The engine won't ever start this stint: noted when it is looked at next."""
        self._refused[stint_id] = reason

    @property
    def current_stints(self) -> frozenset[StintId]:
        """Those that are to live, or whose end is still to be noted."""
        return frozenset(job.stint_id for job in self._jobs.values() if job.phase is not Phase.WAITING)

    def why_refused(self, job: Job) -> str:
        """What the engine said when it wouldn't start the newest stint of a job; empty if it did."""
        return self._refused.get(job.stint_id, "")

    def _lose_stints(self, now_s: float) -> None:
        """No stint of a cluster outlives it; jobs go on from their checkpoints."""
        for job in list(self._jobs.values()):
            if job.phase is not Phase.WAITING:
                self._end_stint(job, now_s)

    def _follow(self, job: Job, stint: StintSeen | None, now_s: float) -> None:
        if stint is None:
            # A start that isn't seen yet is on its way, or is ordered again. Any other stint is gone.
            if job.phase is not Phase.STARTING:
                self._end_stint(job, now_s)
            elif job.stint_id in self._refused or self._is_lost(job, now_s):
                self._put(job.failed(now_s))
                self._decide_soon(now_s)
            return
        job = self._note_progress(job, stint, now_s)
        if stint.outcome is None:
            return
        if stint.outcome is Outcome.FINISHED:
            self._put(job.ended(Ending.FINISHED, now_s))
            self._decide_soon(now_s)
        elif job.is_cancelled or job.phase is Phase.STOPPING or stint.outcome is Outcome.STOPPED:
            self._end_stint(job, now_s)
        else:
            self._put(job.failed(now_s))
            self._decide_soon(now_s)

    def _end_stint(self, job: Job, now_s: float) -> None:
        """A stint ended before all was done, through no fault of the job."""
        if job.is_cancelled:
            self._put(job.ended(Ending.CANCELLED, now_s))
        else:
            self._put(job.stopped(now_s))
        if job.phase is not Phase.STOPPING:  # nobody has ordered it: all is to be thought over
            self._decide_soon(now_s)

    def _note_progress(self, job: Job, stint: StintSeen, now_s: float) -> Job:
        # Progress alone isn't written down: a checkpoint says the same.
        job = self._jobs[job.job_id] = job.seen_at(stint.samples_done)
        kind = self.kind_of(job)
        if job.phase is Phase.STARTING and stint.has_trained:
            if job.stop_ordered_s is not None and not job.is_plain:
                self._put_kind(job, kind.with_resize(max(0.0, now_s - job.stop_ordered_s)))
            self._put(job := job.running())
        if stint.samples_per_s:
            measured = self.kind_of(job).with_speed(job.size, job.stint_id, stint.samples_per_s)
            if measured is not self.kind_of(job):
                self._put_kind(job, measured)
                self._decide_soon(now_s)
        return job

    # Decisions

    def decide_if_due(self, now_s: float) -> None:
        """Makes a decision if it is time for one."""
        if now_s < self.due_s:
            return
        state = self.state(now_s)
        self.notes = {}
        sizes = decide(state, self._policy, wait_max_s=self.wait_max_s, notes=self.notes)
        changed = {view.job_id: view.size for view in state.all_jobs if sizes[view.job_id] != view.size}
        for job_id in changed:
            self._put(self._jobs[job_id].wanted_at(sizes[job_id], now_s))
        if changed:
            self._changed_decision = made = Decision(
                at_s=now_s,
                policy=self._policy_name,
                num_slots=self._num_slots,
                sizes={job_id: size for job_id, size in sizes.items() if size or job_id in changed},
                changed=changed,
                notes=self.notes,
            )
            self.decisions.append(made)
        self._forget(now_s)
        later = [job.not_before_s for job in self._jobs.values() if job.not_before_s > now_s]
        self._due_s = min([now_s + TICK_S, *later])
        self._order(now_s)

    def _forget(self, now_s: float) -> None:
        """Lets go of jobs that ended long ago, or of the oldest where there are very many."""
        by_end = sorted(self._ended.values(), key=lambda job: job.ended_s)
        num_over = max(0, len(by_end) - ENDED_MAX)
        for place, job in enumerate(by_end):
            if place >= num_over and now_s - job.ended_s <= ENDED_KEPT_S:
                break
            del self._ended[job.job_id]
            self._changed_jobs.pop(job.job_id, None)
            self._forgotten.append(job.job_id)

    def state(self, now_s: float) -> ClusterState:
        """What there is to decide about now."""
        jobs = [job for job in self._by_submission() if job.may_run(now_s)]
        return ClusterState(
            now_s=now_s,
            num_slots=self._num_slots,
            jobs=tuple(self.view(job, now_s) for job in jobs if not job.is_plain),
            plain=tuple(job.plain_view(now_s) for job in jobs if job.is_plain),
            teams=self.teams,
            read_budgets=self._read_budgets,
        )

    def view(self, job: Job, now_s: float) -> JobView:
        """What a policy is given, of a run."""
        kind, wish = self.kind_of(job), job.wish
        assert wish.samples is not None
        least, most = job.min_size, job.max_size
        largest = max(most, job.wanted)
        key = (wish.kind, largest, least, most, wish.sizes)
        curve = self._curves.get(key) if kind.speeds else None
        if curve is None:
            among = [size for size in wish.sizes or range(least, most + 1) if least <= size <= most]
            curve = explored(kind.measured, largest=largest, among=among, guess_per_s=wish.samples / GUESS_S)
            if kind.speeds:
                self._curves[key] = curve
        view = job.view(curve, kind.resize_cost_s, now_s, num_slots=self._num_slots)
        reads = self._reads.get(job.job_id)
        # While it is only guessed how fast it is, it counts as reading nothing.
        return replace(view, reads=reads) if reads and kind.speeds else view

    def _order(self, now_s: float) -> None:
        """Sends jobs on their way as far as slots are free for it."""
        placements = [job.placement for job in self._by_submission()]
        for order in next_orders(placements, self._num_slots):
            job = self._jobs[order.job_id]
            if isinstance(order, Start):
                self._put(job.starting(order.size, self._next_number(job), now_s))
            else:
                self._put(job.stopping(now_s))

    def _next_number(self, job: Job) -> int:
        """One that was never used, also where the journal has lost what it knew of the job."""
        seen = (stint_id.number for stint_id in self._stints if stint_id.job_id == job.job_id)
        return max(job.stint, *seen, 0) + 1

    # What goes out

    def take_changes(self) -> Records:
        """What is to be written down since the last call."""
        changes = Records(
            self._changed_jobs,
            self._changed_kinds,
            self._changed_cluster_id,
            self._changed_policy,
            self._changed_decision,
            self._changed_teams,
            tuple(self._forgotten),
        )
        self._changed_teams, self._forgotten = {}, []
        self._changed_jobs, self._changed_kinds = {}, {}
        self._changed_cluster_id = self._changed_policy = self._changed_decision = None
        return changes

    def orders(self) -> Orders:
        """What the engine doesn't show yet of what is written down."""
        starts, stops = [], []
        current = set()
        for job in self._jobs.values():
            stint = self._stints.get(job.stint_id)
            if job.phase is Phase.STARTING and stint is None:
                starts.append(job.newest_stint)
            elif job.phase is Phase.STOPPING:
                stops.append(job.stint_id)
            if job.phase is not Phase.WAITING:
                current.add(job.stint_id)
        # A stint that nobody knows of any more: its start came late, after it had been given up.
        strays = (key for key, stint in self._stints.items() if not stint.outcome and key not in current)
        return Orders(tuple(starts), tuple(stops), tuple(strays))

    # Books

    def _by_submission(self) -> list[Job]:
        return sorted(self._jobs.values(), key=lambda job: (job.submitted_s, job.job_id))

    def kind_of(self, job: Job) -> Kind:
        """What was measured of jobs of its kind."""
        return self._kinds.get(job.wish.kind) or Kind()

    def _put(self, job: Job) -> None:
        here, there = (self._ended, self._jobs) if job.ending else (self._jobs, self._ended)
        there.pop(job.job_id, None)
        here[job.job_id] = self._changed_jobs[job.job_id] = job

    def _put_kind(self, job: Job, kind: Kind) -> None:
        known = self.kind_of(job)
        self._kinds[job.wish.kind] = self._changed_kinds[job.wish.kind] = kind
        if kind.speeds is not known.speeds:
            self._curves = {key: curve for key, curve in self._curves.items() if key[0] != job.wish.kind}

    def _decide_soon(self, now_s: float) -> None:
        self._due_s = min(self._due_s, now_s + REACTION_S)


def _differing(known: Wish, asked: Wish) -> dict[str, tuple[object, object]]:
    """What was submitted before, and now, by field."""
    one, other = (_flat(asdict(wish)) for wish in (known, asked))
    pairs = {name: (one.get(name), other.get(name)) for name in {**one, **other}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields of fields, by names with dots."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
