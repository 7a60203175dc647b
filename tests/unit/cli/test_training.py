"""The flags of `evenload train` and `evenload submit` reach the run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evenload.cli import main
from evenload.ray_trainer.training.events import LOADING
from evenload.ray_trainer.training.on_ray import submit as submitting
from evenload.ray_trainer.training.on_ray import trainer
from evenload.ray_trainer.training.on_ray.submit import SubmittedJob
from evenload.ray_trainer.training.train_config import TrainConfig, TrainResult

NOTES = ["after 1 step, hardly anything can have been learned"]
COMMAND = ["text-classification", "--dataset", "reviews", "--bootstrap-servers", "a:1"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """What was asked for, instead of training."""
    configs: list[TrainConfig] = []

    def train(_: str, config: TrainConfig, **__: Any) -> TrainResult:
        configs.append(config)
        return TrainResult("r", 1, 1, 1.0, [0.5], {}, [], 0, "model", None, notes=NOTES)

    def submit(_: str, config: TrainConfig, **__: Any) -> SubmittedJob:
        configs.append(config)
        return SubmittedJob("j", "r", "SUCCEEDED", 0, {"notes": NOTES})

    monkeypatch.setattr(trainer, "train", train)
    monkeypatch.setattr(submitting, "submit", submit)
    return configs


@pytest.mark.parametrize("command", ["train", "submit"])
def test_how_often_failed_workers_are_started_again_can_be_said(
    asked: list[TrainConfig], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in (["--max-restarts", "3"], ["--max-restarts", "0"], []):
        with pytest.raises(SystemExit) as ended:
            main([command, *COMMAND, *flags])
        assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        main([command, *COMMAND, "--max-restarts", "-1"])
    assert ended.value.code == 2

    assert [config.max_restarts for config in asked] == [3, 0, 16]
    assert "--max-restarts is -1" in capsys.readouterr().err


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("command", ["train", "submit"])
def test_what_to_know_about_a_result_comes_after_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, *COMMAND])
    assert capsys.readouterr().out.splitlines()[-1:] == NOTES
    with pytest.raises(SystemExit):
        main([command, *COMMAND, "--json"])
    assert json.loads(capsys.readouterr().out)["notes"] == NOTES


@pytest.mark.usefixtures("asked")
def test_what_takes_seconds_is_said_before_it_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", *COMMAND])
    assert capsys.readouterr().err == f"{LOADING}\n"
