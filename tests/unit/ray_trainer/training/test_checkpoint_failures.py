"""Checkpoints that can't be written: when they are tried again, and when they end a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from evenload.ray_trainer.reading.testing import MemoryReader
from evenload.ray_trainer.training import running_attempt
from evenload.ray_trainer.training.audit import audit_run
from evenload.ray_trainer.training.run_context import RunContext, entered
from evenload.ray_trainer.training.run_record import read_run
from evenload.ray_trainer.training.session import Session
from evenload.resume import checkpoint_writer
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.errors import CheckpointWriteError
from evenload.resume.storage import RunStorage

NUM_STEPS, BATCH = 40, 2


class Clock:
    """Stands still but for those who move it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._lock = threading.Lock()

    def advance(self, duration_s: float) -> None:
        with self._lock:
            self.now_s += duration_s


class FailingStorage:
    """A storage that takes no model while it `fails`, after having waited for `wait_s`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.fails: Callable[[], bool] = lambda: True
        self.wait_s = 0.0
        self.tried_at_s: list[float] = []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    time = SimpleNamespace(monotonic=lambda: made.now_s, time=lambda: 1.0, sleep=made.advance)
    monkeypatch.setattr(checkpoint_writer, "time", time)
    monkeypatch.setattr(running_attempt, "time", time)
    return made


@pytest.fixture
def failing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> FailingStorage:
    failing = FailingStorage(clock)
    original = CheckpointStore.write_file

    def write_file(self: CheckpointStore, *arguments: Any) -> Any:
        failing.tried_at_s.append(clock.now_s)
        if failing.fails():
            clock.advance(failing.wait_s)
            raise OSError("No space left on device")
        return original(self, *arguments)

    monkeypatch.setattr(CheckpointStore, "write_file", write_file)
    return failing


def train(folder: Path, clock: Clock, *, step_s: float, patience_s: float, **options: Any) -> Iterator[int]:
    """An epoch of steps that take `step_s`; gives the number of each, and closes the session at the end."""
    context = RunContext(run="toy", storage=folder, storage_patience_s=patience_s, **options)
    columns = {"x": np.zeros((NUM_STEPS * BATCH, 3), np.float32)}
    model = nn.Linear(3, 2)
    with entered(context):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Session(model, optimizer, None, MemoryReader(columns, global_batch_size=BATCH)) as session:
            session.resume()
            for batch in session.steps():
                session.backward(model(batch["x"]).sum())
                clock.advance(step_s)
                session.end_step(batch)
                assert session._attempt is not None
                session._attempt._checkpoints._writer._idle.wait()
                yield session.step


def audit_is_exact(folder: Path) -> bool:
    storage = RunStorage(folder, "toy")
    return audit_run(storage, read_run(storage), num_samples=NUM_STEPS * BATCH).exactly_once


def test_the_longer_a_write_takes_to_fail_the_next_is_not_the_later(
    tmp_path: Path, clock: Clock, failing: FailingStorage
) -> None:
    failing.wait_s = 60.0  # a twentieth of the time would be one in 20 minutes
    failing.fails = lambda: len(failing.tried_at_s) <= 2

    steps = list(train(tmp_path, clock, step_s=5.0, patience_s=300.0))

    assert len(steps) == NUM_STEPS
    first, second, third = failing.tried_at_s[:3]
    assert second - first <= 60.0 + 3 * 5.0
    assert third - second <= 60.0 + 3 * 5.0
    assert audit_is_exact(tmp_path)


def test_a_few_quick_failures_within_the_patience_do_not_end_a_run(
    tmp_path: Path, clock: Clock, failing: FailingStorage
) -> None:
    back_s = clock.now_s + 29.0
    failing.fails = lambda: clock.now_s < back_s

    steps = list(train(tmp_path, clock, step_s=1.0, patience_s=30.0, checkpoint_interval_s=0.0))

    assert len(steps) == NUM_STEPS
    assert len([at_s for at_s in failing.tried_at_s if at_s < back_s]) > checkpoint_writer.FAILURES_MAX
    assert audit_is_exact(tmp_path)


def test_failures_that_outlast_the_patience_end_a_run(
    tmp_path: Path, clock: Clock, failing: FailingStorage
) -> None:
    steps = train(tmp_path, clock, step_s=1.0, patience_s=30.0, checkpoint_interval_s=0.0)

    with pytest.raises(CheckpointWriteError, match="No space left on device"):
        list(steps)

    lasted_s = failing.tried_at_s[-1] - failing.tried_at_s[0]
    assert 30.0 <= lasted_s <= 31.0
    assert clock.now_s - 1000.0 < NUM_STEPS


def test_fewer_failures_than_three_do_not_end_a_run_however_long_they_take(
    tmp_path: Path, clock: Clock, failing: FailingStorage
) -> None:
    failing.wait_s = 60.0
    failing.fails = lambda: len(failing.tried_at_s) < checkpoint_writer.FAILURES_MAX

    steps = list(train(tmp_path, clock, step_s=1.0, patience_s=30.0, checkpoint_interval_s=0.0))

    assert len(steps) == NUM_STEPS


def test_the_last_checkpoint_is_tried_again_for_as_long_as_the_patience(
    tmp_path: Path, clock: Clock, failing: FailingStorage
) -> None:
    failing.fails = lambda: clock.now_s < 1000.0 + NUM_STEPS + 20.0

    steps = list(train(tmp_path, clock, step_s=1.0, patience_s=30.0, checkpoint_interval_s=3600.0))

    assert len(steps) == NUM_STEPS
    found = CheckpointStore(RunStorage(tmp_path, "toy"), None).newest_valid().checkpoint
    assert found is not None
    assert found.index.step == NUM_STEPS
    assert audit_is_exact(tmp_path)


def test_a_last_checkpoint_that_is_refused_for_good_is_an_error(
    tmp_path: Path, clock: Clock, failing: FailingStorage
) -> None:
    steps = train(tmp_path, clock, step_s=1.0, patience_s=30.0, checkpoint_interval_s=3600.0)

    with pytest.raises(CheckpointWriteError, match="No space left on device"):
        list(steps)

    assert 30.0 <= failing.tried_at_s[-1] - failing.tried_at_s[0] <= 36.0
