"""What a recipe finds out about a dataset once, before the first step, and keeps with the run.

Which columns, which classes, which size of images: looked for by the driver, written beside the checkpoints,
read by every worker of every attempt. So a run that is gone on with means by class 3 what it meant before,
whatever has changed meanwhile; and what can't be changed in the middle of a run is refused.

Read next: columns.py, labels.py (how it is found), classification.py (what comes after).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.planning.rule import choose_rule, plan_facts, plan_fingerprint
from evenload.ray_trainer.planning.steps import check_world_size
from evenload.ray_trainer.recipes.columns import choose_label_column
from evenload.ray_trainer.recipes.errors import LabelError
from evenload.ray_trainer.recipes.labels import check_labels, class_names, find_classes
from evenload.ray_trainer.recipes.options import RecipeOptions
from evenload.ray_trainer.training.run_record import check_same_run, create_run, new_run
from evenload.ray_trainer.training.train_config import TrainConfig
from evenload.resume.attempts import list_attempts
from evenload.resume.errors import RunDamagedError, RunMismatchError, UnknownRunError
from evenload.resume.storage import RunStorage

__all__ = ["Asked", "Findings", "Preparation", "Subject", "local_model", "prepare", "read_preparation"]

_NAME = "preparation/recipe.json"

# The input column of a dataset: the one named, or a safe guess; not the label's.
ChooseInput = Callable[[DatasetManifest, str | None, str], str]


class Preparation(BaseModel):
    """What workers have to know, and what must not change over a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str
    model: str = Field(description="As asked for; another model can't go on with a run's checkpoints.")
    input_column: str
    label_column: str
    classes: tuple[int | str, ...] = Field(description="The label's values; a class's number is its place.")
    class_names: tuple[str, ...] | None = Field(description="Where the dataset has names for them.")
    facts: dict[str, JsonValue] = Field(description="What else the recipe found out.")

    def settings(self) -> dict[str, Any]:
        """All that has to stay as it is, by name."""
        return self.model_dump(exclude={"facts"}) | self.facts


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants to train, as the recipe's `check` gets it.

    Attributes:
        recipe: Its name.
        model: Of the options; a folder by its absolute path.
        input_role: `image` or `text`.
        input_column: As named; None: to be guessed.
    """

    recipe: str
    config: TrainConfig
    options: RecipeOptions
    model: str
    input_role: str
    input_column: str | None
    connection: Connection
    storage: RunStorage


@dataclass(frozen=True, slots=True)
class Subject:
    """The dataset to train on and its columns: what a recipe looks at.

    Attributes:
        begun: What the run was begun with, when it was; the files that were made for it are there.
    """

    manifest: DatasetManifest
    input_column: str
    label_column: str
    begun: Preparation | None


@dataclass(frozen=True, slots=True)
class Findings:
    """What a recipe found.

    Attributes:
        facts: What workers have to know; of a run that has begun, what it was begun with except where
            something else is asked for now.
        files: To be kept with the run: name in its folder to content. None needed of a run that has begun.
    """

    facts: Mapping[str, JsonValue]
    files: Mapping[str, bytes] = field(default_factory=dict)


def prepare(asked: Asked, choose_input: ChooseInput, look: Callable[[Subject], Findings]) -> TrainConfig:
    """See that the run can be made, and write down what it is; nothing is written if it can't.

    Returns:
        What was asked for, with nothing left open.

    Raises:
        RunError, CatalogError, KafkaConnectionError: It can't be made, and why.
    """
    config, connection, storage = asked.config, asked.connection, asked.storage
    manifest = _find_dataset(config.dataset, connection)
    label = choose_label_column(manifest, asked.options.label_column)
    column = choose_input(manifest, asked.input_column, label)
    check_world_size(
        config.workers, num_samples=manifest.num_samples, global_batch_size=config.global_batch_size
    )
    begun = find_preparation(storage, begin_anew=config.begin_anew)
    findings = look(Subject(manifest, column, label, begun))
    found = Preparation(
        recipe=asked.recipe,
        model=asked.model,
        input_column=column,
        label_column=label,
        classes=_classes(asked, manifest, label, begun),
        class_names=class_names(manifest, label),
        facts=dict(findings.facts),
    )
    measured = _check_evaluation(asked, choose_input, found)
    _open_run(asked, manifest)
    if begun is None:
        for name, content in findings.files.items():
            storage.write(name, content)
        storage.write(_NAME, json.dumps(found.model_dump(mode="json"), indent=1).encode())
    else:
        _check_same(storage.run, begun, found)
    chosen = {"model": asked.model, "label_column": label, f"{asked.input_role}_column": column}
    return config.model_copy(
        update={
            "dataset": manifest.id,
            "eval_dataset": measured,
            "options": {**asked.options.model_dump(), **chosen},
        }
    )


def find_preparation(storage: RunStorage, *, begin_anew: bool = False) -> Preparation | None:
    """What the run was begun with; None for a run that has not begun.

    Args:
        begin_anew: The run begins at step 0, so what is damaged may be found out again.

    Raises:
        RunDamagedError: The run has trained, and what it was begun with is gone or damaged.
        StorageUnreadableError: The storage does not say.
    """
    try:
        return Preparation.model_validate_json(storage.read(_NAME))
    except FileNotFoundError:
        reason = "is gone, though the run has trained"
    except ValidationError as error:
        reason = f"is damaged: {error.errors()[0]['msg']}"
    # It is written before the first attempt; what was cut off there can be found out again.
    if begin_anew or not list_attempts(storage):
        return None
    raise RunDamagedError(storage.place(_NAME), reason)


def read_preparation(storage: RunStorage) -> Preparation:
    """Raises:
    UnknownRunError: The run has not begun.
    RunDamagedError, StorageUnreadableError: What it was begun with can't be had.
    """
    found = find_preparation(storage)
    if found is None:
        raise UnknownRunError(storage.place(_NAME))
    return found


def local_model(name: str) -> str:
    """A model's folder as an absolute path, as workers have other working directories; else as given."""
    return os.path.abspath(os.path.expanduser(name)) if os.path.isdir(os.path.expanduser(name)) else name


def _find_dataset(name: str, connection: Connection) -> DatasetManifest:
    catalog = Catalog(connection)
    manifest = catalog.get(name)
    catalog.check(manifest)
    return manifest


def _check_evaluation(asked: Asked, choose_input: ChooseInput, found: Preparation) -> str | None:
    """NAME@VERSION of the evaluation dataset, whose columns and labels are as those trained on."""
    if asked.config.eval_dataset is None:
        return None
    manifest = _find_dataset(asked.config.eval_dataset, asked.connection)
    choose_label_column(manifest, found.label_column)
    choose_input(manifest, found.input_column, found.label_column)
    check_labels(manifest, found.label_column, found.classes, found.class_names, asked.connection)
    return manifest.id


def _classes(
    asked: Asked, manifest: DatasetManifest, label: str, begun: Preparation | None
) -> tuple[int | str, ...]:
    """What the run was begun with, or else what is told or found."""
    names, told = class_names(manifest, label), asked.options.num_classes
    if told is not None:
        if names is not None and len(names) != told:
            reason = f"it has {len(names)} classes ({', '.join(names[:10])}), not {told} (--num-classes)"
            raise LabelError(manifest.id, column=label, reason=reason)
        return tuple(range(told))
    if begun is not None and begun.label_column == label:
        return begun.classes
    return tuple(find_classes(manifest, label, asked.connection))


def _open_run(asked: Asked, manifest: DatasetManifest) -> None:
    """Begin the run's folder, or see that it is of this dataset, seed and plan.

    Raises:
        StorageUnwritableError: It can't be written.
        RunMismatchError: It is of another.
    """
    config = asked.config
    asked.storage.require_writable()
    rule = choose_rule(manifest, max_workers=config.max_workers, whole=config.hold_whole)
    facts = plan_facts(manifest.fingerprint, config.seed, rule)
    wanted = new_run(
        asked.storage.run,
        dataset=manifest.id,
        dataset_fingerprint=manifest.fingerprint,
        num_samples=manifest.num_samples,
        plan_fingerprint=plan_fingerprint(facts),
        plan_facts=facts,
    )
    there = create_run(asked.storage, wanted)
    if config.hold_whole not in (None, there.plan_facts["whole"]):
        check_same_run(asked.storage.run, there, wanted)


def _check_same(run: str, begun: Preparation, found: Preparation) -> None:
    then, now = begun.settings(), found.settings()
    differences = {
        name: (_shown(then.get(name)), _shown(now.get(name)))
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    }
    if differences:
        raise RunMismatchError(run, differences)


def _shown(value: Any) -> Any:
    """A long list is told by its beginning and its length."""
    if isinstance(value, tuple | list) and len(value) > 10:
        return f"{len(value)} ({', '.join(map(str, value[:10]))}, ...)"
    return value
