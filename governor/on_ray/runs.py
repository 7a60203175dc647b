"""What is wished for a job, what Ray is sent for a stint of it, and what its storage says of its end.

A job is a run of ours, or plain: any command for a Ray cluster, of which only the slots are known.

A run's own storage has the last word: a driver that was told to stop may have finished just before, and one
that Ray calls failed may have saved all that it did.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from evenload.governor.governing.engine import Stint, StintId
from evenload.governor.governing.jobs import DEFAULT_TEAM, Wish
from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.training.on_ray.submission import (
    make_submission,
    stopped_softly,
    submitted_config,
)
from evenload.ray_trainer.training.run_record import counted_finish, find_run
from evenload.ray_trainer.training.train_config import TrainConfig
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.errors import InvalidCheckpointError
from evenload.resume.storage import RunStorage

OWNER_KEY: Final = "evenload_journal"
PLAIN_KEY: Final = "evenload_plain"
JOB_KEY: Final = "evenload_job"
STINT_KEY: Final = "evenload_stint"
_NAME: Final = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,149}")
_NOT_OF_A_KIND: Final = {"run", "storage", "workers", "epochs", "seed", "begin_anew", "connection"}
_STORAGE_PATIENCE_S: Final = 2.0  # whoever looks, looks again


class Left(NamedTuple):
    """What a stint has left behind."""

    is_finished: bool
    samples_done: float  # by the job, as its newest checkpoint has it


def wish_of(
    recipe: str,
    config: TrainConfig,
    *,
    num_samples: int,
    device: Literal["cpu", "gpu"],
    min_size: int = 1,
    max_size: int | None = None,
    asked_size: int | None = None,
    team: str = DEFAULT_TEAM,
    weight: float = 1.0,
) -> Wish:
    """A run that is to be made.

    Args:
        config: As `submission.resolved` gives it; its `workers` say nothing here.
        num_samples: Of the dataset.
        device: What the slots are of: "cpu" or "gpu".
        max_size: None: as many workers as the run can ever have.
        asked_size: Its size where nothing resizes; None: `max_size`.

    Raises:
        ValueError: It can't have such sizes, or can't be resized.
    """
    run = config.run
    assert run is not None
    if config.begin_anew:
        raise ValueError(f"run {run!r} would begin anew at each change of size: leave --begin-anew out")
    if config.device not in (None, device):
        raise ValueError(f"run {run!r} computes on a {config.device}, and slots here are {device}s")
    if device == "cpu" and config.cpus_per_worker not in (None, 1):
        raise ValueError(
            f"a slot is one CPU here, and run {run!r} wants {config.cpus_per_worker} for each worker"
        )
    if re.match("[a-zA-Z0-9+.-]+://[^/]*@", config.storage or ""):
        raise ValueError(
            f"the storage of run {run!r} names a user or a key, which whoever sees Ray's dashboard could read"
        )
    config = config.model_copy(update={"device": device})
    # Every rank needs a sample of each step.
    largest = min(config.max_workers, config.global_batch_size)
    max_size = largest if max_size is None else max_size
    if max_size > largest:
        raise ValueError(
            f"run {run!r} can have at most {largest} workers (--max-workers {config.max_workers}, "
            f"--global-batch-size {config.global_batch_size}), not {max_size}"
        )
    document = config.model_copy(update={"connection": None, "ray_address": None}).model_dump(mode="json")
    alike = {name: value for name, value in document.items() if name not in _NOT_OF_A_KIND}
    digest = hashlib.sha256(json.dumps([recipe, alike], sort_keys=True).encode()).hexdigest()[:16]
    return Wish(
        job_id=run,
        kind=f"{recipe}-{digest}",
        samples=float(config.epochs * num_samples),
        asked_size=max_size if asked_size is None else asked_size,
        min_size=min_size,
        max_size=max_size,
        limit=largest,
        team=team,
        weight=weight,
        entry={"recipe": recipe, "config": document},
    )


def plain_wish_of(
    name: str,
    command: str,
    *,
    slots: int,
    is_kept: bool = False,
    team: str = DEFAULT_TEAM,
    weight: float = 1.0,
) -> Wish:
    """Any command that is to run on the cluster.

    Args:
        slots: That it takes, by what it starts itself.
        is_kept: It is never stopped for others. Else it may be interrupted, and started again later.

    Raises:
        ValueError: It can't be called so, or have so many slots.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} can't name a job: 1 to 150 letters, digits, '.', '_' or '-'")
    return Wish(
        job_id=name,
        kind="plain",
        samples=None,
        asked_size=slots,
        min_size=slots,
        max_size=slots,
        team=team,
        weight=weight,
        is_kept=is_kept,
        entry={"command": command},
    )


def submission_of(
    stint: Stint,
    connection: Connection,
    *,
    owner: str,
    report_to: Mapping[str, str] | None,
    token_of: Callable[[StintId], str | None] = lambda _: None,
) -> dict[str, Any]:
    """What Ray is sent for a stint.

    Args:
        owner: Whose stint it is, so that another governor on the cluster leaves it alone.
        connection: How to reach Kafka.
        report_to: `url` where the driver says how far it is; None: nowhere.
        token_of: What it shows there.
    """
    metadata = {OWNER_KEY: owner, JOB_KEY: stint.id.job_id, STINT_KEY: str(stint.id.number)}
    if "command" in stint.entry:
        return {
            "entrypoint": stint.entry["command"],
            "submission_id": stint.id.submission_id,
            "runtime_env": {"env_vars": stopped_softly()},
            "metadata": {**metadata, PLAIN_KEY: "yes"},
        }
    config = TrainConfig.model_validate(
        {**stint.entry["config"], "workers": stint.size, "connection": connection}
    )
    facts = {"job": stint.id.job_id, "stint": stint.id.number, "token": token_of(stint.id)}
    return make_submission(
        stint.entry["recipe"],
        config,
        stint.id.submission_id,
        metadata=metadata,
        report={**report_to, **facts} if report_to else None,
    )


def left_by(job_variables: Mapping[str, str]) -> Left:
    """What a stint that has ended has left behind.

    Args:
        job_variables: The environment that Ray was sent for it.

    Raises:
        RunError: Storage doesn't say.
        ValueError: It isn't a stint of a run.
    """
    config = submitted_config(job_variables)
    if config.storage is None or config.run is None:
        raise ValueError("it doesn't say where its run is")
    storage = RunStorage(config.storage, config.run, patience_s=_STORAGE_PATIENCE_S)
    record = find_run(storage)
    if record is None:
        return Left(is_finished=False, samples_done=0.0)
    finished = counted_finish(storage)
    if finished is not None and finished.epochs >= config.epochs:
        return Left(is_finished=True, samples_done=float(config.epochs * record.num_samples))
    store = CheckpointStore(storage, record.run_id)
    for folder in store.folders():
        try:
            index = store.read_index(folder.name)
        except InvalidCheckpointError:
            continue
        samples_done = float(index.epoch * record.num_samples + index.samples_consumed)
        return Left(is_finished=False, samples_done=samples_done)
    return Left(is_finished=False, samples_done=0.0)
