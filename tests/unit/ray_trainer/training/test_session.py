"""A session in a plain process: steps, checkpoints, books, resume, stop. Several ranks: tests/fault."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from evenload.ray_trainer.errors import CursorMismatchError
from evenload.ray_trainer.planning.rule import plan_fingerprint
from evenload.ray_trainer.reading.testing import MemoryReader
from evenload.ray_trainer.training.audit import audit_run
from evenload.ray_trainer.training.books.ledger import StepRange, read_parts
from evenload.ray_trainer.training.errors import ReaderRankError
from evenload.ray_trainer.training.on_ray.trainer import TrainConfig, _Driver
from evenload.ray_trainer.training.run_context import NoLink, RunContext, entered
from evenload.ray_trainer.training.run_record import read_run
from evenload.ray_trainer.training.session import Session
from evenload.ray_trainer.training.testing import interposed_storage
from evenload.resume import checkpointing
from evenload.resume.attempts import AttemptStart, write_start
from evenload.resume.checkpoint import INDEX_NAME, STATE_NAME, CheckpointStore
from evenload.resume.errors import (
    CheckpointMismatchError,
    CheckpointUnreadableError,
    CheckpointWriteError,
    NoCheckpointLeftError,
    RunMismatchError,
    RunTakenOverError,
    StorageUnwritableError,
)
from evenload.resume.fence import FenceWatch, claim_run
from evenload.resume.state_copy import detached_copy
from evenload.resume.storage import RunStorage

NUM_SAMPLES = 53


class Run:
    """A small training, stopped and resumed at will."""

    def __init__(self, storage: Path, **session_options: Any) -> None:
        self.storage = storage
        self.session_options = {"checkpoint_interval_s": 0.0, **session_options}
        self.losses: list[float] = []
        self.handed_out: list[tuple[int, int]] = []
        self.session: Session | None = None

    def train(
        self,
        *,
        epochs: int = 2,
        steps: int | None = None,
        close: bool = True,
        at_step: Callable[[Session], None] | None = None,
        **reader_options: Any,
    ) -> dict[str, torch.Tensor]:
        """Train, or go on; `steps`: die after so many, as a killed process would."""
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
        reader = make_reader(**reader_options)
        session = Session(
            model, optimizer, scheduler, reader, run="toy", storage=self.storage, **self.session_options
        )
        self.session = session
        session.resume()
        done = 0
        for epoch in range(reader.epoch, epochs):
            for batch in session.steps():
                total = 0.0
                for part in session.parts(batch, 4):
                    loss = F.cross_entropy(model(part["x"]), part["y"], reduction="sum")
                    session.backward(loss)
                    total += loss.item()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                self.losses.append(total)
                self.handed_out += [(epoch, int(i)) for i in batch.index]
                if at_step:
                    at_step(session)
                if session.end_step(batch):
                    session.close()
                    return detached_copy(model.state_dict())
                session._attempt._checkpoints.wait()  # type: ignore[union-attr]
                done += 1
                if done == steps:
                    session.abandon()
                    return detached_copy(model.state_dict())
        if close:
            session.close()
        return detached_copy(model.state_dict())

    def audit_is_exact(self) -> bool:
        place = RunStorage(self.storage, "toy")
        return audit_run(place, read_run(place), num_samples=NUM_SAMPLES).exactly_once

    def checkpoint_steps(self) -> list[int]:
        return [f.step for f in CheckpointStore(RunStorage(self.storage, "toy"), None).folders()]


def make_reader(**options: Any) -> MemoryReader:
    rng = np.random.default_rng(3)
    columns = {
        "x": rng.normal(size=(NUM_SAMPLES, 6)).astype(np.float32),
        "y": rng.integers(0, 3, NUM_SAMPLES),
    }
    return MemoryReader(columns, **{"global_batch_size": 10, "seed": 11, **options})


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_a_run_resumed_at_every_step_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    whole = Run(tmp_path / "whole")
    parameters = whole.train()
    assert len(whole.losses) == 12
    for died_after in range(1, 12):
        run = Run(tmp_path / str(died_after))
        run.train(steps=died_after)
        resumed = Run(tmp_path / str(died_after))
        assert_equal(resumed.train(), parameters)
        # A checkpoint is decided on at one step and taken at the next: that one may be done again.
        again = len(run.losses) + len(resumed.losses) - 12
        assert again in (0, 1)
        assert run.losses[: died_after - again] + resumed.losses == whole.losses
        assert run.audit_is_exact()


def test_the_audit_agrees_with_what_the_loop_itself_saw(tmp_path: Path) -> None:
    first, second = Run(tmp_path), Run(tmp_path)
    first.train(steps=4)
    second.train()

    storage = RunStorage(tmp_path, "toy")
    resumed_at = 12 - len(second.losses)
    handed_out = first.handed_out[: resumed_at * 10] + second.handed_out
    assert sorted(handed_out) == [(epoch, i) for epoch in range(2) for i in range(NUM_SAMPLES)]
    booked = [
        (entry.epoch, int(i))
        for step_range in (StepRange(1, 0, resumed_at), StepRange(2, resumed_at, 12))
        for part in read_parts(storage, step_range)
        for entry in part.read(storage)
        if step_range.covers(entry.step)
        for i in entry.index
    ]
    assert booked == handed_out
    assert first.audit_is_exact()


def test_more_epochs_go_on_with_a_finished_run(tmp_path: Path) -> None:
    parameters = Run(tmp_path / "three").train(epochs=3)
    run = Run(tmp_path / "two")
    run.train(epochs=2)

    assert_equal(run.train(epochs=3), parameters)
    assert run.audit_is_exact()


def test_the_last_step_always_has_a_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path, checkpoint_interval_s=3600.0)
    run.train()

    assert run.checkpoint_steps() == [12]


def test_old_checkpoints_are_deleted(tmp_path: Path) -> None:
    run = Run(tmp_path, keep_checkpoints=2)
    run.train()

    assert len(run.checkpoint_steps()) == 2
    assert run.checkpoint_steps()[0] == 12
    with pytest.raises(ValueError, match="at least 2"):
        Run(tmp_path, keep_checkpoints=1).train()


def test_what_was_passed_over_is_not_deleted(tmp_path: Path) -> None:
    Run(tmp_path).train(steps=6)
    storage = RunStorage(tmp_path, "toy")
    newest = CheckpointStore(storage, None).folders()[0].name
    storage.write(f"{newest}/{STATE_NAME}", b"cut off")

    Run(tmp_path, keep_checkpoints=2).train()

    assert storage.exists(f"{newest}/{INDEX_NAME}")
    assert len(CheckpointStore(storage, None).folders()) == 3


def test_a_stop_writes_a_checkpoint_and_ends_the_loop(tmp_path: Path) -> None:
    run = Run(tmp_path, checkpoint_interval_s=3600.0)
    run.train(at_step=lambda session: session.stop() if session.step == 3 else None)

    assert run.session is not None
    assert run.session.is_stopped
    assert run.checkpoint_steps() == [5]  # asked for in step 4, decided at its end, done at the end of step 5
    rest = Run(tmp_path)
    rest.train()
    assert len(rest.losses) == 7
    assert rest.audit_is_exact()


@pytest.mark.parametrize(("asked_in", "steps", "epochs"), [(3, 5, 0), (4, 6, 1), (5, 7, 1), (10, 12, 2)])
def test_epochs_done_are_counted_also_when_a_run_stops_exactly_at_an_epochs_end(
    tmp_path: Path, asked_in: int, steps: int, epochs: int
) -> None:
    run = Run(tmp_path)
    run.train(epochs=4, at_step=lambda session: session.stop() if session.step == asked_in else None)

    assert run.session is not None
    assert (run.session.is_stopped, run.session.step, run.session.epochs_done) == (True, steps, epochs)
    config = TrainConfig(dataset="memory", epochs=4, workers=1, run="toy", storage=str(tmp_path))
    driver = _Driver("loop", config, None, RunStorage(tmp_path, "toy"), lambda _: None, 1.0)
    outcome = {"steps": steps, "epochs": epochs, "is_stopped": True, "samples_per_s": 1.0, "metrics": {}}
    assert driver._result(outcome, 0).epochs == epochs


class NoticedLink(NoLink):
    """Whose machines will be taken away, one after the other."""

    is_preempted = False

    def preemption_seen(self) -> None:
        self.is_preempted = False


def test_a_second_machine_that_will_be_taken_away_brings_a_second_checkpoint(tmp_path: Path) -> None:
    link = NoticedLink()
    run = Run(tmp_path, checkpoint_interval_s=None)
    taken: list[list[int]] = []

    def notice(session: Session) -> None:
        link.is_preempted |= session.step in (2, 6)
        taken.append(run.checkpoint_steps())

    with entered(RunContext("toy", tmp_path, checkpoint_interval_s=3600.0, link=link)):
        run.train(at_step=notice)

    assert taken[-1] == [8, 4]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("checkpoint_interval_s", 5.0),
        ("keep_checkpoints", 7),
        ("run", "another"),
        ("storage", "/somewhere/else"),
    ],
)
def test_what_the_driver_says_is_not_said_otherwise_by_a_loop_in_its_worker(
    tmp_path: Path, option: str, value: Any
) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said: dict[str, Any] = {
        "run": "toy",
        "storage": tmp_path,
        "checkpoint_interval_s": 9,
        "keep_checkpoints": 3,
    }
    with entered(RunContext(**said)):
        with pytest.raises(
            ValueError, match=f"Session\\({option}=.*set TrainConfig.{option}, and leave it out"
        ):
            Session(model, optimizer, None, make_reader(), **{option: value})
        Session(model, optimizer, None, make_reader(), **said).abandon()
        Session(model, optimizer, None, make_reader()).abandon()


def test_keeping_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_checkpoints is 0; it must be at least 2"):
        Run(tmp_path, keep_checkpoints=0).train()


def test_control_c_stops_after_a_checkpoint_and_the_handler_is_put_back(tmp_path: Path) -> None:
    run = Run(tmp_path, checkpoint_interval_s=3600.0)
    before = signal.getsignal(signal.SIGINT)
    run.train(at_step=lambda session: os.kill(os.getpid(), signal.SIGINT) if session.step == 3 else None)

    assert run.checkpoint_steps() == [5]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("harm", ["delete folder", "delete index", "truncate", "flip"])
def test_a_bad_newest_checkpoint_falls_back_says_so_and_stays_exact(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    parameters = Run(tmp_path / "whole").train()
    run = Run(tmp_path / "run")
    run.train(steps=7)
    storage = RunStorage(tmp_path / "run", "toy")
    newest = CheckpointStore(storage, None).folders()[0].name
    if harm == "delete folder":
        storage.delete_folder(newest)
    elif harm == "delete index":
        storage.delete_file(f"{newest}/{INDEX_NAME}")
    else:
        content = bytearray(storage.read(f"{newest}/{STATE_NAME}"))
        content[300] ^= 1
        storage.write(f"{newest}/{STATE_NAME}", bytes(content[: 400 if harm == "truncate" else None]))

    resumed = Run(tmp_path / "run")
    with caplog.at_level("INFO"):
        assert_equal(resumed.train(), parameters)

    told = " ".join(caplog.messages)
    assert ("is missing" if harm == "delete folder" else "is passed over") in told
    assert "the run goes on from the checkpoint of step" in told
    assert resumed.audit_is_exact()


@pytest.mark.parametrize("harm", ["no index", "no folder", "flipped bit"])
def test_without_any_valid_checkpoint_a_run_that_had_one_begins_anew_only_when_it_is_told_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    Run(tmp_path).train(steps=5)
    storage = RunStorage(tmp_path, "toy")
    folders = [folder.name for folder in CheckpointStore(storage, None).folders()]
    for folder in folders:
        if harm == "no index":
            storage.delete_file(f"{folder}/{INDEX_NAME}")
        elif harm == "no folder":
            storage.delete_folder(folder)
        else:
            content = bytearray(storage.read(f"{folder}/{STATE_NAME}"))
            content[300] ^= 1
            storage.write(f"{folder}/{STATE_NAME}", bytes(content))

    with pytest.raises(NoCheckpointLeftError, match=r"has trained before .*--begin-anew"):
        Run(tmp_path).train()
    again = Run(tmp_path, begin_anew=True)
    with caplog.at_level("INFO"):
        again.train(steps=6)
    more = Run(tmp_path)
    more.train()

    assert len(again.losses) + len(more.losses) in (12, 13)
    assert more.audit_is_exact()
    if harm != "no folder":
        assert "the run begins anew, as it was told to; its earlier checkpoints stay" in caplog.messages
        assert all(storage.exists(folder) for folder in folders)


def test_a_run_begun_anew_does_not_go_back_to_what_was_before(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.train(steps=6)
    before = first.checkpoint_steps()
    Run(tmp_path, begin_anew=True, checkpoint_interval_s=3600.0).train(steps=2)

    resumed = Run(tmp_path)
    resumed.train()

    assert len(resumed.losses) == 12
    assert resumed.audit_is_exact()
    assert set(before) <= set(resumed.checkpoint_steps())


def test_a_run_begins_anew_at_torchruns_first_start_and_goes_on_at_its_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Run(tmp_path).train(steps=6)
    # Killed before it had begun the run anew, which is still to be done then.
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    first = Run(tmp_path, begin_anew=True)
    first.train(steps=2)
    assert len(first.losses) == 2
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    again = Run(tmp_path, begin_anew=True)
    with caplog.at_level("INFO"):
        again.train(steps=2)
    assert again.session is not None
    assert again.session.step == 4
    assert "torchrun has started the workers again: the run goes on, begin_anew or not" in caplog.messages
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    last = Run(tmp_path, begin_anew=True)
    last.train()

    assert len(last.losses) == 12
    assert last.audit_is_exact()


def test_a_run_that_was_killed_before_its_first_checkpoint_simply_begins(tmp_path: Path) -> None:
    for _ in range(2):
        Run(tmp_path, checkpoint_interval_s=3600.0).train(steps=3)

    run = Run(tmp_path)
    run.train()

    assert len(run.losses) == 12
    assert run.audit_is_exact()


def test_a_loop_that_does_not_resume_can_not_throw_a_training_away(tmp_path: Path) -> None:
    Run(tmp_path).train(steps=4)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(model, optimizer, None, make_reader(), run="toy", storage=tmp_path)

    with pytest.raises(RuntimeError, match=r"has trained before .* call session\.resume\(\)"):
        next(session.steps())


def test_a_run_that_lost_its_record_still_knows_its_checkpoints(tmp_path: Path) -> None:
    Run(tmp_path).train(steps=6)
    RunStorage(tmp_path, "toy").delete_file("run.json")

    resumed = Run(tmp_path)
    resumed.train()

    assert len(resumed.losses) < 12
    assert resumed.audit_is_exact()


def test_another_seed_or_dataset_version_is_refused_with_both_values(tmp_path: Path) -> None:
    Run(tmp_path).train(steps=3)

    with pytest.raises(RunMismatchError, match="seed is 11, asked for 12"):
        Run(tmp_path).train(seed=12)
    with pytest.raises(RunMismatchError, match="dataset is 'memory@1', asked for 'memory@2'"):
        Run(tmp_path).train(version=2)


def test_a_checkpoint_of_another_plan_is_refused_with_both_values(tmp_path: Path) -> None:
    Run(tmp_path).train(steps=3)
    RunStorage(tmp_path, "toy").delete_file("run.json")

    with pytest.raises(CheckpointMismatchError, match="dataset was 'memory@1', is now 'memory@2'"):
        Run(tmp_path).train(version=2)


def test_the_reader_refuses_a_cursor_of_another_plan() -> None:
    with pytest.raises(CursorMismatchError):
        make_reader(seed=1).load_state_dict(make_reader(seed=2).state_dict())


def test_storage_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StorageUnwritableError):
        Run(tmp_path / "file").train()


def test_failing_writes_are_told_tried_again_and_raised_after_three_without_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = True

    def write_file(self: CheckpointStore, *arguments: Any) -> Any:
        if failing:
            raise OSError("No space left on device")
        return original(self, *arguments)

    original = CheckpointStore.write_file
    monkeypatch.setattr(CheckpointStore, "write_file", write_file)
    context = RunContext(run="toy", storage=tmp_path, storage_patience_s=0.0, checkpoint_interval_s=0.0)
    with (
        caplog.at_level("INFO"),
        entered(context),
        pytest.raises(CheckpointWriteError, match="No space left on device"),
    ):
        Run(tmp_path).train()
    assert "checkpoint of step 2 was not written: rank 0: No space left on device" in caplog.messages

    failing = False
    run = Run(tmp_path)
    run.train()
    assert len(run.losses) == 12
    assert run.audit_is_exact()


def test_books_of_a_failed_checkpoint_are_covered_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def finish(self: CheckpointStore, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise OSError("storage is away for a moment")
        return original(self, *arguments)

    original = CheckpointStore.finish
    monkeypatch.setattr(CheckpointStore, "finish", finish)
    run = Run(tmp_path)
    run.train(steps=11)
    monkeypatch.undo()
    run.train()

    assert run.audit_is_exact()


def test_a_session_whose_run_was_taken_over_stops(tmp_path: Path) -> None:
    def take_over(session: Session) -> None:
        if session.step == 5:
            start = AttemptStart(run_id="r", attempt=9, resumed_from=None, world_size=1, started_at_s=1.0)
            write_start(RunStorage(tmp_path, "toy"), start)

    with pytest.raises(RunTakenOverError, match="attempt 9 began after our attempt 1"):
        Run(tmp_path).train(at_step=take_over)


def test_a_session_whose_run_was_taken_over_stops_soon_though_no_checkpoint_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "FenceWatch", functools.partial(FenceWatch, interval_s=0.0))
    run = Run(tmp_path, checkpoint_interval_s=3600.0)

    def take_over(session: Session) -> None:
        if session.step == 3:
            claim_run(RunStorage(tmp_path, "toy"))
            assert session._attempt is not None
            assert session._attempt._checkpoints._fence is not None
            session._attempt._checkpoints._fence._thread.join(timeout=60)

    with pytest.raises(RunTakenOverError, match=r"attempt 2 began after our attempt 1, on .*, process \d+"):
        run.train(at_step=take_over)

    assert len(run.losses) <= 6
    store = CheckpointStore(RunStorage(tmp_path, "toy"), None)
    assert store.newest_valid().checkpoint is None


def test_a_checkpoint_is_read_once_to_go_on_and_not_at_all_to_audit(tmp_path: Path) -> None:
    Run(tmp_path).train(steps=5)
    read: list[str] = []

    def before(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(STATE_NAME):
            read.append(path)

    with interposed_storage(lambda: before):
        Run(tmp_path, checkpoint_interval_s=3600.0).train()
        assert len(read) == 1
        assert Run(tmp_path).audit_is_exact()
        assert len(read) == 1


def test_a_checkpoint_that_cannot_be_loaded_is_an_error_and_not_a_new_beginning(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train(steps=4)
    storage = RunStorage(tmp_path, "toy")
    store = CheckpointStore(storage, None)
    found = store.newest_valid().checkpoint
    assert found is not None
    record = storage.write(f"{found.folder}/{STATE_NAME}", b"not a state")
    store.finish(found.folder, found.index.model_copy(update={"files": {STATE_NAME: record}}))

    with pytest.raises(CheckpointUnreadableError, match="can't be loaded"):
        Run(tmp_path).train()


def test_a_checkpoint_of_another_model_is_refused_with_what_differs(tmp_path: Path) -> None:
    Run(tmp_path).train(steps=2)
    model = nn.Linear(6, 3)
    session = Session(
        model, torch.optim.AdamW(model.parameters()), None, make_reader(), run="toy", storage=tmp_path
    )
    with pytest.raises(CheckpointMismatchError, match=r"model was 'as saved', is now .*[Mm]issing key"):
        session.resume()
    session.abandon()


def test_a_scheduler_that_the_checkpoint_has_and_the_loop_has_not_is_refused(tmp_path: Path) -> None:
    Run(tmp_path).train(steps=2)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))
    session = Session(
        model, torch.optim.AdamW(model.parameters()), None, make_reader(), run="toy", storage=tmp_path
    )
    with pytest.raises(CheckpointMismatchError, match="scheduler was 'one', is now 'none'"):
        session.resume()
    session.abandon()


def test_misuse_is_refused(tmp_path: Path) -> None:
    reader = make_reader()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="which run is this"):
        Session(model, optimizer, None, reader)
    session = Session(model, optimizer, None, reader, run="toy", storage=tmp_path)
    batches = session.steps()
    batch = next(batches)
    with pytest.raises(RuntimeError, match="not the one that steps"):
        session.end_step(batch.with_columns({}))
    with pytest.raises(RuntimeError, match="end_step was not called for step 1"):
        next(batches)
    with pytest.raises(RuntimeError, match="resume"):
        session.resume()
    session.abandon()


def test_random_numbers_of_a_step_depend_on_seed_step_and_rank_only(tmp_path: Path) -> None:
    drawn: dict[int, list[float]] = {}

    def draw(session: Session) -> None:
        drawn.setdefault(session.step, []).append(float(torch.rand(())) + float(np.random.random()))

    Run(tmp_path / "a").train(at_step=draw)
    Run(tmp_path / "b").train(steps=5, at_step=draw)
    Run(tmp_path / "b").train(at_step=draw)

    assert len(drawn) == 12
    assert all(len(set(values)) == 1 for values in drawn.values())
    assert len({values[0] for values in drawn.values()}) == 12


def test_a_session_is_closed_by_its_block_and_abandoned_on_errors(tmp_path: Path) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(*, fail: bool) -> None:
        with Session(model, optimizer, None, make_reader(), run="toy", storage=tmp_path) as session:
            for number, batch in enumerate(session.steps()):
                session.end_step(batch)
                if fail and number == 2:
                    raise ArithmeticError("of the loop")

    with pytest.raises(ArithmeticError):
        train(fail=True)
    assert Run(tmp_path).checkpoint_steps() == []
    train(fail=False)
    assert Run(tmp_path).checkpoint_steps() == [6]


def test_few_samples_a_worker_under_batch_normalisation_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level("INFO"):
        for batch_size in (10, 3):
            session = Session(
                model,
                optimizer,
                None,
                make_reader(global_batch_size=batch_size),
                run=f"toy-{batch_size}",
                storage=tmp_path,
            )
            session.resume()
            session.abandon()

    told = [message for message in caplog.messages if "batch normalisation" in message]
    assert len(told) == 1
    assert told[0].startswith("1 workers share 3 samples a step")


@pytest.mark.parametrize(("rank", "world_size"), [(1, 2), (0, 2)])
def test_a_reader_of_another_ranks_part_is_refused(tmp_path: Path, rank: int, world_size: int) -> None:
    with pytest.raises(ReaderRankError, match=f"reads part {rank} of 2") as caught:
        Run(tmp_path).train(rank=rank, world_size=world_size)
    assert (caught.value.reader, caught.value.session) == ((rank, world_size), (0, 1))
    assert not (tmp_path / "toy" / "run.json").exists()


def test_a_run_goes_on_by_its_own_rule_when_the_program_would_choose_another_by_now(tmp_path: Path) -> None:
    whole = Run(tmp_path / "whole")
    whole.train()
    first, rest = Run(tmp_path / "cut"), Run(tmp_path / "cut")
    first.train(steps=4)

    rest.train(lanes=2, samples_per_block=7)

    assert (
        rest.handed_out[-len(whole.handed_out) + len(first.handed_out) :]
        == (whole.handed_out[len(first.handed_out) :])
    )
    assert rest.audit_is_exact()
    assert read_run(RunStorage(tmp_path / "cut", "toy")).plan_facts["num_lanes"] == 4


def test_a_damaged_rule_of_a_run_is_refused_with_what_it_says(tmp_path: Path) -> None:
    Run(tmp_path).train(steps=3)
    storage = RunStorage(tmp_path, "toy")
    record = read_run(storage)
    facts = record.plan_facts | {"num_lanes": 10**12}
    for fingerprint in (record.plan_fingerprint, plan_fingerprint(facts)):
        damaged = record.model_copy(update={"plan_facts": facts, "plan_fingerprint": fingerprint})
        storage.delete_file("run.json")
        storage.write("run.json", damaged.model_dump_json().encode())
        with pytest.raises((RunMismatchError, CheckpointMismatchError)):
            Run(tmp_path).train(lanes=3)
