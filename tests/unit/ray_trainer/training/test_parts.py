"""The small parts of a training: when a checkpoint is due, copies, seeds, names."""

from __future__ import annotations

import io
import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from evenload.ray_trainer.training.train_config import TrainResult, default_run_name
from evenload.resume.agreement import Agreement, Wishes
from evenload.resume.checkpoint_schedule import CheckpointSchedule
from evenload.resume.peers import Peers
from evenload.resume.random_state import step_seed
from evenload.resume.state_copy import detached_copy, unwrap


def test_checkpoints_are_four_seconds_apart_while_they_cost_little() -> None:
    schedule = CheckpointSchedule(None, now_s=100.0)

    assert not schedule.is_due(103.9)
    assert schedule.is_due(104.0)
    schedule.taken(104.0, cost_s=0.001)
    assert schedule.interval_s == 4.0
    assert not schedule.is_due(107.9)


def test_checkpoints_cost_at_most_a_five_hundredth_of_the_time() -> None:
    schedule = CheckpointSchedule(None, now_s=0.0)
    schedule.taken(0.0, cost_s=0.1)

    assert schedule.interval_s == pytest.approx(50.0)
    schedule.taken(50.0, cost_s=0.001)
    assert schedule.interval_s == pytest.approx(25.0)  # one cheap copy does not double their number at once


def test_writing_checkpoints_takes_at_most_a_twentieth_of_the_time() -> None:
    schedule = CheckpointSchedule(None, now_s=0.0)
    schedule.taken(0.0, cost_s=0.001)
    schedule.written(cost_s=3.0)

    assert schedule.interval_s == pytest.approx(60.0)
    schedule.written(cost_s=0.1)
    assert schedule.interval_s == pytest.approx(30.0)  # one quick write does not double their number at once
    schedule.taken(60.0, cost_s=0.1)
    assert schedule.interval_s == pytest.approx(50.0)  # whichever of the two rules asks for more


def test_a_given_interval_is_kept_and_an_impossible_one_refused() -> None:
    schedule = CheckpointSchedule(0.5, now_s=0.0)
    schedule.taken(0.0, cost_s=10.0)

    assert schedule.interval_s == 0.5
    with pytest.raises(ValueError, match="-1"):
        CheckpointSchedule(-1.0, now_s=0.0)


def test_a_copy_does_not_change_with_the_original_and_shares_what_was_shared() -> None:
    weight = torch.arange(3.0)
    original = {"a": weight, "tied": weight, "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}], "n": 3}

    copied = detached_copy(original)
    weight += 1
    original["groups"][0]["lr"] = 0.2  # type: ignore[index]

    assert copied["a"].tolist() == [0.0, 1.0, 2.0]
    assert copied["a"] is copied["tied"]
    assert copied["groups"] == [{"lr": 0.1, "betas": (0.9, 0.99)}]


def test_a_copied_state_dict_keeps_its_versions_and_loads() -> None:
    model = nn.BatchNorm1d(2)
    copied = detached_copy(model.state_dict())

    assert copied._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    nn.BatchNorm1d(2).load_state_dict(copied)


def test_unwrapping_a_plain_model_is_the_model() -> None:
    model = nn.Linear(1, 1)
    assert unwrap(model) is model


def test_seeds_of_steps_and_ranks_don_t_collide() -> None:
    seeds = Counter(
        step_seed(seed, step, rank) for seed in range(4) for step in range(200) for rank in range(8)
    )
    assert max(seeds.values()) == 1
    # Another value would silently change how a run that goes on draws its random numbers.
    assert step_seed(7, 3, 1) == 17224168618335850599


def test_a_runs_default_name_tells_versions_apart() -> None:
    assert default_run_name("text-classification", "cola") == "text-classification-cola"
    assert default_run_name("text-classification", "cola@2") == "text-classification-cola-v2"


def test_a_loss_that_is_no_number_is_null_in_json() -> None:
    result = TrainResult("run", 3, 1, 10.0, [0.5, math.nan], {"eval_loss": math.inf}, [], 0, None, None)
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["loss"] == [0.5, None]
    assert document["metrics"] == {"eval_loss": None}


def test_a_checkpoint_with_numbers_of_numpy_can_be_loaded() -> None:
    written = io.BytesIO()
    torch.save(detached_copy({"lr": np.float64(0.1), "steps": [np.int64(3)]}), written)
    assert torch.load(io.BytesIO(written.getvalue()), weights_only=True) == {"lr": 0.1, "steps": [3]}
    with pytest.raises(TypeError, match="make it a tensor"):
        detached_copy({"history": np.zeros(3)})


def test_a_loss_that_is_not_known_yet_is_none() -> None:
    agreement = Agreement(Peers())
    agreement.wish(Wishes())
    assert agreement.decide().mean_loss is None
    agreement.wish(Wishes(mean_loss=0.25))
    assert agreement.decide().mean_loss == 0.25
