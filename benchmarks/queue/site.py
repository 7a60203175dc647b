"""Brokers, a Ray cluster of four slots, and a governor over them; all real, on this machine."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.queue.paced import MODULE, NAME
from benchmarks.queue.workload import GLOBAL_BATCH_SIZE, NUM_SAMPLES, NUM_SLOTS, Run, speeds_of
from evenload.governor.errors import GovernorError
from evenload.governor.governing.journal import KafkaJournal
from evenload.governor.on_ray.local_ray import local_ray
from evenload.governor.on_ray.runs import wish_of
from evenload.governor.service.client import GovernorClient
from evenload.governor.service.own_process import OwnGovernor, start_governor, write_down_speeds
from evenload.kafka_connection.connection import Connection
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.local_cluster import temporary_cluster
from evenload.ray_trainer.training.audit import audit
from evenload.ray_trainer.training.train_config import TrainConfig

ROOT = Path(__file__).parents[2]
DATASET = "ten-seconds"
LOOK_S = 0.25


class Site:
    """Where runs share four slots."""

    def __init__(self, connection: Connection, dashboard_url: str, storage: Path) -> None:
        self.connection, self.dashboard_url, self.storage = connection, dashboard_url, storage
        self._governor: OwnGovernor | None = None

    @property
    def client(self) -> GovernorClient:
        """Of the governor that was started last."""
        assert self._governor is not None
        return self._governor.client

    def start_governor(self, policy: str | None = None) -> float:
        """Has one govern; returns after how many seconds it answered."""
        began_s = time.monotonic()
        # Who wrote the speeds down a moment ago is no governor, but looks like one.
        options = ("--take-over", "--policy", policy) if policy else ()
        self._governor = start_governor(self.connection, self.dashboard_url, *options, program=("-m", MODULE))
        self.jobs()
        return time.monotonic() - began_s

    def kill_governor(self) -> None:
        """As a machine's memory manager does."""
        self.end_governor(signal.SIGKILL)

    def end_governor(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Whichever runs."""
        if self._governor is not None:
            self._governor.process.send_signal(by)
            self._governor.process.communicate()
            self._governor = None

    def submit(self, run: Run) -> None:
        """Has a run join the queue."""
        self.client.submit(
            {
                "recipe": NAME,
                "config": self._config(run),
                "min_size": 1,
                "max_size": NUM_SLOTS,
                "asked_size": run.asked,
            }
        )

    def _config(self, run: Run) -> dict[str, Any]:
        return {
            "dataset": DATASET,
            "run": run.name,
            "storage": str(self.storage),
            "epochs": run.epochs,
            "global_batch_size": GLOBAL_BATCH_SIZE,
            "checkpoint_interval_s": 5.0,
            "options": {"curve": run.curve},
        }

    def jobs(self) -> dict[str, dict[str, Any]]:
        """All jobs by name, as soon as the governor answers."""
        while True:
            with suppress(GovernorError):
                return {job["job"]: job for job in self.client.jobs()}
            time.sleep(LOOK_S)

    def is_exact(self, run: str) -> bool:
        """Whether each sample was used once an epoch."""
        return audit(run, str(self.storage), self.connection).exactly_once

    def know_speeds(self, runs: Sequence[Run], resize_cost_s: float) -> None:
        """Writes down what governors before would have measured, before the first is started."""
        speeds = {}
        for run in runs:
            config = TrainConfig.model_validate({**self._config(run), "dataset": f"{DATASET}@1"})
            kind = wish_of(NAME, config, num_samples=NUM_SAMPLES, device="cpu").kind
            speeds[kind] = speeds_of(run.curve)
        write_down_speeds(self.connection, speeds, resize_cost_s)

    def resize_costs_s(self) -> list[float]:
        """What the governor measured of resizes, from an order to stop to the first step."""
        journal = KafkaJournal(self.connection, take_over=True)
        records, _ = journal.open()
        journal.close()
        # The first of each kind was written down before.
        return [cost_s for kind in records.kinds.values() for cost_s in kind.resize_costs_s[1:]]


@contextmanager
def queue_site() -> Iterator[Site]:
    """A site with the dataset loaded, and no governor yet."""
    os.environ["PYTHONPATH"] = str(ROOT)  # drivers and workers import this package
    with tempfile.TemporaryDirectory(prefix="evenload-queue-") as folder, temporary_cluster() as cluster:
        numbers = np.random.default_rng(0)
        columns = {
            "x": numbers.normal(size=(NUM_SAMPLES, 8)).astype(np.float32),
            "label": numbers.integers(0, 2, NUM_SAMPLES),
        }
        load_dataset(columns, DATASET, connection=cluster.connection, partitions=3)
        with local_ray(NUM_SLOTS) as dashboard_url:
            site = Site(cluster.connection, dashboard_url, Path(folder))
            try:
                yield site
            finally:
                site.end_governor()
