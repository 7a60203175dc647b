"""The demo's steps, in their order: real brokers, a real dataset, two Ray workers, one of them killed; then
two runs that share a cluster.

Everything happens in a temporary folder, on embedded brokers of which one is fuller and one is smaller than
the others. Nothing is scripted but the kill: what is printed is what was measured.

Read next: report.py, the page that this writes.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from evenload.dataset_catalog.catalog import Catalog
from evenload.demo.digits import draw_digits
from evenload.demo.report import DemoStory, Recovery, write_report
from evenload.demo.sharing import share_slots
from evenload.kafka_connection.clients import confluent_producer
from evenload.kafka_connection.connection import Connection
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import temporary_cluster
from evenload.ray_trainer.training.audit import audit
from evenload.ray_trainer.training.events import (
    AttemptStarted,
    CheckpointSaved,
    Event,
    Note,
    Recovered,
    StepDone,
)
from evenload.ray_trainer.training.on_ray.trainer import train
from evenload.ray_trainer.training.train_config import TrainConfig, TrainResult
from evenload.router.config import RouterConfig
from evenload.router.forecasting.forecast import best_possible
from evenload.telemetry_collector.collector import sample_once
from evenload.telemetry_collector.snapshot import ClusterSnapshot

MIB = 1 << 20
CAPACITY_BYTES = (80 * MIB, 80 * MIB, 48 * MIB)
OLD_TOPIC, OLD_BYTES = "old-events", 24 * MIB  # what makes broker 1 fuller
EPOCHS, WORKERS = 2, 2
RUN = "demo"
TOLD_EVERY_S = 5.0
DELETE_TIMEOUT_S = 30.0
_LEVEL_DISKS = RouterConfig(goals={"disk_usage": 1.0})

Tell = Callable[[str], None]


def run_demo(report_folder: Path, *, tell: Tell) -> dict[str, Any]:
    """Do it all, and write the page.

    Args:
        report_folder: Where index.html goes.
        tell: Called with each line that a person would want to see, as it happens.

    Returns:
        What was measured, as JSON can hold it.
    """
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="evenload-demo-") as folder:
        tell("Starting three Kafka brokers: 80, 80 and 48 MiB, the first with 24 MiB of other data ...")
        with temporary_cluster(
            num_brokers=3,
            capacity_bytes=CAPACITY_BYTES,
            broker_properties={"log.segment.delete.delay.ms": "0"},
            progress=tell,
        ) as cluster:
            story = _Demo(cluster.connection, Path(folder), tell).run()
    page = write_report(story, report_folder)
    tell(f"\nThe page with the pictures: {page}")
    tell(f"Done in {time.monotonic() - began_s:.0f} s; nothing is left running.")
    return _document(story, page)


class _Demo:
    """The demo's steps, in their order, on a running cluster."""

    def __init__(self, connection: Connection, folder: Path, tell: Tell) -> None:
        self._connection = connection
        self._storage = str(folder / "runs")
        self._tell = tell

    def run(self) -> DemoStory:
        self._write_old_data()
        training, held_out = draw_digits()
        num_bytes = sum(column.nbytes for column in training.values())
        self._tell(
            f"{len(training['label']):,} digits to train on ({num_bytes / MIB:.0f} MiB), "
            f"{len(held_out['label']):,} held out, drawn from scikit-learn's"
        )
        load_dataset(held_out, "digits-held-out", connection=self._connection)
        before = sample_once(self._connection)
        self._show("Before:", before)
        default, _ = self._load(training, "digits-default", strategy="default")
        self._show("The same digits loaded with a default partitioner (librdkafka's):", default)
        self._drop("digits-default")
        balanced, best = self._load(training, "digits", strategy="balanced")
        self._show("Loaded by evenload, by the goal disk_usage:", balanced, best)
        result, watcher = self._train()
        epochs = self._audit()
        sharing = share_slots(
            self._connection,
            self._storage,
            dataset="digits-held-out",
            samples=len(held_out["label"]),
            speeds={WORKERS: result.samples_per_s},
            resize_cost_s=watcher.recovery.pause_s,
            tell=self._tell,
        )
        return DemoStory(
            capacity_bytes=dict(enumerate(CAPACITY_BYTES, start=1)),
            before=_utilisation(before),
            default=_utilisation(default),
            balanced=_utilisation(balanced),
            best=best,
            images=training["image"][:: len(training["image"]) // 40][:40],
            loss=_read_loss(result),
            recovery=watcher.recovery,
            accuracy=result.metrics["accuracy"],
            samples_per_s=result.samples_per_s,
            epochs=epochs,
            sharing=sharing,
        )

    def _write_old_data(self) -> None:
        """Put other data on broker 1 alone."""
        create_topic(
            self._connection,
            OLD_TOPIC,
            num_partitions=1,
            replication=None,
            assignments=[(1,)],
            configs={},
            timeout_s=30.0,
        )
        producer = confluent_producer(self._connection)
        value = os.urandom(256 << 10)
        for _ in range(OLD_BYTES // len(value)):
            producer.produce(OLD_TOPIC, value)
        if producer.flush(60.0):
            raise KafkaException(f"broker 1 did not take the {OLD_BYTES // MIB} MiB of other data")

    def _load(
        self, samples: Mapping[str, Any], name: str, *, strategy: Any
    ) -> tuple[ClusterSnapshot, Mapping[int, float]]:
        """Load, with an eye on disks, and say how full the brokers are then and could be at best."""
        before = sample_once(self._connection)
        manifest = load_dataset(
            samples, name, connection=self._connection, strategy=strategy, router_config=_LEVEL_DISKS
        )
        after = sample_once(self._connection)
        added = sum(
            after.brokers[broker].used_bytes - before.brokers[broker].used_bytes for broker in before.brokers
        )
        return after, best_possible(before, after.topics[manifest.topic], total_bytes=added)

    def _drop(self, name: str) -> None:
        """Drop a dataset, and wait until the brokers have its room back."""
        topic = Catalog(self._connection).get(name).topic
        Catalog(self._connection).drop(name)
        deadline_s = time.monotonic() + DELETE_TIMEOUT_S
        while any(topic == held.topic for held in self._held()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"brokers still hold topic {topic!r} {DELETE_TIMEOUT_S:.0f} s after its deletion"
                )

    def _held(self) -> list[Any]:
        snapshot = sample_once(self._connection)
        return [held for broker in snapshot.brokers.values() for held in broker.bytes_by_topic_partition]

    def _show(self, title: str, snapshot: ClusterSnapshot, best: Mapping[int, float] | None = None) -> None:
        brokers = "   ".join(
            f"broker {broker}: {100 * value:4.1f} %"
            for broker, value in sorted(_utilisation(snapshot).items())
        )
        spread = f"spread {100 * snapshot.utilisation_spread:.1f} points"
        if best is not None:
            spread += f" (best possible {100 * (max(best.values()) - min(best.values())):.1f})"
        self._tell(f"\n{title}\n  {brokers}   {spread}")

    def _train(self) -> tuple[TrainResult, _Watcher]:
        self._tell("\nTraining on two Ray workers ...")
        watcher = _Watcher(self._tell)
        result = train(
            "image-classification",
            TrainConfig(
                dataset="digits",
                eval_dataset="digits-held-out",
                run=RUN,
                storage=self._storage,
                workers=WORKERS,
                epochs=EPOCHS,
                device="cpu",
                checkpoint_interval_s=0.5,
                connection=self._connection,
            ),
            on_event=watcher.hear,
            progress_interval_s=0.2,  # the kill has to be within an epoch, on fast machines too
        )
        self._tell(f"\nAccuracy on held-out digits: {100 * result.metrics['accuracy']:.1f} %")
        return result, watcher

    def _audit(self) -> list[dict[str, int]]:
        report = audit(RUN, self._storage, self._connection)
        self._tell("\nThe audit, from what each worker wrote down of the samples it was handed:")
        for epoch in report.epochs:
            self._tell(
                f"  epoch {epoch.epoch}: {epoch.samples:,} samples, {epoch.missing} missing, "
                f"{epoch.repeated} repeated"
            )
        if not report.exactly_once:
            raise RuntimeError(f"the audit failed: {report}")
        return [
            {
                "epoch": epoch.epoch,
                "samples": epoch.samples,
                "missing": epoch.missing,
                "repeated": epoch.repeated,
            }
            for epoch in report.epochs
        ]


@dataclass
class _Watcher:
    """Tells what happens in training, and kills a worker between the first checkpoint and the epoch's end."""

    tell: Tell
    _attempt: AttemptStarted | None = None
    _checkpoint: CheckpointSaved | None = None
    _killed: tuple[int, int] | None = None  # pid, step
    _recovered: Recovered | None = None
    _told_at_s: float = field(default_factory=time.monotonic)

    def hear(self, event: Event) -> None:
        """Take an event of the run, on the driver's thread."""
        if isinstance(event, AttemptStarted):
            self._attempt = event
        elif isinstance(event, CheckpointSaved):
            self._checkpoint = self._checkpoint or event
        elif isinstance(event, Recovered):
            self._recovered = event
        if isinstance(event, StepDone):
            self._after_step(event)
        elif not isinstance(event, CheckpointSaved | Note):
            self.tell(f"  {event}")

    def _after_step(self, event: StepDone) -> None:
        if self._checkpoint is not None and self._killed is None and self._is_moment(event):
            assert self._attempt is not None
            victim = self._attempt.workers[-1].pid
            self.tell(
                f"  {event}\n  killing worker {self._attempt.workers[-1].rank} (pid {victim}) with SIGKILL"
            )
            os.kill(victim, signal.SIGKILL)
            self._killed = (victim, event.step)
        elif time.monotonic() - self._told_at_s >= TOLD_EVERY_S:
            self._told_at_s = time.monotonic()
            self.tell(f"  {event}")

    def _is_moment(self, event: StepDone) -> bool:
        assert self._checkpoint is not None
        return event.step > self._checkpoint.step and 0 < event.samples_consumed < event.num_samples

    @property
    def recovery(self) -> Recovery:
        """What the kill cost."""
        if self._killed is None or self._recovered is None:
            raise RuntimeError(
                "no worker was killed within an epoch: training was over before its first checkpoint"
            )
        return Recovery(
            killed_pid=self._killed[0],
            killed_at_step=self._recovered.resumed_step + self._recovered.num_steps_again,
            resumed_from_step=self._recovered.resumed_step,
            steps_done_again=self._recovered.num_steps_again,
            pause_s=self._recovered.seconds,
        )


def _utilisation(snapshot: ClusterSnapshot) -> dict[int, float]:
    return {broker: measured.utilisation or 0.0 for broker, measured in snapshot.brokers.items()}


def _read_loss(result: TrainResult) -> list[tuple[int, float]]:
    assert result.loss_path is not None
    lines = [json.loads(line) for line in Path(result.loss_path).read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


def _document(story: DemoStory, page: Path) -> dict[str, Any]:
    recovery = story.recovery
    return {
        "utilisation": {
            "before": dict(story.before),
            "default": dict(story.default),
            "balanced": dict(story.balanced),
            "best": dict(story.best),
        },
        "accuracy": story.accuracy,
        "samples_per_s": story.samples_per_s,
        "recovery": {
            "killed_pid": recovery.killed_pid,
            "resumed_from_step": recovery.resumed_from_step,
            "steps_done_again": recovery.steps_done_again,
            "pause_s": recovery.pause_s,
        },
        "epochs": [dict(epoch) for epoch in story.epochs],
        "sharing": asdict(story.sharing),
        "page": str(page),
    }
