"""Two groups of workers on one run, as processes: one sleeps while the other trains, then wakes and stops."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import stamina

from evenload.ray_trainer.training.audit import audit_run, covered_steps
from evenload.ray_trainer.training.run_record import read_run
from evenload.ray_trainer.training.testing import rank_processes
from evenload.resume.checkpoint import Checkpoint, CheckpointStore
from evenload.resume.storage import RunStorage

LOOP = Path(__file__).with_name("training_loop.py")
NUM_SAMPLES = 211


@stamina.retry(on=AssertionError, attempts=None, timeout=120, wait_initial=0.02, wait_max=0.05)
def first_checkpoint(storage: RunStorage) -> Checkpoint:
    found = CheckpointStore(storage, None).newest_valid().checkpoint
    assert found is not None
    return found


def test_ranks_that_sleep_while_others_train_stop_when_they_wake_and_every_sample_counts_once(
    tmp_path: Path,
) -> None:
    storage = RunStorage(tmp_path / "storage", "toy")
    options: dict[str, Any] = {"storage": str(tmp_path / "storage"), "logs": str(tmp_path)}
    with rank_processes(LOOP, "train", {**options, "epochs": 10_000}, world_size=2) as sleepers:
        first_checkpoint(storage)
        for pid in sleepers.pids:
            os.kill(pid, signal.SIGSTOP)
        asleep = first_checkpoint(storage)
        epochs = asleep.index.epoch + 2
        with rank_processes(LOOP, "train", {**options, "epochs": epochs}, world_size=1) as others:
            assert others.wait() == [0]
        last = first_checkpoint(storage)
        for pid in sleepers.pids:
            os.kill(pid, signal.SIGCONT)
        codes = sleepers.wait()

    assert all(code != 0 for code in codes)
    assert last.index.attempt > asleep.index.attempt
    assert first_checkpoint(storage) == last
    resumed = json.loads(storage.read(f"ledger/attempt-{last.index.attempt:06d}/start.json"))["resumed_from"]
    assert resumed["attempt"] == asleep.index.attempt
    record = read_run(storage)
    report = audit_run(storage, record, num_samples=NUM_SAMPLES)
    assert report.exactly_once, report
    # What the loops themselves wrote down agrees.
    step_ranges, _ = covered_steps(storage, record.run_id)
    seen = Counter(
        (entry["epoch"], sample)
        for path in tmp_path.glob("handed-out-*.jsonl")
        for entry in map(json.loads, path.read_text().splitlines())
        for step_range, _ in step_ranges
        if step_range.attempt == entry["attempt"] and step_range.covers(entry["step"])
        for sample in entry["index"]
    )
    assert seen == {(epoch, sample): 1 for epoch in range(epochs) for sample in range(NUM_SAMPLES)}
