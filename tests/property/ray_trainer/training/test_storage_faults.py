"""A training whose storage fails: at each operation in turn, and in any schedule that is drawn."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import stamina
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from evenload.ray_trainer.reading.testing import MemoryReader
from evenload.ray_trainer.training.audit import audit_run
from evenload.ray_trainer.training.run_record import read_run
from evenload.ray_trainer.training.session import Session
from evenload.ray_trainer.training.testing import Before, interposed_storage
from evenload.resume import checkpoint_writer, checkpointing
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.errors import RunError, RunTakenOverError
from evenload.resume.storage import RunStorage

NUM_SAMPLES, TRIES = 41, 3
ERRORS: list[Callable[[], OSError]] = [
    lambda: OSError(errno.EIO, "I/O error"),
    lambda: PermissionError(errno.EACCES, "denied"),
    lambda: OSError("SlowDown: please reduce your request rate"),
]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.set_num_threads(1)
    monkeypatch.setattr(checkpoint_writer, "_RETRY_MIN_S", 0.0)  # and twice that is nothing, either
    with stamina.set_testing(True, attempts=TRIES):
        yield


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after 6 of 11 steps, with a checkpoint of each of the last three."""
    folder = tmp_path_factory.mktemp("begun")
    train(folder, steps=6)
    return folder


def train(folder: Path, *, steps: int | None = None) -> int:
    """Train, or go on, to the end of the epoch or as if killed after so many steps.

    Returns:
        The step that it went on from.
    """
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    columns = {"x": np.zeros((NUM_SAMPLES, 3), np.float32)}
    reader = MemoryReader(columns, global_batch_size=4, seed=1)
    session = Session(model, optimizer, None, reader, run="toy", storage=folder, checkpoint_interval_s=0.0)
    try:
        session.resume()
        begun_at = session.step
        for _ in range(reader.epoch, 1):
            for number, batch in enumerate(session.steps(), 1):
                session.backward(model(batch["x"]).sum())
                session.end_step(batch)
                assert session._attempt is not None
                session._attempt._checkpoints.wait()
                if number == steps:
                    return begun_at
        session.close()
    finally:
        session.abandon()
    return begun_at


def resume_only(folder: Path) -> int:
    return train(folder, steps=1)


@contextmanager
def faults(fails: Callable[[int], OSError | None]) -> Iterator[list[str]]:
    """Each operation asks, by its number from 0, whether to fail; gives what was tried."""
    tried: list[str] = []
    lock = threading.Lock()

    def before(operation: str, path: str) -> None:
        with lock:
            number = len(tried)
            tried.append(f"{operation} {path}")
        if error := fails(number):
            raise error

    with interposed_storage(lambda: before):
        yield tried


def newest_step(folder: Path) -> int:
    found = CheckpointStore(RunStorage(folder, "toy"), None).newest_valid().checkpoint
    assert found is not None
    return found.index.step


def assert_nothing_is_lost(folder: Path, *, begun: Path) -> None:
    """The run is the same one, never began anew, and goes on to an exact end."""
    storage = RunStorage(folder, "toy")
    assert storage.read("run.json") == RunStorage(begun, "toy").read("run.json")
    for name in storage.list_names("ledger"):
        if name != "attempt-000001" and storage.exists(f"ledger/{name}/start.json"):
            assert json.loads(storage.read(f"ledger/{name}/start.json"))["resumed_from"] is not None
    assert newest_step(folder) >= newest_step(begun)
    train(folder)
    assert audit_run(storage, read_run(storage), num_samples=NUM_SAMPLES).exactly_once


def operations_until_the_first_step(begun: Path, folder: Path) -> list[str]:
    copy = shutil.copytree(begun, folder)
    with faults(lambda _: None) as tried, pytest.raises(KeyboardInterrupt):
        begin_only(copy)
    return list(tried)


def begin_only(folder: Path) -> int:
    """Go on with the run, up to the moment before the first step."""

    def stop(self: Session) -> Iterator[object]:
        assert self.step > 0
        raise KeyboardInterrupt
        yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "steps", stop)
        return train(folder)


def test_each_operation_at_the_start_may_fail_for_a_moment_or_for_good(begun: Path, tmp_path: Path) -> None:
    operations = operations_until_the_first_step(begun, tmp_path / "counted")
    assert {operation.split()[0] for operation in operations} == {"read", "list", "write", "delete"}
    files = checkpoint_files(begun)
    for number in range(len(operations)):
        make = ERRORS[number % len(ERRORS)]
        folder = tmp_path / f"moment-{number}"
        shutil.copytree(begun, folder)
        with (
            faults(lambda n, k=number, make=make: make() if k <= n < k + TRIES - 1 else None),  # type: ignore[misc]
            pytest.raises(KeyboardInterrupt),  # it came as far as the first step, after the newest checkpoint
        ):
            begin_only(folder)
        assert checkpoint_files(folder) == files

        folder = tmp_path / f"good-{number}"
        shutil.copytree(begun, folder)
        with (
            faults(lambda n, k=number, make=make: make() if n >= k else None),  # type: ignore[misc]
            pytest.raises(RunError) as caught,
        ):
            begin_only(folder)
        assert "\n" not in str(caught.value)
        assert checkpoint_files(folder) == files
        assert newest_step(folder) == newest_step(begun)


def checkpoint_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.glob("toy/attempt-*/checkpoint-*/*"))
    }


@settings(max_examples=25, deadline=None)
@given(
    bursts=st.lists(st.tuples(st.integers(0, 250), st.integers(1, 40), st.integers(0, 2)), max_size=4),
)
def test_whatever_fails_while_a_run_goes_on_it_loses_nothing(
    begun: Path, bursts: list[tuple[int, int, int]]
) -> None:
    def fails(number: int) -> OSError | None:
        kinds = [kind for first, length, kind in bursts if first <= number < first + length]
        return ERRORS[kinds[0]]() if kinds else None

    with TemporaryDirectory() as scratch:
        folder = shutil.copytree(begun, Path(scratch) / "run")
        with faults(fails), contextlib.suppress(RunError):
            train(folder)
        assert_nothing_is_lost(folder, begun=begun)


class Stall:
    """One actor stops before its operation number `at` until the other has ended."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.num_operations = 0
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def before(self, operation: str, path: str) -> None:
        del operation, path
        with self._lock:
            number = self.num_operations
            self.num_operations += 1
        if number == self.at:
            self.reached.set()
            assert self.go_on.wait(timeout=120)


class NoWatch:
    """Looks never: here what counts is what is looked at with each checkpoint."""

    error = None

    def __init__(self, look: Callable[[], None]) -> None:
        del look

    def close(self) -> None:
        pass


@settings(max_examples=25, deadline=None)
@given(at=st.integers(0, 120))
@example(at=14)  # it has listed checkpoints, and the other one deletes them
def test_a_driver_that_sleeps_while_another_trains_stops_or_goes_on_from_what_that_one_did(
    begun: Path, at: int
) -> None:
    stall = Stall(at)
    actor = threading.local()

    def make_before() -> Before:
        return stall.before if getattr(actor, "is_sleeper", False) else lambda *_: None

    ended: list[BaseException | int] = []

    def sleep_and_train(folder: Path) -> None:
        actor.is_sleeper = True
        try:
            ended.append(train(folder))
        except RunError as error:
            ended.append(error)
        finally:
            stall.reached.set()

    with (
        TemporaryDirectory() as scratch,
        pytest.MonkeyPatch.context() as patch,
        interposed_storage(make_before),
    ):
        patch.setattr(checkpointing, "FenceWatch", NoWatch)
        folder = shutil.copytree(begun, Path(scratch) / "run")
        sleeper = threading.Thread(target=sleep_and_train, args=(folder,))
        sleeper.start()
        assert stall.reached.wait(timeout=120)
        went_on_from: BaseException | int
        try:
            went_on_from = train(folder)
        except RunTakenOverError as error:
            went_on_from = error
        stall.go_on.set()
        sleeper.join(timeout=120)

        assert not sleeper.is_alive()
        # One of the two had the run to its end; who has not, has said so.
        assert any(isinstance(end, int) for end in (went_on_from, *ended))
        assert all(isinstance(end, int | RunTakenOverError) for end in (went_on_from, *ended))
        assert_nothing_is_lost(folder, begun=begun)
