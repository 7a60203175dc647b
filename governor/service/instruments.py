"""What Prometheus is told: slots, jobs by state, what teams hold, what keeps a governor from governing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evenload.governor.errors import GovernorError
from evenload.governor.governing.governor import Governor
from evenload.governor.governing.loop import Governing
from evenload.governor.service.page.findings import GpuFacts
from evenload.governor.service.wire import state_of

_PATIENCE_S = 3.0  # Prometheus waits for ten
STATES = ("waiting", "starting", "running", "stopping", "held", "finished", "failed", "cancelled")


class GovernorInstruments(Collector):
    """Reads a governor when it is scraped. From any thread."""

    def __init__(self, governing: Governing, gpu_facts: Callable[[Governor, float], GpuFacts]) -> None:
        self._governing, self._gpu_facts = governing, gpu_facts

    def describe(self) -> list[Metric]:
        """Nothing before the first scrape, which would have to wait for the governor."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All of it; without a governor only that there is none."""
        governing = self._governing
        yield _gauge(
            "evenload_governor_ready",
            "Whether it decides: its journal can be written, and its cluster answers.",
            0.0 if governing.unready else 1.0,
        )
        yield _gauge(
            "evenload_governor_damaged_records",
            "Records of the journal that could not be understood.",
            len(governing.damaged),
        )
        yield _gauge(
            "evenload_governor_policy_put_aside",
            "Whether another policy decides, as the one that was set misbehaved.",
            1.0 if governing.put_aside else 0.0,
        )
        try:
            yield from governing.ask(self._of, timeout_s=_PATIENCE_S)
        except (GovernorError, TimeoutError):
            return

    def _of(self, governor: Governor, now_s: float) -> list[Metric]:
        return [*_metrics_of(governor, now_s), *_gpus_of(governor, self._gpu_facts(governor, now_s))]


def _metrics_of(governor: Governor, now_s: float) -> Iterator[Metric]:
    yield _gauge("evenload_governor_slots", "Slots that jobs of the governor can have.", governor.num_slots)
    held = sum(job.size for job in governor.jobs.values())
    yield _gauge("evenload_governor_slots_held", "Slots that jobs hold.", held)
    states = Counter(state_of(job) for job in (*governor.jobs.values(), *governor.ended.values()))
    jobs = GaugeMetricFamily("evenload_governor_jobs", "Jobs by state.", labels=["state"])
    for state in STATES:
        jobs.add_metric([state], states[state])
    yield jobs
    waiting = [job for job in governor.jobs.values() if state_of(job) == "waiting" and not job.has_place]
    waits_s = [now_s - job.since_s for job in waiting]
    yield _gauge(
        "evenload_governor_longest_wait_seconds",
        "For how long the job has waited that waits longest.",
        max(waits_s, default=0.0),
    )
    by_team: Counter[str] = Counter()
    for job in governor.jobs.values():
        by_team[job.wish.team] += job.size
    yield _by_team("evenload_governor_team_slots_held", "Slots that a team holds.", by_team)
    used: Counter[str] = Counter()
    for job in (*governor.jobs.values(), *governor.ended.values()):
        used[job.wish.team] += round(job.slot_seconds_at(now_s))
    yield _by_team(
        "evenload_governor_team_slot_seconds", "That jobs of a team have used, of those that are known.", used
    )
    stints = CounterMetricFamily("evenload_governor_stints", "Stints that were ordered.")
    every = (*governor.jobs.values(), *governor.ended.values())
    stints.add_metric([], sum(job.stint for job in every))
    yield stints


def _gpus_of(governor: Governor, gpus: GpuFacts) -> Iterator[Metric]:
    slots: Counter[str] = Counter()
    busy: dict[str, float] = {}
    for job_id, part in gpus.busy_by_job.items():
        job = governor.jobs[job_id]
        slots[job.wish.team] += job.size
        busy[job.wish.team] = busy.get(job.wish.team, 0.0) + job.size * part
    yield _by_team(
        "evenload_governor_team_gpu_busy_ratio",
        "How busy the GPUs of a team's jobs were in the last ten minutes, where that is known.",
        {team: busy[team] / slots[team] for team in slots if slots[team]},
    )
    failing = GaugeMetricFamily(
        "evenload_governor_gpu_xid", "The driver's last error of a GPU.", labels=["node", "gpu"]
    )
    for gpu, xid in gpus.failing.items():
        failing.add_metric([gpu.node, gpu.number], xid)
    yield failing


def _by_team(name: str, documentation: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=["team"])
    for team, value in sorted(values.items()):
        family.add_metric([team], value)
    return family


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)
