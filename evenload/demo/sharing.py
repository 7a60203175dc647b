"""The demo's second act: two runs share a Ray cluster of four slots, and the policy is swapped meanwhile.

One run may have any number of workers, the other one alone. `fifo` gives each what was asked for, so two
slots stay free; `elastic_fifo` deals them out. The first run is then stopped after a checkpoint and goes on
with more workers. The governor is a process of its own, asked over HTTP as anybody asks it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from evenload.governor.on_ray.local_ray import local_ray
from evenload.governor.service.client import GovernorClient
from evenload.governor.service.own_process import own_governor
from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.training.audit import audit

NUM_SLOTS: Final = 4
GROWS, STAYS = "grows", "stays"
RIGID, ELASTIC = "fifo", "elastic_fifo"
# With one worker. The first has to be worth resizing once its speed is known, half a minute after its start.
GROWS_LASTS_S, STAYS_LASTS_S = 90.0, 60.0
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
    connection: Connection, storage: str, *, samples: int, samples_per_s: float, tell: Callable[[str], None]
) -> Sharing:
    """Do it, and audit both runs.

    Args:
        samples: Of the dataset "digits".
        samples_per_s: Of one worker, about.
        tell: Called with each line that a person would want to see, as it happens.

    Raises:
        RuntimeError: A run didn't end well, or its audit isn't exact.
    """
    tell(f"\nTwo runs share a Ray cluster of {NUM_SLOTS} slots; the policy is {RIGID} ...")
    with (
        local_ray(NUM_SLOTS) as dashboard_url,
        own_governor(connection, dashboard_url, "--policy", RIGID) as governor,
    ):
        scene = _Scene(governor.client, tell)
        for run, seconds, most in ((GROWS, GROWS_LASTS_S, NUM_SLOTS), (STAYS, STAYS_LASTS_S, 1)):
            epochs = max(1, math.ceil(seconds * samples_per_s / samples))
            governor.client.submit(_submission(run, storage, epochs=epochs, most=most))
        scene.watch(scene.is_measured)
        scene.swap()
        scene.watch(scene.have_ended)
    return Sharing(
        swapped_s=scene.swapped_s,
        sizes=scene.sizes,
        stints={run: job["stint"] for run, job in scene.jobs.items()},
        epochs={run: _audited(run, storage, connection, tell) for run in (GROWS, STAYS)},
    )


def _submission(run: str, storage: str, *, epochs: int, most: int) -> dict[str, Any]:
    config = {
        "dataset": "digits",
        "run": run,
        "storage": storage,
        "epochs": epochs,
        "checkpoint_interval_s": 5.0,
    }
    return {
        "recipe": "image-classification",
        "config": config,
        "min_size": 1,
        "max_size": most,
        "asked_size": 1,
    }


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

    def is_measured(self) -> bool:
        """Whether it is known how fast the run is that may grow; or there is nothing to wait for any more."""
        job = self.jobs[GROWS]
        return job["ended_s"] is not None or (job["state"] == "running" and not job["reason"])

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
