"""The ten runs under one policy; and once more while governors are killed and policies swapped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.queue.site import LOOK_S, Site, queue_site
from benchmarks.queue.workload import NUM_SLOTS, RUNS, Run
from evenload.governor.deciding.plugins import DEFAULT, load_policy
from evenload.governor.simulating.simulation import Costs, simulate

WAIT_MAX_S = 600.0
SWAPS = ("elastic_fifo", "fifo", DEFAULT)
NUM_KILLS = 5

Tell = Callable[[str], None]


class Alone(NamedTuple):
    """What a run takes that has the cluster for itself, in seconds."""

    start_s: float  # from its submission to its first step
    stop_s: float  # from an order to stop to its end


class Pass(NamedTuple):
    """What the ten runs came to.

    Attributes:
        policy: That decided.
        completion_s: From submission to end, by run.
        num_resizes: Of all runs.
        resize_costs_s: From an order to stop to the first step at another size.
        most_held: Slots that were ever held at once.
        is_exact: Whether the audit of each run found every sample once an epoch.
    """

    policy: str
    completion_s: dict[str, float]
    num_resizes: int
    resize_costs_s: list[float]
    most_held: int
    is_exact: bool

    @property
    def mean_s(self) -> float:
        return sum(self.completion_s.values()) / len(self.completion_s)


class Faults(NamedTuple):
    """What came of the faults.

    Attributes:
        done: The runs.
        back_s: How long each governor took to answer after its predecessor's death.
        swap_s: How long each swap took to be in force.
    """

    done: Pass
    back_s: list[float]
    swap_s: list[float]


def measure_alone(tell: Tell, *, repetitions: int = 3) -> list[Alone]:
    """Starts and stops one run with two workers, a few times."""
    found = []
    with queue_site() as site:
        site.start_governor("fifo")
        for number in range(repetitions):
            run = Run(f"alone-{number}", 0.0, "A", 600, 2)
            began_s = time.monotonic()
            site.submit(run)
            _wait(site, run, "running")
            start_s = time.monotonic() - began_s
            began_s = time.monotonic()
            site.client.hold(run.name)
            _wait(site, run, "held")
            found.append(Alone(start_s, time.monotonic() - began_s))
            site.client.cancel(run.name)
            tell(f"alone: {found[-1].start_s:.1f} s to its first step, {found[-1].stop_s:.1f} s to its stop")
    return found


def _wait(site: Site, run: Run, state: str) -> None:
    while (now := site.jobs()[run.name]["state"]) != state:
        if now == "failed":
            raise RuntimeError(f"{run.name} failed before it was {state}")
        time.sleep(LOOK_S)


def run_pass(policy: str, resize_cost_s: float, tell: Tell, *, runs: Sequence[Run] = RUNS) -> Pass:
    """The runs under a policy, from the first submission to the last end."""
    with queue_site() as site:
        site.know_speeds(runs, resize_cost_s)
        site.start_governor(policy)
        most_held = _let_run(site, runs, tell, lambda _: None)
        return _result(site, policy, runs, most_held)


def simulated(policy: str, alone: Alone, *, runs: Sequence[Run] = RUNS) -> dict[str, float]:
    """Completion by run in a simulation with costs as measured."""
    ended = simulate(
        [run.submission for run in runs],
        load_policy(policy),
        num_slots=NUM_SLOTS,
        costs=Costs(start_s=alone.start_s, stop_s=alone.stop_s),
        wait_max_s=WAIT_MAX_S,
    )
    return {each.job.job_id: each.completion_s for each in ended}


def run_faults(resize_cost_s: float, tell: Tell, *, runs: Sequence[Run] = RUNS) -> Faults:
    """The runs under the default, while governors die and policies are swapped."""
    with queue_site() as site:
        site.know_speeds(runs, resize_cost_s)
        site.start_governor(DEFAULT)
        back_s: list[float] = []
        swap_s: list[float] = []
        moments = [60.0 + 25.0 * number for number in range(NUM_KILLS + len(SWAPS))]

        def disturb(passed_s: float) -> None:
            if not moments or passed_s < moments[0]:
                return
            del moments[0]
            if len(back_s) < NUM_KILLS and len(back_s) <= 2 * len(swap_s):
                site.kill_governor()
                back_s.append(site.start_governor())
                tell(f"{passed_s:.0f} s: the governor was killed, and is back after {back_s[-1]:.1f} s")
            else:
                name = SWAPS[len(swap_s)]
                began_s = time.monotonic()
                site.client.set_policy(name)
                swap_s.append(time.monotonic() - began_s)
                tell(f"{passed_s:.0f} s: {name} decides, after {swap_s[-1]:.2f} s")

        most_held = _let_run(site, runs, tell, disturb)
        return Faults(_result(site, DEFAULT, runs, most_held), back_s, swap_s)


def _let_run(site: Site, runs: Sequence[Run], tell: Tell, disturb: Callable[[float], None]) -> int:
    """Submits each when its time comes, until all have ended; returns the most slots that were held."""
    coming = list(runs)
    began_s = time.monotonic()
    told: dict[str, tuple[str, int]] = {}
    most_held = 0
    while True:
        passed_s = time.monotonic() - began_s
        while coming and coming[0].submitted_s <= passed_s:
            site.submit(coming.pop(0))
        disturb(passed_s)
        jobs = site.jobs()
        most_held = max(most_held, sum(int(job["size"]) for job in jobs.values()))
        for name, job in jobs.items():
            if told.get(name) != (now := (job["state"], job["size"])):
                told[name] = now
                tell(f"{passed_s:.0f} s: {name} {job['state']} with {job['size']}")
        if not coming and all(job["ended_s"] is not None for job in jobs.values()):
            return most_held
        time.sleep(LOOK_S)


def _result(site: Site, policy: str, runs: Sequence[Run], most_held: int) -> Pass:
    jobs = site.jobs()
    if unfinished := [name for name, job in jobs.items() if job["state"] != "finished"]:
        raise RuntimeError(f"{unfinished[0]} has {jobs[unfinished[0]]['state']}")
    site.end_governor()
    return Pass(
        policy=policy,
        completion_s={run.name: jobs[run.name]["ended_s"] - jobs[run.name]["submitted_s"] for run in runs},
        num_resizes=sum(job["stint"] - 1 for job in jobs.values()),
        resize_costs_s=site.resize_costs_s(),
        most_held=most_held,
        is_exact=all(site.is_exact(run.name) for run in runs),
    )
