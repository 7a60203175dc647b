"""What the governor's page shows, as values: the JSON of `/v1/overview`.

Everything is decided here, so that the page only draws: sentences, the order of jobs, what is left out
because there is too much of it. All lists are bounded, and `num_jobs` says how many there are.

Pure. Times are seconds, `*_ago_s` before this overview. Read next: findings.py, page.html.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from evenload.governor.governing.governor import Governor
from evenload.governor.governing.jobs import Job
from evenload.governor.governing.orders import Phase
from evenload.governor.service.page.findings import Finding, GpuFacts, Troubles, find
from evenload.governor.service.page.slot_history import HeldSlots, SlotHistory, slot_seconds
from evenload.governor.service.wire import job_document, team_document, team_names

JOBS_MAX, ENDED_MAX, TEAMS_MAX, KINDS_MAX, DECISIONS_MAX, CHANGES_MAX = 200, 20, 50, 6, 12, 12
DRAWN_JOBS_MAX = 8  # in the picture: as many as there are colours


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class JobOverview(_Shown):
    """A job.

    Attributes:
        job, state, reason, size, wanted, min_size, max_size, team, weight, kind, stint: As `/v1/jobs` has it.
        done: What part of its samples is read; None: a plain job's isn't known.
        left_s: Until it ends, at its size and what is known of its speed; None: not known, or it waits.
        busy: How busy its GPUs were in the last ten minutes, 0 to 1; None: it isn't known.
        since_s: For how long it has had its place, or has waited for one.
    """

    job: str
    state: str
    reason: str
    size: int
    wanted: int
    min_size: int
    max_size: int
    team: str
    weight: float
    kind: str
    stint: int
    done: float | None
    left_s: float | None
    busy: float | None
    since_s: float


class KindOverview(_Shown):
    """How fast runs of a kind are.

    Attributes:
        kind: Its name.
        jobs: Some of those that haven't ended.
        measured: Samples/s by size.
        expected: Samples/s by size from 0, measured or not, as decisions take it.
        resize_cost_s: From a stop to the first step at another size; 15 until that was measured.
    """

    kind: str
    jobs: tuple[str, ...]
    measured: Mapping[int, float]
    expected: tuple[float, ...]
    resize_cost_s: float


class DecisionOverview(_Shown):
    """A decision that changed something.

    Attributes:
        ago_s: When.
        policy: Which decided.
        changes: From which size to which, by job.
        num_changes: How many.
    """

    ago_s: float
    policy: str
    changes: Mapping[str, tuple[int, int]]
    num_changes: int


class HistoryOverview(_Shown):
    """The last hour, oldest first.

    Attributes:
        span_s: How far it can go back.
        jobs: Those that had most, by name; the rest is drawn as one.
        from_ago_s: When each point began.
        num_slots: That there were, from then on.
        sizes: What each of `jobs` had then, and last what all others had.
    """

    span_s: float
    jobs: tuple[str, ...]
    from_ago_s: tuple[float, ...]
    num_slots: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]


class PolicyOverview(_Shown):
    """What decides.

    Attributes:
        name: Of the policy that is set; None: nothing decides yet.
        fault: Why another decides.
        known: All that can be set.
    """

    name: str | None
    fault: str | None
    known: tuple[str, ...]


class Overview(_Shown):
    """Everything that the page shows.

    Attributes:
        schema_version: Of this document; a reader refuses another one.
        findings: What an operator has to know, the most urgent first; never empty.
        age_s: How long ago the cluster was looked at; None: not yet.
        is_stale: Whether nothing is decided at present.
        policy: What decides.
        num_slots: That jobs can have.
        num_held: That they have.
        jobs: First those with slots, then those that wait, each by submission.
        num_jobs: Of those that haven't ended.
        ended: The newest.
        teams: What each has and may have.
        kinds: Of jobs that haven't ended.
        decisions: The newest first.
        history: The last hour.
    """

    schema_version: Literal[1] = 1
    findings: tuple[Finding, ...]
    age_s: float | None
    is_stale: bool
    policy: PolicyOverview
    num_slots: int = 0
    num_held: int = 0
    jobs: tuple[JobOverview, ...] = ()
    num_jobs: int = 0
    ended: tuple[JobOverview, ...] = ()
    teams: Mapping[str, Mapping[str, int | None]] = {}
    kinds: tuple[KindOverview, ...] = ()
    decisions: tuple[DecisionOverview, ...] = ()
    history: HistoryOverview | None = None


def without_governor(policy: PolicyOverview, troubles: Troubles, last: Overview | None = None) -> Overview:
    """What is shown while there is none, or it has no time: what was last known, if anything, as stale."""
    findings = find(None, troubles, 0.0)
    if last is not None:
        return last.model_copy(update={"findings": findings, "is_stale": True, "policy": policy})
    return Overview(findings=findings, age_s=None, is_stale=True, policy=policy)


def make_overview(
    governor: Governor, now_s: float, *, history: SlotHistory, policy: PolicyOverview, troubles: Troubles
) -> Overview:
    """What is shown of a governor at one moment."""
    by_place = sorted(governor.jobs.values(), key=lambda job: (not job.size, job.submitted_s, job.job_id))
    newest = sorted(governor.ended.values(), key=lambda job: -job.ended_s)[:ENDED_MAX]
    age_s = now_s - governor.observed_s
    return Overview(
        findings=find(governor, troubles, now_s),
        age_s=max(0.0, age_s) if age_s < math.inf else None,
        is_stale=troubles.unready is not None,
        policy=policy,
        num_slots=governor.num_slots,
        num_held=sum(job.size for job in governor.jobs.values()),
        jobs=tuple(_job(governor, job, now_s, troubles.gpus) for job in by_place[:JOBS_MAX]),
        num_jobs=len(by_place),
        ended=tuple(_job(governor, job, now_s, troubles.gpus) for job in newest),
        teams=_teams(governor),
        kinds=_kinds(governor, by_place, now_s),
        decisions=tuple(
            DecisionOverview(
                ago_s=max(0.0, now_s - made.at_s),
                policy=made.policy,
                changes={
                    job_id: (size, made.sizes.get(job_id, 0))
                    for job_id, size in list(made.changed.items())[:CHANGES_MAX]
                },
                num_changes=len(made.changed),
            )
            for made in list(governor.decisions)[: -DECISIONS_MAX - 1 : -1]
        ),
        history=_history(history.read(), now_s, history.span_s),
    )


def _job(governor: Governor, job: Job, now_s: float, gpus: GpuFacts) -> JobOverview:
    document = job_document(governor, job, now_s)
    samples, done = document["samples"], document["samples_done"]
    return JobOverview(
        **{name: document[name] for name in _SAME},
        done=done / samples if samples else None,
        left_s=_left_s(governor, job),
        busy=gpus.busy_by_job.get(job.job_id),
        since_s=max(0.0, (job.ended_s if job.ending else now_s) - _since_s(job)),
    )


_SAME = (
    "job",
    "state",
    "reason",
    "size",
    "wanted",
    "min_size",
    "max_size",
    "team",
    "weight",
    "kind",
    "stint",
)


def _since_s(job: Job) -> float:
    """When it came to be what it is; one that is resized waits since its new size was decided."""
    return job.wanted_since_s if job.is_interrupted else job.since_s


def _left_s(governor: Governor, job: Job) -> float | None:
    if job.phase is not Phase.RUNNING or job.is_plain or not governor.has_measured(job):
        return None
    assert job.wish.samples is not None
    return max(0.0, job.wish.samples - job.samples_done) / governor.kind_of(job).measured[job.size]


def _teams(governor: Governor) -> dict[str, dict[str, int | None]]:
    return {name: team_document(governor, name) for name in team_names(governor)[:TEAMS_MAX]}


def _kinds(governor: Governor, jobs: Sequence[Job], now_s: float) -> tuple[KindOverview, ...]:
    by_kind: dict[str, list[Job]] = {}
    for job in jobs:
        if not job.is_plain and (job.wish.kind in by_kind or len(by_kind) < KINDS_MAX):
            by_kind.setdefault(job.wish.kind, []).append(job)
    return tuple(
        KindOverview(
            kind=kind,
            jobs=tuple(job.job_id for job in of_kind[:CHANGES_MAX]),
            measured=governor.kind_of(of_kind[0]).measured,
            expected=governor.view(max(of_kind, key=lambda job: job.max_size), now_s).speed.samples_per_s,
            resize_cost_s=governor.kind_of(of_kind[0]).resize_cost_s,
        )
        for kind, of_kind in by_kind.items()
        if governor.kind_of(of_kind[0]).measured
    )


def _history(points: tuple[HeldSlots, ...], now_s: float, span_s: float) -> HistoryOverview:
    used = slot_seconds(points, now_s)
    drawn = sorted(sorted(used, key=lambda job_id: -used[job_id])[:DRAWN_JOBS_MAX])
    return HistoryOverview(
        span_s=span_s,
        jobs=tuple(drawn),
        from_ago_s=tuple(max(0.0, now_s - point.at_s) for point in points),
        num_slots=tuple(point.num_slots for point in points),
        sizes=tuple(
            (
                *(point.by_job.get(job_id, 0) for job_id in drawn),
                sum(size for job_id, size in point.by_job.items() if job_id not in drawn),
            )
            for point in points
        ),
    )
