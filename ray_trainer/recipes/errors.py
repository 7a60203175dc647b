"""What a recipe can't train: itself unknown, or not with this dataset or model.

TrainerError
├── UnknownRecipeError          there is no such recipe
├── ColumnChoiceError           which column is meant can't be guessed
├── LabelError                  labels that can't be learned from
└── ModelUnavailableError       the model named can't be loaded
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenload.ray_trainer.errors import TrainerError


class UnknownRecipeError(TrainerError):
    """There is no such recipe.

    Attributes:
        name: what was asked for.
        available: the recipes there are.
    """

    def __init__(self, name: str, available: Sequence[str]) -> None:
        super().__init__(f"no recipe is named {name!r}: there are {', '.join(available)}")
        self.name = name
        self.available = tuple(available)


class ColumnChoiceError(TrainerError):
    """Which column is meant can't be guessed, or the one named does not do.

    Attributes:
        dataset: `NAME@VERSION`.
        role: what the column is for: `text`, `image`, `label`.
        columns: the dataset's columns with their types.
    """

    def __init__(self, dataset: str, *, role: str, reason: str, columns: Mapping[str, str]) -> None:
        listed = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
        super().__init__(
            f"dataset {dataset}: {reason}. Its columns are {listed}; name one with --{role}-column."
        )
        self.dataset = dataset
        self.role = role
        self.columns = dict(columns)


class LabelError(TrainerError):
    """Labels that can't be learned from.

    Attributes:
        dataset: `NAME@VERSION`.
        column: the label column.
    """

    def __init__(self, dataset: str, *, column: str, reason: str) -> None:
        super().__init__(f"dataset {dataset}, label column {column!r}: {reason}")
        self.dataset = dataset
        self.column = column


class ModelUnavailableError(TrainerError):
    """The model that was named can't be loaded.

    Attributes:
        name: a folder, or a name on the hub.
        reason: what transformers said.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"model {name!r} can't be loaded: {reason}. Name one of the recipe's own, a folder with a "
            "transformers model that all workers can read, or a model on the Hugging Face hub."
        )
        self.name = name
        self.reason = reason
