"""Ready-made ways to train: `RECIPES` by name. Importing this loads neither torch nor transformers."""

from evenload.ray_trainer.recipes.options import (
    ImageClassificationOptions,
    RecipeOptions,
    TextClassificationOptions,
)
from evenload.ray_trainer.recipes.registry import RECIPES, Recipe, find_recipe

__all__ = [
    "RECIPES",
    "ImageClassificationOptions",
    "Recipe",
    "RecipeOptions",
    "TextClassificationOptions",
    "find_recipe",
]
