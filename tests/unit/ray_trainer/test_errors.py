"""What goes wrong is said in one sentence with its facts, and goes from process to process, in every room."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenload import ray_trainer
from evenload.ray_trainer import errors
from evenload.ray_trainer.errors import TrainerError
from evenload.ray_trainer.reading import errors as reading
from evenload.ray_trainer.recipes import errors as recipes
from evenload.ray_trainer.training.errors import ReaderRankError
from evenload.ray_trainer.training.on_ray import errors as on_ray
from evenload.resume import errors as resume
from evenload.resume.errors import RunError

PLACE = {"topic": "flowers-1", "partition": 3, "offset": 1234}
IN_KAFKA = [
    errors.FetchTimeoutError(**PLACE, waited_s=120.0, reason="127.0.0.1:9092 closed the connection"),
    errors.RecordsGoneError(**PLACE, reason="out of range"),
    errors.CorruptRecordError(**PLACE, reason="its value does not match the hash in its header"),
]
ERRORS = [
    *IN_KAFKA,
    errors.TooManyWorkersError(world_size=9, largest_world_size=4, reason="a step has 4"),
    errors.CursorMismatchError(cursor_fingerprint="a", plan_fingerprint="b", differences={"seed": (1, 2)}),
    errors.FetchRefusedError(topic="flowers-1", reason="not authorised"),
    reading.UndecodableColumnError(column="label", reason="2 of its values are null"),
    reading.LoaderWorkersError(num_workers=4),
    reading.UnknownRankError("WORLD_SIZE is 2, but there is no RANK"),
    resume.StorageUnwritableError("/x", "denied"),
    resume.StorageUnreadableError("/x", "throttled"),
    resume.UnknownRunError("/x", ["a"]),
    resume.RunDamagedError("/x/run.json", "is damaged"),
    resume.RunMismatchError("r", {"seed": (1, 2)}),
    resume.RunTakenOverError("r", attempt=1, newer_attempt=2),
    resume.InvalidCheckpointError("/x", "short"),
    resume.CheckpointUnreadableError("/x", rank=1, host="h", reason="no such file"),
    resume.CheckpointMismatchError("/x", {"dataset": ("a@1", "a@2")}),
    resume.CheckpointWriteError("/x", "full"),
    resume.NoCheckpointLeftError("/x", evidence="it finished", reasons=["a", "b", "c", "d"]),
    ReaderRankError(reader=(0, 1), session=(0, 2)),
    resume.ShardedStateError("model.0.weight", kind="DTensor", rank=1, reason="it is elsewhere"),
    resume.RanksDifferError(
        rank=1, differences={"model.w": ("[2] float32", "[3] float32")}, num_differences=7
    ),
    resume.StateUnavailableError("ema", rank=1, reason="KeyError: 'step'"),
    resume.StoppedError("/x", step=7, saved_step=None),
    on_ray.RayUnavailableError(None, "too slow"),
    on_ray.WorkersUnavailableError({"CPU": 8.0}, {"CPU": 2.0}),
    on_ray.TrainingFailedError("r", "why", restarts=3),
    on_ray.JobError("http://x", "refused"),
    on_ray.JobLostError("evenload-run-1", "refused"),
    recipes.UnknownRecipeError("x", ["a"]),
    recipes.ColumnChoiceError("d@1", role="text", reason="two", columns={"a": "string"}),
    recipes.LabelError("d@1", column="label", reason="none"),
    recipes.ModelUnavailableError("bert", "no such folder"),
]


def kinds_below(kind: type[RunError]) -> Iterator[type[RunError]]:
    for below in kind.__subclasses__():
        yield below
        yield from kinds_below(below)


def test_every_error_of_every_room_has_its_example_here() -> None:
    (root,) = ray_trainer.__path__
    for path in Path(root).rglob("errors.py"):
        room = ".".join(path.relative_to(root).with_suffix("").parts)
        importlib.import_module(f"evenload.ray_trainer.{room}")
    kinds = set(kinds_below(RunError)) - {TrainerError, errors.ReadError}  # nobody raises these themselves
    assert {kind for kind in kinds if kind.__module__.startswith("evenload.")} == set(map(type, ERRORS))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_facts_in_another_process(error: RunError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("error", IN_KAFKA, ids=lambda error: type(error).__name__)
def test_a_place_in_kafka_is_named_in_full(error: RunError) -> None:
    assert "offset 1234 of partition 3 of topic 'flowers-1'" in str(error)


def test_only_what_time_or_another_start_may_mend_is_tried_again() -> None:
    assert {type(error) for error in ERRORS if error.retriable} == {
        errors.FetchTimeoutError,
        resume.StorageUnwritableError,
        resume.StorageUnreadableError,
        resume.CheckpointWriteError,
        resume.StateUnavailableError,
        resume.StoppedError,
    }
