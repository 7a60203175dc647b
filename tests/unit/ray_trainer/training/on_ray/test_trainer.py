"""A finished run gives its result again to whoever asks for the same training, and to nobody else; names."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evenload.ray_trainer.training.on_ray.trainer import _Driver, _loop_name, train
from evenload.ray_trainer.training.on_ray.worker import Loop
from evenload.ray_trainer.training.run_record import (
    FinishedRecord,
    create_run,
    new_run,
    read_finished,
    write_finished,
)
from evenload.ray_trainer.training.train_config import TrainConfig, TrainResult
from evenload.resume.errors import RunMismatchError
from evenload.resume.storage import RunStorage

RESULT = TrainResult("mine", 3, 1, 10.0, [0.5], {}, [], 0, None, None)


def loop(config: Mapping[str, Any]) -> None:
    raise AssertionError(f"nothing is to be trained: {config}")


def finish(folder: Path, *, with_record: bool = True, asked: Mapping[str, Any] | None = None) -> None:
    storage = RunStorage(folder, "mine")
    if with_record:
        facts = {"seed": 3}
        record = new_run(
            "mine",
            dataset="digits@2",
            dataset_fingerprint="d",
            num_samples=10,
            plan_fingerprint="p",
            plan_facts=facts,
        )
        create_run(storage, record)
    finished = FinishedRecord(epochs=1, attempt=1, step=3, result=RESULT.to_dict(), asked=dict(asked or {}))
    write_finished(storage, finished)


def ask(folder: Path, dataset: str, *, seed: int = 3) -> TrainResult:
    return train(loop, TrainConfig(dataset=dataset, seed=seed, run="mine", storage=str(folder)))


@pytest.mark.parametrize(
    "asked", [{}, {"dataset": "digits", "seed": 3}], ids=["older version", "this version"]
)
def test_a_finished_loop_is_not_the_result_of_another_dataset_or_seed(
    tmp_path: Path, asked: Mapping[str, Any]
) -> None:
    finish(tmp_path, asked=asked)

    for same in ("digits", "digits@2"):
        result = ask(tmp_path, same)
        assert (result.was_finished, result.steps) == (True, 3)
    for other in ("letters", "digits@3", "letters@2"):
        with pytest.raises(RunMismatchError, match=f"dataset is 'digits@2', asked for '{other}'"):
            ask(tmp_path, other)
    with pytest.raises(RunMismatchError, match="seed is 3, asked for 4"):
        ask(tmp_path, "digits", seed=4)


def test_a_loop_with_a_seed_of_its_own_gets_its_result_again(tmp_path: Path) -> None:
    finish(tmp_path, asked={"dataset": "digits", "seed": 0})

    assert ask(tmp_path, "digits", seed=0).was_finished


def test_a_loop_without_a_session_is_compared_by_what_was_asked_for(tmp_path: Path) -> None:
    finish(tmp_path, with_record=False, asked={"dataset": "digits", "seed": 3})

    assert ask(tmp_path, "digits").was_finished
    with pytest.raises(RunMismatchError, match="dataset is 'digits', asked for 'letters'"):
        ask(tmp_path, "letters")


def test_a_run_that_was_stopped_does_not_name_the_model_of_an_earlier_finish(tmp_path: Path) -> None:
    finish(tmp_path)
    storage = RunStorage(tmp_path, "mine")
    storage.write("model/weights", b"of the first epoch")
    config = TrainConfig(dataset="digits", epochs=2, run="mine", storage=str(tmp_path))
    driver = _Driver(loop, config, None, storage, print, 2.0)
    outcome = {"steps": 4, "epochs": 1, "attempt": 2, "samples_per_s": 1.0, "metrics": {}}

    assert driver._result({**outcome, "is_stopped": True}, 0).model_path is None
    assert driver._result({**outcome, "is_stopped": False}, 0).model_path == storage.place("model")


@pytest.mark.parametrize(
    ("recipe", "is_stopped", "is_told"),
    [("text-classification", False, True), ("text-classification", True, False), (loop, False, False)],
)
def test_a_recipe_that_ended_too_soon_is_told_of_and_asked_again_tells_it_again(
    tmp_path: Path, recipe: str | Loop, is_stopped: bool, is_told: bool
) -> None:
    finish(tmp_path)
    storage = RunStorage(tmp_path, "mine")
    config = TrainConfig(dataset="digits", epochs=2, run="mine", storage=str(tmp_path))
    driver = _Driver(recipe, config, None, storage, print, 2.0)
    outcome = {"steps": 1, "epochs": 1, "attempt": 1, "samples_per_s": 1.0, "metrics": {}}

    notes = driver._result({**outcome, "is_stopped": is_stopped}, 0).notes
    assert [note.partition(",")[0] for note in notes] == ["after 1 step"] * is_told
    finished = read_finished(storage)
    assert finished is not None
    assert finished.result.get("notes", []) == notes


def test_a_loop_without_a_name_still_names_its_run() -> None:
    assert _loop_name(functools.partial(print)) == "loop"
    assert _loop_name(lambda _: None) == "lambda"
