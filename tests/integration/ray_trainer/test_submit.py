"""A training as a job on a Ray cluster that runs already: followed, stopped, gone on with."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from evenload.kafka_connection import Connection
from evenload.ray_trainer.recipes.errors import UnknownRecipeError
from evenload.ray_trainer.training.audit import audit
from evenload.ray_trainer.training.events import LOADING
from evenload.ray_trainer.training.on_ray.errors import JobError
from evenload.ray_trainer.training.on_ray.submit import submit
from evenload.ray_trainer.training.train_config import TrainConfig

NUM_SAMPLES = 700  # of the fixture `sentences`
GLOBAL_BATCH_SIZE = 32
STEPS_PER_EPOCH = -(-NUM_SAMPLES // GLOBAL_BATCH_SIZE)
CHECKPOINT = "checkpoint after step "


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_a_job_that_was_stopped_and_submitted_again_is_exact(
    tmp_path: Path, connection: Connection, ray_head: str, sentences: str
) -> None:
    config = TrainConfig(
        dataset=sentences,
        run="job",
        storage=str(tmp_path / "runs"),
        workers=2,
        epochs=100,  # more than it gets to do before it hears that it shall stop
        global_batch_size=GLOBAL_BATCH_SIZE,
        checkpoint_interval_s=0.5,
        connection=connection,
        options={"max_tokens": 16, "vocabulary_size": 200, "warmup_share": 0.0},
    )
    lines: list[str] = []

    def stop_at_the_first_checkpoint(line: str) -> None:
        lines.append(line)
        if line.startswith(CHECKPOINT) and not any(word.startswith("stopping") for word in lines):
            os.kill(os.getpid(), signal.SIGINT)

    stopped = submit("text-classification", config, address=ray_head, tell=stop_at_the_first_checkpoint)
    assert (stopped.status, stopped.exit_code) == ("STOPPED", 130), lines
    assert "stopping the job after a checkpoint" in lines
    steps = [
        int(line.removeprefix(CHECKPOINT).split(":")[0]) for line in lines if line.startswith(CHECKPOINT)
    ]
    epochs = max(steps) // STEPS_PER_EPOCH + 2
    shorter = config.model_copy(update={"epochs": epochs})
    again = submit("text-classification", shorter, address=ray_head, tell=lines.append)

    assert (again.status, again.exit_code) == ("SUCCEEDED", 0), lines
    assert again.result is not None
    assert again.result["epochs"] == epochs
    assert again.result["loss"][-1] < again.result["loss"][0]
    assert any("go on after step" in line for line in lines)
    assert audit("job", tmp_path / "runs", connection).exactly_once


def test_a_job_that_fails_says_so_in_one_sentence_and_with_its_exit_code(
    tmp_path: Path, connection: Connection, ray_head: str
) -> None:
    lines: list[str] = []
    config = TrainConfig(dataset="nowhere", storage=str(tmp_path), connection=connection)

    job = submit("text-classification", config, address=ray_head, tell=lines.append)

    assert (job.status, job.exit_code, job.result) == ("FAILED", 1, None)
    assert any(line.startswith("no dataset is named 'nowhere'") for line in lines), lines
    assert not any("Traceback" in line for line in lines)
    # What takes seconds is said before it.
    assert lines[0].endswith("submitted, waiting for it to begin")
    assert [line for line in lines if line.startswith(("loading", "checking"))] == [
        str(LOADING),
        "checking dataset 'nowhere' and the options",
    ]
    assert list(tmp_path.iterdir()) == []


def test_without_a_cluster_it_is_one_sentence(connection: Connection) -> None:
    config = TrainConfig(dataset="cola", connection=connection)

    with pytest.raises(JobError, match=r"at http://127\.0\.0\.1:9 did not take the job"):
        submit("text-classification", config, address="http://127.0.0.1:9")
    with pytest.raises(UnknownRecipeError, match="there are image-classification, text-classification"):
        submit("nothing", config, address="http://127.0.0.1:9")
