"""A run that ended after too few steps says so, with what to change."""

from __future__ import annotations

import pytest

from evenload.ray_trainer.training.train_config import TrainConfig, few_steps_note


@pytest.mark.parametrize(
    ("steps", "num_samples", "config", "advice"),
    [
        (
            1,
            178,
            {},
            "after 1 step, hardly anything can have been learned: an epoch of 178 samples in batches of 256 "
            "is 1 step; --global-batch-size 4 would make 45 steps of it (in another --run, or with "
            "--begin-anew), and more --epochs go on with this run",
        ),
        # No batch is smaller than the number of workers.
        (3, 178, {"epochs": 3, "workers": 64}, "; --global-batch-size 64 would make 3 steps of it"),
        # Smaller batches would help no more.
        (6, 3, {"epochs": 2, "global_batch_size": 1, "workers": 1}, "is 3 steps; more --epochs go on"),
        (10, 2_560, {}, "an epoch of 2,560 samples in batches of 256 is 10 steps; --global-batch-size 64 "),
    ],
)
def test_too_few_steps_say_what_to_change(
    steps: int, num_samples: int, config: dict[str, int], advice: str
) -> None:
    note = few_steps_note(steps, num_samples, TrainConfig(dataset="few", **config))
    assert note is not None
    assert advice in note


def test_steps_enough_say_nothing() -> None:
    assert few_steps_note(11, 178, TrainConfig(dataset="few")) is None
