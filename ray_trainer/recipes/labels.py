"""What the classes of a dataset are, and their numbers.

Class names that the dataset itself has are taken as they are. Otherwise its labels are looked through once,
as a class that first turns up in the middle of an epoch would have no place in the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from evenload.dataset_catalog.errors import CorruptManifestError
from evenload.dataset_catalog.foreign_content import parse_json, refused_as
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.reading.batch import Batch
from evenload.ray_trainer.reading.reader import DatasetReader
from evenload.ray_trainer.recipes.errors import LabelError

__all__ = ["LabelNumbers", "check_labels", "class_names", "find_classes", "read_in_order", "renumbered"]

_CLASS_NAMES_MAX: Final = 1_000_000
CLASSES_MAX: Final = 10_000
_SAMPLES_AT_ONCE: Final = 4096
_PREFETCH_BYTES: Final = 32 << 20
# Where the loader keeps the names that a label's integers stand for (kafka_plugin/sources/sample_schema.py).
_CLASS_NAMES_KEY: Final = b"evenload.class_names"


class LabelNumbers:
    """From a batch's labels to the numbers of their classes.

    Args:
        classes: Value of each class, in the order of their numbers.
    """

    def __init__(self, dataset: str, column: str, classes: Sequence[int | str]) -> None:
        self._dataset = dataset
        self._column = column
        self._number = {value: number for number, value in enumerate(classes)}
        self._is_identity = list(classes) == list(range(len(classes)))

    def numbers(self, labels: torch.Tensor | Sequence[Any]) -> torch.Tensor:
        """[n] int64.

        Raises:
            LabelError: A label that the run's dataset did not have.
        """
        if isinstance(labels, torch.Tensor):
            labels = labels.to(torch.int64)
            if self._is_identity and (not len(labels) or (int(labels.min()) >= 0 and self._fits(labels))):
                return labels
            labels = labels.tolist()
        try:
            return torch.tensor([self._number[label] for label in labels], dtype=torch.int64)
        except KeyError as error:
            known = _listed(list(self._number))
            raise LabelError(
                self._dataset,
                column=self._column,
                reason=f"label {error.args[0]!r} is not one that the run was begun with ({known})",
            ) from None

    def _fits(self, labels: torch.Tensor) -> bool:
        return int(labels.max()) < len(self._number)


def find_classes(manifest: DatasetManifest, column: str, connection: Connection) -> list[int | str]:
    """The values of a label column, ascending; all that its names stand for, where it has names.

    Raises:
        LabelError: A label is missing or negative, there are too many different ones for it to be a label, or
            only one.
    """
    names = class_names(manifest, column)
    if names is not None:
        return list(range(len(names)))
    found = _look_through(manifest, column, connection)
    if len(found) == 1:
        raise LabelError(
            manifest.id,
            column=column,
            reason=f"all {manifest.num_samples} samples have the label {found[0]!r}: nothing to tell apart",
        )
    return found


def check_labels(
    manifest: DatasetManifest,
    column: str,
    classes: Sequence[int | str],
    names: Sequence[str] | None,
    connection: Connection,
) -> None:
    """See that another dataset has no class that the model will not have.

    Args:
        names: of the classes, where the dataset trained on has names.

    Raises:
        LabelError: With the labels that are unknown.
    """
    found: set[int | str] = set(_look_through(manifest, column, connection))
    known = classes
    own = class_names(manifest, column)
    if names is not None and own is not None:
        # A number that has no name stays a number, which no class is called.
        found, known = {own[int(label)] if int(label) < len(own) else label for label in found}, names
    unknown = sorted(found - set(known), key=str)
    if unknown:
        raise LabelError(
            manifest.id,
            column=column,
            reason=f"{_listed(unknown)} {'is a label' if len(unknown) == 1 else 'are labels'} that the "
            f"dataset trained on does not have ({_listed(known)})",
        )


def renumbered(manifest: DatasetManifest, column: str, names: Sequence[str] | None) -> list[int] | None:
    """A class's number in the run, by its number in this dataset: classes are the same by their names.

    Two folders of images number their classes each for itself, so `horse` may be 2 in one and 1 in the other.

    Args:
        names: of the run's classes, in the order of their numbers; None: it has none.

    Returns:
        -1 for a class that the run does not have; None where numbers are the same, or there are no names.
    """
    own = class_names(manifest, column)
    if own is None or names is None or list(own) == list(names):
        return None
    number = {name: place for place, name in enumerate(names)}
    return [number.get(name, -1) for name in own]


def class_names(manifest: DatasetManifest, column: str) -> tuple[str, ...] | None:
    """The names of an integer label's classes, where the dataset has them."""
    names = (manifest.arrow_schema.field(column).metadata or {}).get(_CLASS_NAMES_KEY)
    if names is None:
        return None
    with refused_as(lambda reason: CorruptManifestError(f"its class names are none: {reason}", manifest.id)):
        return tuple(str(name) for name in parse_json(names, max_values=_CLASS_NAMES_MAX))


def _look_through(manifest: DatasetManifest, column: str, connection: Connection) -> list[int | str]:
    found: set[Any] = set()
    for batch in read_in_order(manifest, [column], connection):
        values = batch[column]
        if isinstance(values, torch.Tensor):
            found.update(int(value) for value in torch.unique(values.to(torch.int64)))
        else:
            found.update(values)
        _check_plausible(found, manifest, column)
    return sorted(found)


def _check_plausible(found: set[Any], manifest: DatasetManifest, column: str) -> None:
    reason = None
    if None in found:
        reason = "some samples have none (null); fill or drop them before loading the dataset"
    elif len(found) > CLASSES_MAX:
        reason = (
            f"it has more than {CLASSES_MAX} different values, so it is no label; name the one that is with "
        )
        reason += "--label-column"
    elif any(isinstance(value, int) and value < 0 for value in found):
        reason = (
            f"label {min(found)} is negative, which often means that there is none; classes are 0 or more"
        )
    if reason is not None:
        raise LabelError(manifest.id, column=column, reason=reason)


def _listed(values: Sequence[int | str]) -> str:
    return ", ".join(map(repr, values[:10])) + (", ..." if len(values) > 10 else "")


def read_in_order(
    manifest: DatasetManifest,
    columns: Sequence[str],
    connection: Connection,
    *,
    samples_at_once: int = _SAMPLES_AT_ONCE,
) -> Iterator[Batch]:
    """All samples once, as they lie in Kafka, by this process alone."""
    reader = DatasetReader(
        manifest,
        global_batch_size=samples_at_once,
        shuffle=False,
        columns=columns,
        transform=lambda batch: batch,  # with one, images may differ in size
        rank=0,
        world_size=1,
        connection=connection,
        prefetch_bytes=_PREFETCH_BYTES,
        hold_whole=False,
    )
    try:
        yield from reader
    finally:
        reader.close()
