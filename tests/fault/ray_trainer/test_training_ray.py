"""Real workers on Ray, reading from real brokers, killed in every way: the audit is exact each time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.ray_trainer.training.audit import audit, covered_steps
from evenload.ray_trainer.training.run_record import read_run
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.storage import RunStorage

DRIVER = Path(__file__).with_name("training_driver.py")
NUM_SAMPLES = 1501
Events = Iterator[dict[str, Any]]


class Training:
    """One run, driven by processes that the test starts and kills."""

    def __init__(self, folder: Path, connection: Connection, dataset: str) -> None:
        self.folder = folder
        self.storage = RunStorage(folder / "runs", "run")
        self._connection = connection
        self._dataset = dataset

    @contextmanager
    def drive(self, *, workers: int, epochs: int = 2, **options: Any) -> Iterator[Events]:
        """Start a driver; gives its events as they come. Nothing is left of it after."""
        arguments = {
            "connection": self._connection.model_dump(mode="json"),
            "dataset": self._dataset,
            "storage": str(self.folder / "runs"),
            "run": "run",
            "workers": workers,
            "epochs": epochs,
            "global_batch_size": 32,
            "seed": 3,
            "checkpoint_interval_s": 0.4,
            "cpus_per_worker": 1,
            "options": {"logs": str(self.folder), "step_s": 0.03, **options},
        }
        with (self.folder / "stderr.txt").open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(arguments)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            try:
                yield (json.loads(line) for line in lines)
            finally:
                # Whatever the test left running; a driver that ended by itself leaves nothing.
                for process in self.session_processes():
                    process.kill()
                self.process.wait()

    def session_processes(self) -> list[psutil.Process]:
        """What is alive of the driver and all that it started, Ray's processes among them."""
        alive = [p for p in psutil.process_iter() if _session_id(p.pid) == self.process.pid]
        return [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]

    def assert_exact(self, *, epochs: int = 2) -> None:
        report = audit("run", self.folder / "runs", self._connection)
        assert report.exactly_once, report
        assert [epoch.samples for epoch in report.epochs] == [NUM_SAMPLES] * epochs
        # The samples' own ids, as the loops wrote them down, agree.
        step_ranges, _ = covered_steps(self.storage, read_run(self.storage).run_id)
        seen: Counter[tuple[int, int]] = Counter()
        for path in self.folder.glob("handed-out-*.jsonl"):
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                if any(s.attempt == entry["attempt"] and s.covers(entry["step"]) for s, _ in step_ranges):
                    seen.update((entry["epoch"], i) for i in entry["ids"])
        assert seen == {(epoch, i): 1 for epoch in range(epochs) for i in range(NUM_SAMPLES)}


def _session_id(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def wait_for(
    events: Events, kind: str, when: Callable[[dict[str, Any]], bool] = lambda _: True
) -> dict[str, Any]:
    seen = []
    for event in events:
        seen.append(event)
        if event["kind"] == kind and when(event):
            return event
    pytest.fail(f"the driver ended without {kind}: {seen[-5:]}")


@pytest.fixture
def dataset(request: pytest.FixtureRequest, connection: Connection) -> str:
    rng = np.random.default_rng(0)
    columns = {
        "id": np.arange(NUM_SAMPLES),
        "x": rng.normal(size=(NUM_SAMPLES, 4)).astype(np.float32),
        "label": rng.integers(0, 3, NUM_SAMPLES),
    }
    name = f"killed-{uuid.uuid4().hex[:8]}"
    load_dataset(columns, name, connection=connection, encoding=request.param, partitions=3)
    return name


@pytest.mark.parametrize("dataset", ["packed"], indirect=True)
@pytest.mark.timeout(1800)
def test_workers_then_the_driver_then_everything_killed_with_2_1_and_3_workers(
    tmp_path: Path, connection: Connection, dataset: str
) -> None:
    training = Training(tmp_path, connection, dataset)
    with training.drive(workers=2) as events:
        started = wait_for(events, "AttemptStarted")
        saved = wait_for(events, "CheckpointSaved")
        wait_for(events, "StepDone", lambda e: e["step"] >= saved["step"] + 3)
        victim = started["workers"][1]
        os.kill(victim["pid"], signal.SIGKILL)
        lost = wait_for(events, "WorkersLost")
        assert [worker["pid"] for worker in lost["dead"]] == [victim["pid"]]
        recovered = wait_for(events, "Recovered")
        assert saved["step"] <= recovered["resumed_step"] <= lost["step"]
        assert recovered["num_steps_again"] == lost["step"] - recovered["resumed_step"]
        wait_for(events, "CheckpointSaved", lambda e: e["attempt"] == started["attempt"] + 1)
        os.kill(training.process.pid, signal.SIGKILL)
    with training.drive(workers=1) as events:
        started = wait_for(events, "AttemptStarted")
        assert started["step"] > 0
        wait_for(events, "CheckpointSaved")
        for process in training.session_processes():
            process.kill()
    with training.drive(workers=3) as events:
        assert wait_for(events, "AttemptStarted")["step"] > 0
        result = wait_for(events, "Result")
        training.process.wait(240)
        assert training.session_processes() == []

    assert training.process.returncode == 0
    assert (result["epochs"], result["restarts"], result["is_stopped"]) == (2, 0, False)
    assert len(result["loss"]) == 2
    training.assert_exact()


@pytest.mark.torture
@pytest.mark.parametrize("dataset", ["record"], indirect=True)
@pytest.mark.timeout(1800)
def test_a_stopped_run_goes_on_though_rays_own_index_is_damaged_and_the_newest_checkpoint_gone(
    tmp_path: Path, connection: Connection, dataset: str
) -> None:
    training = Training(tmp_path, connection, dataset)
    with training.drive(workers=2, epochs=2) as events:
        wait_for(events, "CheckpointSaved")
        os.kill(training.process.pid, signal.SIGINT)
        wait_for(events, "Stopping")
        result = wait_for(events, "Result")
        training.process.wait(240)
        assert training.session_processes() == []
    assert training.process.returncode == 130
    assert result["is_stopped"]
    folders = CheckpointStore(training.storage, None).folders()
    assert folders[0].step == result["steps"]
    training.storage.delete_folder(folders[0].name)
    for snapshot in Path(training.storage.root).glob("attempt-*/checkpoint_manager_snapshot.json"):
        snapshot.write_bytes(snapshot.read_bytes()[:20])

    with training.drive(workers=2, epochs=2) as events:
        wait_for(events, "Note", lambda e: "missing" in e["text"])
        assert wait_for(events, "AttemptStarted")["step"] == folders[1].step
        wait_for(events, "Result")
        training.process.wait(240)
    training.assert_exact()


@pytest.mark.torture
@pytest.mark.parametrize("dataset", ["packed"], indirect=True)
@pytest.mark.timeout(1800)
def test_a_mistake_in_the_loop_ends_the_run_at_once_and_a_repaired_loop_goes_on(
    tmp_path: Path, connection: Connection, dataset: str
) -> None:
    training = Training(tmp_path, connection, dataset)
    with training.drive(workers=2, epochs=1, mistake_at=30) as events:
        error = wait_for(events, "Error")
        training.process.wait(240)
        assert training.session_processes() == []
    assert training.process.returncode == 1
    assert error["type"] == "TrainingFailedError"
    assert "ValueError: a mistake in the loop" in error["text"]
    with training.drive(workers=1, epochs=1) as events:
        started = wait_for(events, "AttemptStarted")
        assert (started["attempt"], started["step"] > 0) == (2, True)
        wait_for(events, "Result")
        training.process.wait(240)
    training.assert_exact(epochs=1)


@pytest.mark.torture
@pytest.mark.parametrize("dataset", ["packed"], indirect=True)
@pytest.mark.timeout(1800)
def test_a_driver_whose_run_another_one_claims_says_so_and_lets_go_of_its_workers(
    tmp_path: Path, connection: Connection, dataset: str
) -> None:
    first, second = (Training(tmp_path, connection, dataset) for _ in range(2))
    # Slow enough that it is still training when the other one has a cluster, on a busy machine too.
    with first.drive(workers=1, epochs=2, step_s=3.0) as events:
        wait_for(events, "CheckpointSaved")
        with second.drive(workers=1, epochs=2) as others:
            assert wait_for(others, "AttemptStarted")["step"] > 0
            error = wait_for(events, "Error")
            first.process.wait(240)
            assert first.session_processes() == []
            result = wait_for(others, "Result")
            second.process.wait(240)

    assert (first.process.returncode, error["type"]) == (1, "RunTakenOverError")
    assert f"process {second.process.pid}" in error["text"]
    assert (second.process.returncode, result["is_stopped"]) == (0, False)
    second.assert_exact()
