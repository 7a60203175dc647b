"""What a run is, and how it finished: two small files, each written once.

`run.json` is written before the first attempt and never changed: the run's id (which tells its own
checkpoints from foreign ones), its dataset and what its order depends on. The id follows from the run's
name, dataset and plan: two drivers that begin a run at once, or one that finds `run.json` gone, come to the
same, so an id is never replaced. `finished.json` is written when the last epoch is done and the model is
saved; going on with more epochs writes it anew.

Read next: trainer.py, which compares what is asked for with what the run is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evenload.ray_trainer.planning.rule import earlier_rule, plan_fingerprint
from evenload.resume.attempts import began_anew_at, read_starts
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.errors import (
    InvalidCheckpointError,
    RunDamagedError,
    RunMismatchError,
    UnknownRunError,
)
from evenload.resume.storage import RunStorage, checksum_of

__all__ = [
    "FinishedRecord",
    "RunRecord",
    "check_same_run",
    "counted_finish",
    "create_run",
    "find_run",
    "new_run",
    "read_finished",
    "read_run",
    "write_finished",
]

_RUN_NAME = "run.json"
_FINISHED_NAME = "finished.json"


class RunRecord(BaseModel):
    """What a run is; the same from its first step to its last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str = Field(description="From name, dataset and plan; stands in every checkpoint.")
    dataset: str = Field(description="NAME@VERSION.")
    dataset_fingerprint: str = Field(description="Of its manifest.")
    num_samples: int = Field(ge=1, description="Samples of an epoch.")
    plan_fingerprint: str = Field(description="Of the order of its epochs.")
    plan_facts: dict[str, Any] = Field(description="What that order depends on: seed, lanes, blocks, ...")
    created_at_s: float = Field(ge=0, description="Seconds since 1970.")

    @property
    def identity(self) -> dict[str, str]:
        """What stands in each checkpoint, and has to be the same to go on from it."""
        return {
            "dataset": self.dataset,
            "dataset fingerprint": self.dataset_fingerprint,
            "plan": self.plan_fingerprint,
        }


class FinishedRecord(BaseModel):
    """How a run finished."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(ge=0, description="Epochs done.")
    attempt: int = Field(ge=1, description="The attempt that did the last step.")
    step: int = Field(ge=0, description="Steps done.")
    result: dict[str, Any] = Field(description="What the driver returned.")
    asked: dict[str, Any] = Field({}, description="Dataset and seed, as the driver was asked for them.")


def create_run(storage: RunStorage, wanted: RunRecord) -> RunRecord:
    """The run's record: the one that is there, or else `wanted`, written now.

    The one that is there may have another plan rule, as far as a program chooses it: the run goes on by its
    own (`DatasetReader.adopt_plan`).

    A run whose record is gone or damaged keeps its id, as its books or checkpoints say it: they are still its
    own.

    Raises:
        RunMismatchError: The run that is there is of another dataset or plan.
        StorageUnreadableError, StorageUnwritableError: The storage does not answer.
    """
    try:
        there = find_run(storage)
    except RunDamagedError:
        there = None
    if there is None:
        created = wanted.model_copy(update={"run_id": _known_id(storage) or wanted.run_id})
        storage.write(_RUN_NAME, created.model_dump_json(indent=1).encode())
        return created
    if not _goes_on_by_its_own_rule(there, wanted):
        check_same_run(storage.run, there, wanted)
    return there


def check_same_run(run: str, there: RunRecord, wanted: RunRecord) -> None:
    """Refuse to go on with a run under another dataset or plan.

    Raises:
        RunMismatchError: With each fact that differs, of the run and as wanted.
    """
    if there.plan_fingerprint == wanted.plan_fingerprint and there.dataset == wanted.dataset:
        return
    then = {"dataset": there.dataset, **there.plan_facts}
    now = {"dataset": wanted.dataset, **wanted.plan_facts}
    differences = {name: (then[name], now[name]) for name in then if name in now and then[name] != now[name]}
    plans = {"plan": (there.plan_fingerprint, wanted.plan_fingerprint)}
    raise RunMismatchError(run, differences or plans)


def _goes_on_by_its_own_rule(there: RunRecord, wanted: RunRecord) -> bool:
    """Whether only the rule differs, and the record says what was written there."""
    if there.dataset != wanted.dataset or plan_fingerprint(there.plan_facts) != there.plan_fingerprint:
        return False
    asked = {"shuffle": wanted.plan_facts.get("shuffle")}
    return earlier_rule(there.plan_facts, wanted.plan_facts, asked=asked) is not None


def _known_id(storage: RunStorage) -> str | None:
    """The run's id as its newest attempt or checkpoint says it; None of a run that has begun nothing."""
    starts, _ = read_starts(storage)
    if starts:
        return starts[max(starts)].run_id
    store = CheckpointStore(storage, None)
    for folder in store.folders():
        try:
            return store.read_index(folder.name).run_id
        except InvalidCheckpointError:
            continue
    return None


def new_run(
    run: str,
    *,
    dataset: str,
    dataset_fingerprint: str,
    num_samples: int,
    plan_fingerprint: str,
    plan_facts: Mapping[str, Any],
) -> RunRecord:
    """The record of a run of this name that is to begin now."""
    identity = json.dumps([run, dataset, dataset_fingerprint, plan_fingerprint]).encode()
    return RunRecord(
        run_id=checksum_of(identity).checksum,
        dataset=dataset,
        dataset_fingerprint=dataset_fingerprint,
        num_samples=num_samples,
        plan_fingerprint=plan_fingerprint,
        plan_facts=dict(plan_facts),
        created_at_s=time.time(),
    )


def read_run(storage: RunStorage) -> RunRecord:
    """Raises:
    UnknownRunError: There is no run of this name; names those that there are, so the whole storage is listed.
    RunDamagedError: What is there is not a run's record.
    StorageUnreadableError: The storage does not say.
    """
    record = find_run(storage)
    if record is None:
        raise UnknownRunError(storage.place(), storage.other_runs(_RUN_NAME))
    return record


def find_run(storage: RunStorage) -> RunRecord | None:
    """The run's record; None: there is no run of this name.

    Raises:
        RunDamagedError: What is there is not a run's record.
        StorageUnreadableError: The storage does not say.
    """
    try:
        return RunRecord.model_validate_json(storage.read(_RUN_NAME))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        reason = f"is not a run's record: {error.errors()[0]['msg']}"
        raise RunDamagedError(storage.place(_RUN_NAME), reason) from error


def read_finished(storage: RunStorage) -> FinishedRecord | None:
    """How the run finished; None while it has not, or where that was cut off while it was written.

    Raises:
        StorageUnreadableError: The storage does not say.
    """
    try:
        return FinishedRecord.model_validate_json(storage.read(_FINISHED_NAME))
    except (FileNotFoundError, ValidationError):
        return None


def counted_finish(storage: RunStorage) -> FinishedRecord | None:
    """How the run finished, unless it has begun anew since.

    Raises:
        StorageUnreadableError: The storage does not say.
    """
    finished = read_finished(storage)
    if finished is not None and finished.attempt < began_anew_at(read_starts(storage)[0]):
        return None
    return finished


def write_finished(storage: RunStorage, finished: FinishedRecord) -> None:
    """Raises:
    StorageUnwritableError: It can't be written.
    """
    storage.write(_FINISHED_NAME, finished.model_dump_json(indent=1).encode())
