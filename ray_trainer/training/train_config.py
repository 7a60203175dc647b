"""What a training is asked to be, and what came of it. Light: a command line can show it without torch.

Read next: trainer.py.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.training.events import counted

__all__ = ["TrainConfig", "TrainResult", "default_run_name", "few_steps_note"]

# Where one word says the label, the untrained text model is no better than chance after 10 steps, and right
# each time after 20. (The untrained image model takes 3 where one quarter of an image is brighter.)
_FEW_STEPS: Final = 10
_ENOUGH_STEPS: Final = 40


class TrainConfig(BaseModel):
    """One run as it is asked for: the same whatever the recipe. What a recipe needs more is in `options`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dataset: str = Field(description="NAME (its newest version) or NAME@VERSION.")
    eval_dataset: str | None = Field(None, description="Measured on after each epoch.")
    run: str | None = Field(None, description="Name of the run; RECIPE-DATASET by default.")
    storage: str | None = Field(
        None, description="Folder or URI for runs, shared by all machines; EVENLOAD_HOME/runs by default."
    )
    workers: int = Field(2, ge=1, description="How many train together.")
    epochs: int = Field(1, ge=1, description="How often every sample is used.")
    global_batch_size: int = Field(256, ge=1, description="Samples of a step, over all workers.")
    seed: int = Field(0, ge=0, lt=1 << 63, description="Of the order of samples and of all randomness.")
    device: Literal["cpu", "gpu"] | None = Field(
        None, description="Where to compute; by default a GPU for each worker where there are so many."
    )
    checkpoint_interval_s: float | None = Field(
        None,
        ge=0,
        description="Seconds between checkpoints; by default at least 4, and so many that copying the model "
        "takes at most 0.2 % of the time and writing it at most 5 %.",
    )
    keep_checkpoints: int = Field(
        3, ge=2, description="Older ones are deleted; the newest alone could be the one that is damaged."
    )
    begin_anew: bool = Field(
        False,
        description="Begin at step 0 although the run has trained before; its checkpoints stay. For one "
        "start: a command that is repeated with it begins anew each time.",
    )
    storage_patience_s: float = Field(
        30.0,
        ge=0,
        description="Seconds for which the storage is asked again while it answers with errors; a run whose "
        "checkpoints fail goes on for at least so long.",
    )
    cpus_per_worker: int | None = Field(
        None, ge=1, description="Cores a worker computes with; on this machine alone its share by default."
    )
    bit_equal: bool = Field(
        False, description="A run resumed with as many workers equals an uninterrupted one to the last bit."
    )
    max_restarts: int = Field(
        16, ge=0, description="How often failed workers are started again before the run fails."
    )
    max_workers: int = Field(384, ge=1, description="The most workers that may ever go on with this run.")
    hold_whole: bool | None = Field(
        None, description="Keep the dataset in memory as a whole; by default up to 128 MiB."
    )
    health_check_interval_s: float = Field(
        0.2, gt=0, description="How often Ray looks after the workers (its own default, 2 s, notices late)."
    )
    ray_address: str | None = Field(
        None, description="A running Ray cluster; by default RAY_ADDRESS, else one is started for the run."
    )
    connection: Connection | None = Field(None, description="How to reach Kafka.")
    options: dict[str, Any] = Field(default_factory=dict, description="The recipe's own.")


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What came of a training.

    Attributes:
        steps: Optimizer steps since the run began.
        epochs: Epochs done.
        samples_per_s: Of all workers, while they were in steps; of the last attempt.
        loss: Mean loss of each epoch, an unfinished last one included.
        metrics: Of the last evaluation; empty without an evaluation dataset.
        checkpoints: Folders of the valid ones, newest first.
        restarts: How often workers had failed and were started again, in this call.
        model_path: The trained model; None when the run stopped before its end.
        loss_path: The loss of each step, a JSON line each.
        is_stopped: It was asked to stop, and did after a checkpoint.
        was_finished: There was nothing left to do: the run had finished before.
        notes: What to know about it, a sentence each.
    """

    run: str
    steps: int
    epochs: int
    samples_per_s: float
    loss: list[float]
    metrics: dict[str, float]
    checkpoints: list[str]
    restarts: int
    model_path: str | None
    loss_path: str | None
    is_stopped: bool = False
    was_finished: bool = False
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: a loss or metric that is no finite number is null."""
        return {
            **asdict(self),
            "loss": [_finite(loss) for loss in self.loss],
            "metrics": {name: _finite(value) for name, value in self.metrics.items()},
        }


def few_steps_note(steps: int, num_samples: int, config: TrainConfig) -> str | None:
    """What to change where a recipe's run ended after so few steps that it can hardly have learned anything.

    Args:
        steps: All that the run has done, from its beginning.
        num_samples: Of the dataset.

    Returns:
        A sentence; None after enough steps.
    """
    if steps > _FEW_STEPS:
        return None
    size = config.global_batch_size
    in_epoch = counted(math.ceil(num_samples / size), "step")
    smaller = max(1, config.workers, num_samples * config.epochs // _ENOUGH_STEPS)
    advice = "more --epochs go on with this run"
    if smaller < size:
        would_be = counted(math.ceil(num_samples / smaller), "step")
        advice = (
            f"--global-batch-size {smaller} would make {would_be} of it (in another --run, or with "
            f"--begin-anew), and {advice}"
        )
    return (
        f"after {counted(steps, 'step')}, hardly anything can have been learned: an epoch of "
        f"{counted(num_samples, 'sample')} in batches of {size:,} is {in_epoch}; {advice}"
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def default_run_name(recipe: str, dataset: str) -> str:
    """`cola` gives `text-classification-cola`, `cola@2` the same with `-v2`: another version, another run."""
    return f"{recipe}-{dataset.replace('@', '-v')}"
