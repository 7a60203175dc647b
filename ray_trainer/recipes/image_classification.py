"""Tell images apart: a ResNet of transformers, small or not, on encoded images or plain arrays.

Images may be grey or colour, and arrays [H, W], [H, W, C] or [C, H, W], of any numbers; all become [C, H, W]
of one size, with about mean 0 and deviation 1. The default `small` model (0.3 million parameters) is made
for images of about 32 x 32 and for CPUs.

With batch normalisation, a model's gradients depend on how samples are divided among workers (each normalises
over its own), so two runs with other numbers of workers are alike, but not equal.

Read next: classification.py (the loop), image_facts.py, image_tensors.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import JsonValue
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.reading.batch import Batch
from evenload.ray_trainer.reading.errors import UndecodableColumnError
from evenload.ray_trainer.recipes.classification import run_storage, train_classifier
from evenload.ray_trainer.recipes.columns import choose_image_column
from evenload.ray_trainer.recipes.image_facts import ImageFacts, look_at_images
from evenload.ray_trainer.recipes.image_tensors import mirrored, shifted, to_planes
from evenload.ray_trainer.recipes.labels import LabelNumbers
from evenload.ray_trainer.recipes.options import ImageClassificationOptions
from evenload.ray_trainer.recipes.preparation import (
    Asked,
    Findings,
    Preparation,
    Subject,
    local_model,
    prepare,
    read_preparation,
)
from evenload.ray_trainer.recipes.pretrained import (
    NEW_RESNETS,
    image_input,
    image_model,
    label_names,
    make_resnet,
    silence,
)
from evenload.ray_trainer.training.train_config import TrainConfig
from evenload.resume.storage import RunStorage

__all__ = ["check", "train"]

NAME: Final = "image-classification"


def check(config: TrainConfig, connection: Connection, storage: RunStorage) -> TrainConfig:
    """See that the run can be made, and write down what it is."""
    silence()
    options = ImageClassificationOptions.model_validate(config.options)
    model = local_model(options.model)

    def look(subject: Subject) -> Findings:
        asked_size: dict[str, JsonValue] = {"image_size": options.image_size}
        if subject.begun is not None:  # measuring again could differ by rounding
            return Findings({**subject.begun.facts, **asked_size})
        channels, size = (None, None) if model in NEW_RESNETS else image_input(model)
        facts = look_at_images(
            subject.manifest,
            subject.input_column,
            connection,
            image_size=options.image_size or size,
            channels=channels,
        )
        return Findings({**facts.to_json(), **asked_size})

    asked = Asked(NAME, config, options, model, "image", options.image_column, connection, storage)
    return prepare(asked, choose_image_column, look)


def train(config: TrainConfig) -> Mapping[str, float]:
    """The loop of one worker."""
    silence()
    options = ImageClassificationOptions.model_validate(config.options)
    task = ImageTask(read_preparation(run_storage()), config.dataset, options)
    return train_classifier(task, config, options)


class ImageTask:
    """Images to logits."""

    has_matthews = False

    def __init__(self, found: Preparation, dataset: str, options: ImageClassificationOptions) -> None:
        self._found = found
        self._facts = ImageFacts.from_json(found.facts)
        self._augment = options.augment
        self._labels = LabelNumbers(dataset, found.label_column, found.classes)
        self.columns = (found.input_column, found.label_column)
        self.num_classes = len(found.classes)
        self.class_names = found.class_names
        self.learning_rate = {"small": 3e-3, "resnet-18": 1e-3}.get(found.model, 2e-4)

    def build_model(self) -> nn.Module:
        labels = label_names(self._found.classes, self._found.class_names)
        if self._found.model in NEW_RESNETS:
            return make_resnet(self._found.model, channels=self._facts.channels, labels=labels)
        return image_model(self._found.model, labels)

    def transform(self, batch: Batch) -> dict[str, torch.Tensor]:
        image, label = self.columns
        images = batch[image]
        size = (self._facts.height, self._facts.width)
        if isinstance(images, torch.Tensor):
            pixels = to_planes(images, self._facts.channels, size)
        else:
            pixels = torch.cat([to_planes(one[None], self._facts.channels, size) for one in images])
        # One such value would spoil every weight of the model.
        if pixels.is_floating_point() and not pixels.isfinite().all():
            raise UndecodableColumnError(column=image, reason="some images have NaN or infinite values")
        return {"pixels": pixels, "label": self._labels.numbers(batch[label])}

    def vary(self, part: Batch) -> Batch:
        if self._augment == "none":
            return part
        seeds = part.sample_seeds.to(part["pixels"].device)
        pixels = shifted(part["pixels"], seeds)
        if self._augment == "shift-and-mirror":
            pixels = mirrored(pixels, seeds)
        return part.with_columns({**part, "pixels": pixels})

    def logits(self, model: nn.Module, part: Mapping[str, torch.Tensor]) -> torch.Tensor:
        pixels = part["pixels"]
        mean = torch.tensor(self._facts.mean, device=pixels.device)[:, None, None]
        deviation = torch.tensor(self._facts.deviation, device=pixels.device)[:, None, None]
        # Channels last: convolutions of the `small` model on a CPU take a quarter less time so.
        values = ((pixels.float() - mean) / deviation).contiguous(memory_format=torch.channels_last)
        is_alone = model.training and len(pixels) == 1
        with running_statistics(model) if is_alone else nullcontext():
            logits: torch.Tensor = model(pixel_values=values).logits
        return logits

    def save(self, model: Any, folder: Path) -> None:
        model.save_pretrained(folder)
        describe = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": self._facts.height, "width": self._facts.width},
            "do_rescale": False,
            "do_normalize": True,
            "image_mean": self._facts.mean,
            "image_std": self._facts.deviation,
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(describe, indent=1))
        classes = {"label_column": self.columns[1], "classes": self._found.classes}
        (folder / "classes.json").write_text(json.dumps(classes, indent=1))


@contextmanager
def running_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise by what was seen so far, as a single sample has no deviation where its map is one value.

    (torch raises ValueError then, on this rank alone. It happens with a worker for each sample of a step, or
    --micro-batch-size 1.)
    """
    layers = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()
