"""What can be chosen about a recipe: one frozen model each, whose fields the command line turns into flags.

What every run has (epochs, workers, seed, ...) is in TrainConfig; here is what depends on the recipe. `None`
means "the recipe decides", and the sentence says what it decides. Nothing heavy is imported here: a command
line lists recipes without loading torch.

Read next: registry.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ImageClassificationOptions", "RecipeOptions", "TextClassificationOptions"]


class RecipeOptions(BaseModel):
    """What every recipe has."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    label_column: str | None = Field(
        default=None, description="column of the class, integer or string; default: the one named `label`"
    )
    num_classes: int | None = Field(
        default=None,
        ge=2,
        le=10_000,
        description="labels are the integers from 0 to N - 1; default: the dataset is looked through once",
    )
    micro_batch_size: int | None = Field(
        default=None,
        ge=1,
        le=1 << 24,
        description="samples of one worker that go through the model at once; default: all of its step",
    )
    learning_rate: float | None = Field(
        default=None, gt=0, le=10, description="the schedule's highest; default: the recipe's for the model"
    )
    weight_decay: float = Field(default=0.01, ge=0, le=10, description="AdamW's weight decay")
    warmup_share: float = Field(
        default=0.1, ge=0, lt=1, description="share of all steps in which the learning rate rises"
    )


class ImageClassificationOptions(RecipeOptions):
    """Images (Hugging Face image columns, or plain arrays of [H, W], [H, W, C] or [C, H, W]) into classes."""

    model: str = Field(
        default="small",
        min_length=1,
        description="`small` or `resnet-18` (both untrained), or a transformers model's folder or name",
    )
    image_column: str | None = Field(
        default=None, description="column of the image; default: the only one that looks like an image"
    )
    image_size: int | None = Field(
        default=None,
        ge=8,
        le=4096,
        description="side to resize images to; default: as they are, if all alike",
    )
    augment: Literal["none", "shift", "shift-and-mirror"] = Field(
        default="none",
        description="how training images are changed at random (the same for every number of workers)",
    )


class TextClassificationOptions(RecipeOptions):
    """Texts into classes."""

    model: str = Field(
        default="small",
        min_length=1,
        description="`small` (a BERT of two layers, untrained), or a transformers model's folder or name",
    )
    text_column: str | None = Field(
        default=None, description="column of the text; default: the only column of strings"
    )
    max_tokens: int = Field(default=128, ge=8, le=8192, description="longer texts are cut after so many")
    vocabulary_size: int = Field(
        default=8192, ge=200, le=1_000_000, description="of the tokenizer trained on the dataset (`small`)"
    )
