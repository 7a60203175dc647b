"""What is said over HTTP: jobs as documents, and submissions as they come."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from evenload.governor.deciding.state import Team
from evenload.governor.governing.governor import Governor
from evenload.governor.governing.jobs import Ending, Job
from evenload.governor.governing.orders import Phase
from evenload.governor.on_ray.gpu_state import NodeGpus
from evenload.governor.service.tokens import TEAM
from evenload.ray_trainer.training.train_config import TrainConfig

WEIGHT_BY_PRIORITY = {"urgent": 16.0, "normal": 4.0, "low": 1.0}


class Submitted(BaseModel):
    """A run that somebody wants."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    recipe: str = Field(max_length=200, description="Its name.")
    config: TrainConfig = Field(description="As for `evenload train`; its workers say nothing here.")
    min_size: int = Field(1, ge=1, description="The fewest workers that it runs with.")
    max_size: int | None = Field(None, ge=1, description="The most; None: as many as it can ever have.")
    asked_size: int | None = Field(None, ge=1, description="Its size where nothing resizes; None: the most.")
    priority: Literal["urgent", "normal", "low"] = Field("normal", description="16, 4 or 1 to weigh it by.")
    team: str | None = Field(
        None,
        pattern=rf"\A{TEAM}\z",
        description="Whose it is; None: the token's, or where there are none `default`.",
    )


class SubmittedPlain(BaseModel):
    """Any command that somebody wants to run on the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(max_length=150, description="Of the job.")
    command: str = Field(min_length=1, max_length=10_000, description="For a shell on the cluster.")
    slots: int = Field(ge=1, description="That it takes, by what it starts itself.")
    is_kept: bool = Field(False, description="It is never stopped for others.")
    priority: Literal["urgent", "normal", "low"] = Field("normal", description="16, 4 or 1 to weigh it by.")
    team: str | None = Field(
        None,
        pattern=rf"\A{TEAM}\z",
        description="Whose it is; None: the token's, or where there are none `default`.",
    )


class AskedPolicy(BaseModel):
    """Which policy is to decide."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str = Field(max_length=200, description="Its name.")


class AskedSizes(BaseModel):
    """From how many workers to how many a job may have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_size: int = Field(ge=1)
    max_size: int | None = Field(None, ge=1, description="None: as many as it can ever have.")


class AskedTeam(BaseModel):
    """What a team may have at most, and what it gets when its jobs wait."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: int | None = Field(None, ge=0, le=10**6, description="Slots, together; None: all.")
    guarantee: int = Field(0, ge=0, le=10**6, description="Slots, though others have them.")


class NodeOfReport(BaseModel):
    """Which GPUs of a machine a stint has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(max_length=253)
    address: str = Field("", max_length=45)
    ids: tuple[str, ...] = Field(max_length=128)


class Report(BaseModel):
    """How far a stint is, as its driver says."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    job: str = Field(max_length=200)
    stint: int = Field(ge=1, le=10**9)
    epoch: int = Field(ge=0, le=10**9)
    samples_consumed: int = Field(ge=0, le=10**15)
    num_samples: int = Field(ge=1, le=10**15)
    gpus: tuple[NodeOfReport, ...] = Field((), max_length=2000)

    @property
    def held(self) -> tuple[NodeGpus, ...]:
        """GPUs that the stint has."""
        return tuple(
            NodeGpus(frozenset({node.host, node.address} - {""}), frozenset(node.ids)) for node in self.gpus
        )

    @property
    def samples_done(self) -> float:
        """By the job, in all its stints."""
        return float(self.epoch * self.num_samples + self.samples_consumed)


def job_document(governor: Governor, job: Job, now_s: float) -> dict[str, Any]:
    """A job as it stands now."""
    return {
        "job": job.job_id,
        "state": state_of(job),
        "reason": _reason(governor, job, now_s),
        "size": job.size,
        "wanted": job.wanted,
        "min_size": job.min_size,
        "max_size": job.max_size,
        "asked_size": job.asked_size,
        "team": job.wish.team,
        "weight": job.wish.weight,
        "kind": job.wish.kind,
        "samples": job.wish.samples,
        "samples_done": _samples_done(job),
        "submitted_s": job.submitted_s,
        "ended_s": job.ended_s if job.ending else None,
        "stint": job.stint,
        "slot_seconds": job.slot_seconds_at(now_s),
    }


def team_names(governor: Governor) -> list[str]:
    """Of which something is set, or which have jobs that haven't ended."""
    return sorted({*governor.teams, *(job.wish.team for job in governor.jobs.values())})


def team_document(governor: Governor, name: str) -> dict[str, int | None]:
    """What is set of a team, and what it has now."""
    team = governor.teams.get(name, Team())
    jobs = [job for job in governor.jobs.values() if job.wish.team == name]
    return {
        "limit": team.limit,
        "guarantee": team.guarantee,
        "slots": sum(job.size for job in jobs),
        "jobs": len(jobs),
        "waiting": sum(job.size == 0 for job in jobs),
    }


def _samples_done(job: Job) -> float | None:
    if job.wish.samples is None:
        return None
    return job.wish.samples if job.ending is Ending.FINISHED else job.samples_done


def state_of(job: Job) -> str:
    """In one word: how it ended, that it is held, or where its workers stand."""
    if job.ending:
        return job.ending.value
    return "held" if job.is_held and job.phase is Phase.WAITING else job.phase.value


def _reason(governor: Governor, job: Job, now_s: float) -> str:
    if (job.is_held or job.is_cancelled) and job.phase is not Phase.WAITING:
        return "stops after a checkpoint"
    if refused := governor.why_refused(job):
        return refused
    if job.ending or job.is_held:
        return f"{job.num_fruitless} starts in a row ended without a sample" if job.num_fruitless else ""
    if job.not_before_s > now_s:
        return f"failed {job.num_failures} times in a row; starts again in {job.not_before_s - now_s:.0f} s"
    if job.phase is Phase.WAITING and job.wanted:
        return f"waits for {job.wanted} slots that others are leaving"
    if job.phase is Phase.WAITING:
        least = job.min_size
        if least > governor.num_slots:
            return f"waits: there are {governor.num_slots} slots, and it needs {least}"
        waits = f"waits: {max(0, governor.num_free)} slots free, needs {least}"
        patience_s = governor.wait_max_s - (now_s - job.since_s)
        if patience_s == math.inf:
            return waits
        turn = f"at the latest in {patience_s:.0f} s" if patience_s > 0 else "is due"
        return f"{waits}; its turn {turn}"
    if not job.is_plain and not governor.has_measured(job):
        return "how fast it is at this size is being measured"
    return governor.notes.get(job.job_id, "")
