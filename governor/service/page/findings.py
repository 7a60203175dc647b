"""What an operator has to know of a governor, in sentences, the most urgent first.

Pure. Each function looks for one kind of trouble and says it once, about all jobs that have it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from evenload.governor.governing.governor import Governor
from evenload.governor.governing.jobs import Ending, Job
from evenload.governor.on_ray.gpu_pages import Gpu
from evenload.governor.service.wire import state_of

Severity = Literal["critical", "warning", "notice", "fine"]
NAMED_MAX = 3  # jobs in one sentence
FAILED_SHOWN_S = 86_400.0  # a job that failed is said for a day
IDLE_BELOW = 0.1  # GPUs that are less busy are held for nothing
# Others are of users' programs as a rule (NVIDIA's "XID errors": 13, 31, 43, 45).
HARDWARE_XIDS = frozenset({48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120})

_URGENCY: dict[Severity, int] = {"critical": 0, "warning": 1, "notice": 2, "fine": 3}


class Finding(BaseModel):
    """One sentence.

    Attributes:
        kind: What it is about, the same for as long as it is the same trouble.
        severity: How urgent it is.
        text: The sentence.
        about: Whom, as far as it is about jobs.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    severity: Severity
    text: str
    about: tuple[str, ...] = ()


class GpuFacts(NamedTuple):
    """What exporters say of GPUs.

    Attributes:
        busy_by_job: How busy those of a job were in the last ten minutes, 0 to 1, where that is known.
        failing: The driver's last error, by GPU.
        faults: Why an exporter's page can't be read, by its URL.
    """

    busy_by_job: Mapping[str, float] = MappingProxyType({})
    failing: Mapping[Gpu, int] = MappingProxyType({})
    faults: Mapping[str, str] = MappingProxyType({})


class Troubles(NamedTuple):
    """What keeps a governor from governing.

    Attributes:
        unready: Why nothing is decided.
        policy_fault: Why another policy decides than was set.
        num_damaged: Records of the journal that can't be understood.
        gpus: What is known of them.
    """

    unready: str | None = None
    policy_fault: str | None = None
    num_damaged: int = 0
    gpus: GpuFacts = GpuFacts()


def find(governor: Governor | None, troubles: Troubles, now_s: float) -> tuple[Finding, ...]:
    """All that is to be said, the most urgent first; never nothing."""
    found = [*_of_itself(troubles), *_of_gpus(troubles.gpus)]
    if governor is not None:
        found += [*_failed(governor, now_s), *_too_large(governor), *_failing(governor, now_s)]
        found += [*_idle_gpus(governor, troubles.gpus), *_held(governor)]
    found.sort(key=lambda finding: _URGENCY[finding.severity])
    if found or governor is None:
        return tuple(found) or (Finding(kind="begins", severity="notice", text="The governor begins."),)
    return (Finding(kind="fine", severity="fine", text=_all_is_well(governor)),)


def _of_itself(troubles: Troubles) -> Iterator[Finding]:
    if troubles.unready:
        text = f"Nothing is decided at present: {troubles.unready.rstrip('.')}. Runs train on."
        yield Finding(kind="unready", severity="critical", text=text)
    if troubles.policy_fault:
        text = f"The policy was put aside: {troubles.policy_fault}"
        yield Finding(kind="policy", severity="warning", text=text)
    if troubles.num_damaged:
        what = "record of the journal" if troubles.num_damaged == 1 else "records of the journal"
        text = f"{troubles.num_damaged} {what} can't be understood; the governor's log names them."
        yield Finding(kind="damaged", severity="warning", text=text)


def _of_gpus(gpus: GpuFacts) -> Iterator[Finding]:
    by_node: dict[str, list[tuple[str, int]]] = {}
    for gpu, xid in gpus.failing.items():
        by_node.setdefault(gpu.node, []).append((gpu.number, xid))
    broken = {
        node: failing for node, failing in by_node.items() if HARDWARE_XIDS & {xid for _, xid in failing}
    }
    for node, failing in sorted(broken.items())[:NAMED_MAX]:
        errors = ", ".join(f"GPU {number[:20]} XID {xid}" for number, xid in sorted(failing)[:NAMED_MAX])
        more = f" and {len(broken) - NAMED_MAX} more machines" if len(broken) > NAMED_MAX else ""
        text = f"{node}{more} had errors of hardware ({errors}). `ray drain-node` takes a machine out of use."
        yield Finding(kind="xid", severity="warning", text=text, about=(node,))
    if gpus.faults:
        url, reason = min(gpus.faults.items())
        more = f" and {len(gpus.faults) - 1} more" if len(gpus.faults) > 1 else ""
        text = f"Not all GPUs are known: {url}{more} can't be read ({reason})."
        yield Finding(kind="gpu_metrics", severity="notice", text=text)


def _idle_gpus(governor: Governor, gpus: GpuFacts) -> Iterator[Finding]:
    for job_id, busy in sorted(gpus.busy_by_job.items(), key=lambda item: item[1])[:NAMED_MAX]:
        job = governor.jobs.get(job_id)
        if job is not None and busy < IDLE_BELOW:
            held = "1 GPU" if job.size == 1 else f"{job.size} GPUs"
            text = f"{job_id} holds {held}, {busy:.0%} busy for ten minutes."
            yield Finding(kind="idle_gpus", severity="warning", text=text, about=(job_id,))


def _failed(governor: Governor, now_s: float) -> Iterator[Finding]:
    failed = [
        job
        for job in governor.ended.values()
        if job.ending is Ending.FAILED and now_s - job.ended_s < FAILED_SHOWN_S
    ]
    if failed:
        again = "`evenload jobs log` says why, `release` starts again."
        yield _about("failed", "warning", failed, f"failed. {again}", f"failed. {again}")


def _too_large(governor: Governor) -> Iterator[Finding]:
    if governor.observed_s == -math.inf:
        return  # nobody has looked yet
    large = [job for job in governor.jobs.values() if job.min_size > governor.num_slots and not job.size]
    if large and governor.num_slots:
        there_are = f"than the {governor.num_slots} slots that there are"
        yield _about("too_large", "warning", large, f"needs more {there_are}", f"need more {there_are}")
    elif large:
        yield _about("no_slots", "warning", large, "waits: no node has slots", "wait: no node has slots")


def _failing(governor: Governor, now_s: float) -> Iterator[Finding]:
    failing = [job for job in governor.jobs.values() if job.not_before_s > now_s]
    if failing:
        yield _about(
            "failing", "warning", failing, "has failed and starts again", "have failed and start again"
        )


def _held(governor: Governor) -> Iterator[Finding]:
    held = [job for job in governor.jobs.values() if job.is_held]
    if held:
        yield _about("held", "notice", held, "is held until released", "are held until released")


def _about(kind: str, severity: Severity, jobs: Sequence[Job], one: str, many: str) -> Finding:
    names = sorted(job.job_id for job in jobs)
    text = f"{names[0]} {one}" if len(names) == 1 else f"{_listed(names)} {many}"
    return Finding(
        kind=kind,
        severity=severity,
        text=text if text.endswith(".") else f"{text}.",
        about=tuple(names[:NAMED_MAX]),
    )


def _listed(names: Sequence[str]) -> str:
    if len(names) > NAMED_MAX:
        return f"{', '.join(names[:NAMED_MAX])} and {len(names) - NAMED_MAX} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _all_is_well(governor: Governor) -> str:
    if not governor.jobs:
        return f"All is well: no job is in the queue, and {_slots(governor.num_slots)} free."
    states = Counter(state_of(job) for job in governor.jobs.values())
    with_slots = len(governor.jobs) - states["waiting"]
    held = sum(job.size for job in governor.jobs.values())
    jobs = "1 job has" if with_slots == 1 else f"{with_slots} jobs have"
    waits = f", {states['waiting']} wait{'s' if states['waiting'] == 1 else ''}" if states["waiting"] else ""
    return f"All is well: {jobs} {held} of {governor.num_slots} slots{waits}."


def _slots(number: int) -> str:
    return f"{number} slot{' is' if number == 1 else 's are'}"
