"""The recipes there are, by name; light: what a recipe needs is imported when it is used.

A recipe is a module with two functions:

    check(config, connection, storage) -> TrainConfig     in the driver, before anything starts: refuse what
                                                          can't work, return the config with nothing left open
    train(config) -> Mapping[str, float]                  in each worker: the loop; returns metrics

and a model of its options (options.py), from which a command line makes flags.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.recipes.errors import UnknownRecipeError
from evenload.ray_trainer.recipes.options import (
    ImageClassificationOptions,
    RecipeOptions,
    TextClassificationOptions,
)
from evenload.ray_trainer.training.train_config import TrainConfig

if TYPE_CHECKING:  # which loads Arrow; a command line that lists recipes has no use for it
    from evenload.resume.storage import RunStorage

__all__ = ["RECIPES", "Recipe", "RecipeModule", "find_recipe"]


class RecipeModule(Protocol):
    """What the module of a recipe has."""

    def check(self, config: TrainConfig, connection: Connection, storage: RunStorage) -> TrainConfig: ...

    def train(self, config: TrainConfig) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Recipe:
    """One recipe.

    Attributes:
        options: What it needs beside `TrainConfig`.
        module: Where it is.
    """

    name: str
    summary: str
    options: type[RecipeOptions]
    module: str

    def load(self) -> RecipeModule:
        """Import it, with torch and all that it needs."""
        module: Any = importlib.import_module(self.module)
        return module  # type: ignore[no-any-return]


RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(
                name="image-classification",
                summary="put images into classes with a ResNet",
                options=ImageClassificationOptions,
                module="evenload.ray_trainer.recipes.image_classification",
            ),
            Recipe(
                name="text-classification",
                summary="put texts into classes with a BERT",
                options=TextClassificationOptions,
                module="evenload.ray_trainer.recipes.text_classification",
            ),
        )
    }
)


def find_recipe(name: str) -> Recipe:
    """Raises:
    UnknownRecipeError: With the names there are.
    """
    if name not in RECIPES:
        raise UnknownRecipeError(name, list(RECIPES))
    return RECIPES[name]
