"""Rules that resize: everybody served gets its least, then what is left is dealt slot by slot."""

from __future__ import annotations

from collections.abc import Callable

from evenload.governor.deciding.policies.dealing import deal_best, deal_in_turn, fill, least_size
from evenload.governor.deciding.state import ClusterState, JobView, Sizes

FAIRNESS = -1.0  # Pollux' p: the more negative, the more the worst-off counts


def elastic_fifo(state: ClusterState) -> Sizes:
    """Each its least by submission, then one slot a turn.

    Source: Voda's ElasticFIFO (Hou, Yang and Chou, IC2E 2023).
    """
    return deal_in_turn(state.jobs, fill(state.jobs, least_size, state.num_slots), state.num_slots)


def equi(state: ClusterState) -> Sizes:
    """Equal parts for all; where there are not enough, for those that have had least."""
    jobs = sorted(state.jobs, key=lambda job: job.slot_seconds)
    return deal_in_turn(jobs, fill(jobs, least_size, state.num_slots), state.num_slots)


def optimus(state: ClusterState) -> Sizes:
    """The next slot goes where it takes most off a job's remaining time.

    Source: Optimus (Peng et al., EuroSys 2018), section 4.1.
    """

    def seconds_saved(job: JobView, size: int) -> float:
        return job.samples_left * (1 / job.speed.hull[size] - 1 / job.speed.hull[size + 1])

    return _shortest_then_best(state, seconds_saved)


def power_mean(state: ClusterState) -> Sizes:
    """The next slot goes where it raises the power mean of all jobs' speed-ups over a fair part most.

    Source: Pollux (Qiao et al., OSDI 2021), its fitness at a fixed batch.
    """
    fair = max(1, state.num_slots // max(1, len(state.jobs)))

    def speed_up(job: JobView, size: int) -> float:
        return job.speed.hull[size] / job.speed.hull[min(fair, job.max_size)]

    def gained(job: JobView, size: int) -> float:
        return float(speed_up(job, size) ** FAIRNESS - speed_up(job, size + 1) ** FAIRNESS)

    return _shortest_then_best(state, gained)


def _shortest_then_best(state: ClusterState, gain: Callable[[JobView, int], float]) -> Sizes:
    jobs = sorted(state.jobs, key=lambda job: job.samples_left / job.speed.hull[1])
    return deal_best(jobs, fill(jobs, least_size, state.num_slots), state.num_slots, gain)
