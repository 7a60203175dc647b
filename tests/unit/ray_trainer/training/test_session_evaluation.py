"""Metrics of an epoch: kept in the run, measured again after a stop or a fall-back, and not otherwise."""

from __future__ import annotations

import errno
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stamina
import torch
from torch import nn

from evenload.ray_trainer.reading.testing import MemoryReader
from evenload.ray_trainer.training.evaluations import read_evaluations
from evenload.ray_trainer.training.session import Session
from evenload.ray_trainer.training.testing import interposed_storage
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.errors import StorageUnreadableError
from evenload.resume.storage import RunStorage

STEPS = 4  # an epoch's
STOPS = "stops"


@contextmanager
def failing(operation: str) -> Iterator[None]:
    """The storage refuses every such operation on metrics, however often it is asked."""

    def before(kind: str, path: str) -> None:
        if kind == operation and "/metrics/" in path:
            raise OSError(errno.ENOSPC, "No space left on device")

    with stamina.set_testing(True, attempts=2), interposed_storage(lambda: before):
        yield


class Run:
    """A small training that is measured after each epoch; says what it was asked to measure."""

    def __init__(self, storage: Path) -> None:
        self.storage = RunStorage(storage, "toy")
        self.measured: list[int] = []
        self.session: Session | None = None

    def train(
        self,
        *,
        epochs: int = 3,
        die_after: int | None = None,
        die_measuring: int | None = None,
        during: dict[int, Callable[[Session], Any]] | None = None,
    ) -> str:
        torch.manual_seed(5)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reader = MemoryReader({"x": np.ones((16, 6), np.float32)}, global_batch_size=4)
        session = Session(
            model,
            optimizer,
            None,
            reader,
            run="toy",
            storage=self.storage.storage,
            checkpoint_interval_s=0.0,
            keep_checkpoints=20,
        )
        self.session = session
        session.resume()

        def measure(stop_asked: Callable[[], bool]) -> dict[str, float] | None:
            epoch = session.epochs_done - 1
            self.measured.append(epoch)
            if (during or {}).get(epoch):
                during[epoch](session)  # type: ignore[index]
            if epoch == die_measuring:
                raise ArithmeticError("killed")
            if stop_asked():
                return None
            return {"accuracy": epoch / 10, "odd": math.nan}

        try:
            for epoch in range(reader.epoch, epochs):
                if epoch and session.evaluate(epoch - 1, measure) is None:
                    session.close()
                    return STOPS
                for batch in session.steps():
                    if session.end_step(batch):
                        session.close()
                        return STOPS
                    session._attempt._checkpoints.wait()  # type: ignore[union-attr]
                    if session.step == die_after:
                        raise ArithmeticError("killed")
            session.close()
            return STOPS if session.evaluate(epochs - 1, measure) is None else "ends"
        except ArithmeticError:
            session.abandon()
            return "dies"

    def checkpoint_steps(self) -> list[int]:
        return [folder.step for folder in CheckpointStore(self.storage, None).folders()]


def test_an_evaluation_hears_a_stop_and_is_made_when_the_run_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path)

    assert run.train(during={1: Session.stop}) == STOPS
    assert run.session is not None
    assert run.session.is_stopped
    assert run.session.metrics.keys() == {0}
    assert run.measured == [0, 1]
    assert run.checkpoint_steps()[0] == 2 * STEPS

    again = Run(tmp_path)
    assert again.train() == "ends"
    assert again.measured == [1, 2]
    assert again.session is not None
    assert {epoch: found["accuracy"] for epoch, found in again.session.metrics.items()} == {
        0: 0.0,
        1: 0.1,
        2: 0.2,
    }
    assert all(math.isnan(found["odd"]) for found in again.session.metrics.values())


def test_control_c_is_heard_while_a_plain_process_measures(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    run = Run(tmp_path)

    assert run.train(during={0: lambda _: os.kill(os.getpid(), signal.SIGINT)}) == STOPS
    assert run.checkpoint_steps()[0] == STEPS
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_in_the_last_evaluation_leaves_a_run_that_goes_on_to_it(tmp_path: Path) -> None:
    assert Run(tmp_path).train(during={2: Session.stop}) == STOPS

    again = Run(tmp_path)
    assert again.train() == "ends"
    assert again.measured == [2]
    third = Run(tmp_path)
    assert third.train() == "ends"
    assert third.measured == []


@pytest.mark.parametrize("die_after", range(1, 3 * STEPS))
def test_after_dying_at_any_step_each_epoch_is_measured_once_for_the_model_that_there_is(
    tmp_path: Path, die_after: int
) -> None:
    run, again = Run(tmp_path), Run(tmp_path)
    run.train(die_after=die_after)
    assert again.train() == "ends"

    assert again.session is not None
    assert again.session.metrics.keys() == {0, 1, 2}
    resumed = again.session._attempt.number, 12  # type: ignore[union-attr]
    assert resumed == (2, 12)
    assert not set(run.measured) & set(again.measured)


def test_dying_while_an_epoch_is_measured_is_made_good(tmp_path: Path) -> None:
    run, again = Run(tmp_path), Run(tmp_path)
    assert run.train(die_measuring=1) == "dies"
    assert again.train() == "ends"

    assert again.session is not None
    assert again.session.metrics.keys() == {0, 1, 2}
    assert 1 in again.measured


def test_after_a_fall_back_what_was_measured_since_does_not_count(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train(die_after=2 * STEPS + 2)
    assert run.measured == [0, 1]
    for folder in CheckpointStore(run.storage, None).folders():
        if folder.step > 2:
            run.storage.delete_folder(folder.name)
    assert run.checkpoint_steps()
    again = Run(tmp_path)
    again.train()

    assert again.measured == [0, 1, 2]


def test_more_epochs_measure_only_the_new_ones(tmp_path: Path) -> None:
    Run(tmp_path).train(epochs=2)
    more = Run(tmp_path)
    more.train(epochs=4)

    assert more.measured == [2, 3]


def test_an_epoch_that_was_not_measured_as_it_ended_is_not_measured_with_a_later_model(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    run.train(die_after=STEPS + 2)
    for name in run.storage.list_names("metrics"):
        run.storage.delete_file(f"metrics/{name}")
    again = Run(tmp_path)
    again.train()

    assert again.measured == [1, 2]


def test_metrics_that_were_cut_off_are_measured_again_and_unreadable_ones_end_the_resume(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    assert run.train(die_measuring=2) == "dies"
    (name,) = [name for name in run.storage.list_names("metrics") if "epoch-000001" in name]
    run.storage.write(f"metrics/{name}", b'{"epoch": 1, "atte')
    assert read_evaluations(run.storage, attempt=1, step=3 * STEPS).keys() == {0}

    with failing("read"), pytest.raises(StorageUnreadableError, match="No space left on device"):
        Run(tmp_path).train()


def test_metrics_that_cannot_be_kept_are_told_and_end_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"), failing("write"):
        assert Run(tmp_path).train() == "ends"
    assert any(
        message.startswith("the metrics of epoch 1 could not be kept: [Errno 28]")
        for message in caplog.messages
    )
