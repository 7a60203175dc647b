"""The demo's second act: two runs share a Ray cluster of four slots, and the policy is swapped meanwhile.

One run may have any number of workers, the other one alone. `fifo` gives each what was asked for, so two
slots stay free; `elastic_fifo` deals them out. The first run is then stopped after a checkpoint and goes on
with more workers. How fast such a run is, the governor would measure within its first half minute; here it
knows that from the first act. It is a process of its own, asked over HTTP as anybody asks it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from evenload.governor.on_ray.local_ray import local_ray
from evenload.governor.on_ray.runs import wish_of
from evenload.governor.service.client import GovernorClient
from evenload.governor.service.own_process import own_governor, write_down_speeds
from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.training.audit import audit
from evenload.ray_trainer.training.on_ray.submission import resolved
from evenload.ray_trainer.training.train_config import TrainConfig

NUM_SLOTS: Final = 4
RECIPE: Final = "image-classification"
GROWS, STAYS = "grows", "stays"
RIGID, ELASTIC = "fifo", "elastic_fifo"
# About, with one worker: what is left of the first has to be worth a resize; the other is there for company.
GROWS_LASTS_S, STAYS_LASTS_S = 40.0, 15.0
LOOK_S: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What happened.

    Attributes:
        swapped_s: When the policy was swapped, in seconds since the first submission.
        sizes: From when on a run had how many slots: by run, seconds and slots.
        stints: How often each was started.
        epochs: That each was trained for, by the audit, all exactly once.
    """

    swapped_s: float
    sizes: Mapping[str, list[tuple[float, int]]]
    stints: Mapping[str, int]
    epochs: Mapping[str, int]


def share_slots(
    connection: Connection,
    storage: str,
    *,
    dataset: str,
    samples: int,
    speeds: Mapping[int, float],
    resize_cost_s: float,
    tell: Callable[[str], None],
) -> Sharing:
    """Do it, and audit both runs.

    Args:
        dataset: What both train on; of few samples, so that both have some epochs.
        samples: Of it.
        speeds: Samples/s by workers, as far as the first act has measured them.
        resize_cost_s: What it takes to stop and go on, likewise.
        tell: Called with each line that a person would want to see, as it happens.

    Raises:
        RuntimeError: A run didn't end well, or its audit isn't exact.
    """
    samples_per_s = min(per_s / size for size, per_s in speeds.items())  # of a worker
    configs = [
        {
            "dataset": dataset,
            "run": run,
            "storage": storage,
            "epochs": max(1, round(lasts_s * samples_per_s / samples)),
            "checkpoint_interval_s": 5.0,
        }
        for run, lasts_s in ((GROWS, GROWS_LASTS_S), (STAYS, STAYS_LASTS_S))
    ]
    config = TrainConfig.model_validate({**configs[0], "dataset": f"{dataset}@1", "connection": connection})
    kind = wish_of(RECIPE, resolved(RECIPE, config), num_samples=samples, device="cpu").kind
    write_down_speeds(connection, {kind: speeds}, resize_cost_s)
    tell(f"\nTwo runs share a Ray cluster of {NUM_SLOTS} slots; the policy is {RIGID} ...")
    with (
        local_ray(NUM_SLOTS) as dashboard_url,
        own_governor(connection, dashboard_url, "--take-over", "--policy", RIGID) as governor,
    ):
        scene = _Scene(governor.client, tell)
        for asked, most in zip(configs, (NUM_SLOTS, 1), strict=True):
            sizes = {"min_size": 1, "max_size": most, "asked_size": 1}
            governor.client.submit({"recipe": RECIPE, "config": asked, **sizes})
        scene.watch(scene.are_running)
        scene.swap()
        scene.watch(scene.have_ended)
    return Sharing(
        swapped_s=scene.swapped_s,
        sizes=scene.sizes,
        stints={run: job["stint"] for run, job in scene.jobs.items()},
        epochs={run: _audited(run, storage, connection, tell) for run in (GROWS, STAYS)},
    )


def _audited(run: str, storage: str, connection: Connection, tell: Callable[[str], None]) -> int:
    report = audit(run, storage, connection)
    if not report.exactly_once:
        raise RuntimeError(f"the audit of {run!r} failed: {report}")
    tell(f"  {run}: {len(report.epochs)} epochs, every sample exactly once in each")
    return len(report.epochs)


@dataclass(slots=True)
class _Scene:
    """Looks at the governor's jobs and tells what changes."""

    client: GovernorClient
    tell: Callable[[str], None]
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    sizes: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    swapped_s: float = 0.0
    _began_s: float = field(default_factory=time.monotonic)
    _told: dict[str, tuple[str, int]] = field(default_factory=dict)

    def watch(self, is_over: Callable[[], bool]) -> None:
        """Look until then."""
        while True:
            self.jobs = {job["job"]: job for job in self.client.jobs()}
            for run, job in self.jobs.items():
                self._follow(run, job)
            if is_over():
                return
            time.sleep(LOOK_S)

    def are_running(self) -> bool:
        """Whether both are; or there is nothing to wait for any more."""
        return all(job["state"] == "running" or job["ended_s"] is not None for job in self.jobs.values())

    def have_ended(self) -> bool:
        """Whether both have."""
        for run, job in self.jobs.items():
            if job["state"] in ("failed", "cancelled"):
                raise RuntimeError(f"{run!r} has {job['state']}: {self.client.log(run)[-2000:]}")
        return all(job["ended_s"] is not None for job in self.jobs.values())

    def swap(self) -> None:
        """Have the elastic policy decide, and say before what that would change."""
        preview = self.client.set_policy(ELASTIC, is_preview=True)["changes"]
        changes = ", ".join(f"{run} {old} -> {new}" for run, (old, new) in preview.items())
        self.swapped_s = self._passed_s()
        self.client.set_policy(ELASTIC)
        took_s = self._passed_s() - self.swapped_s
        self.tell(
            f"  {self.swapped_s:3.0f} s: {ELASTIC} decides after {took_s:.1f} s: {changes or 'nothing'}"
        )

    def _follow(self, run: str, job: Mapping[str, Any]) -> None:
        now = (job["state"], job["size"])
        if self._told.get(run) == now:
            return
        self._told[run] = now
        self.sizes.setdefault(run, []).append((self._passed_s(), job["size"]))
        with_slots = f" with {job['size']} of {NUM_SLOTS} slots" if job["size"] else ""
        self.tell(f"  {self._passed_s():3.0f} s: {run} {job['state']}{with_slots}, {_done(job)}")

    def _passed_s(self) -> float:
        return time.monotonic() - self._began_s


def _done(job: Mapping[str, Any]) -> str:
    return f"{job['samples_done'] / job['samples']:.0%} of its samples read"
