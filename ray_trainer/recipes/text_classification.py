"""Tell texts apart: a BERT of transformers, small and untrained, or a pretrained model.

The small one needs no download: its WordPiece tokenizer is made from the dataset's own texts, once, by the
driver, and kept with the run, so every worker of every attempt cuts words alike.

Read next: classification.py (the loop), wordpiece.py.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.reading.batch import Batch
from evenload.ray_trainer.recipes.classification import run_storage, train_classifier
from evenload.ray_trainer.recipes.columns import choose_text_column
from evenload.ray_trainer.recipes.labels import LabelNumbers, read_in_order
from evenload.ray_trainer.recipes.options import TextClassificationOptions
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
    label_names,
    make_bert,
    pretrained_tokenizer,
    silence,
    text_model,
    wrap_tokenizer,
)
from evenload.ray_trainer.recipes.wordpiece import make_tokenizer, within_bounds
from evenload.ray_trainer.training.train_config import TrainConfig
from evenload.resume.storage import RunStorage

__all__ = ["check", "train"]

NAME: Final = "text-classification"
_TOKENIZER_NAME: Final = "preparation/tokenizer.json"


def check(config: TrainConfig, connection: Connection, storage: RunStorage) -> TrainConfig:
    """See that the run can be made, and write down what it is."""
    silence()
    options = TextClassificationOptions.model_validate(config.options)
    model = local_model(options.model)

    def look(subject: Subject) -> Findings:
        facts = {"max_tokens": options.max_tokens}
        if model != "small":
            pretrained_tokenizer(model, max_tokens=options.max_tokens)
            return Findings(facts)
        facts["vocabulary_size"] = options.vocabulary_size
        if subject.begun is not None:
            return Findings(facts)
        texts = within_bounds(_texts(subject.manifest, subject.input_column, connection))
        tokenizer = make_tokenizer(texts, options.vocabulary_size)
        return Findings(facts, {_TOKENIZER_NAME: tokenizer.to_str().encode()})

    asked = Asked(NAME, config, options, model, "text", options.text_column, connection, storage)
    return prepare(asked, choose_text_column, look)


def train(config: TrainConfig) -> Mapping[str, float]:
    """The loop of one worker."""
    silence()
    options = TextClassificationOptions.model_validate(config.options)
    task = TextTask(read_preparation(run_storage()), config.dataset, run_storage())
    return train_classifier(task, config, options)


class TextTask:
    """Texts to logits."""

    has_matthews = True

    def __init__(self, found: Preparation, dataset: str, storage: RunStorage) -> None:
        self._found = found
        self._labels = LabelNumbers(dataset, found.label_column, found.classes)
        self._tokenizer = _load_tokenizer(found, storage)
        self.columns = (found.input_column, found.label_column)
        self.num_classes = len(found.classes)
        self.class_names = found.class_names
        self.learning_rate = 1e-3 if found.model == "small" else 5e-5

    def build_model(self) -> nn.Module:
        labels = label_names(self._found.classes, self._found.class_names)
        if self._found.model != "small":
            return text_model(self._found.model, labels, pad_token_id=self._tokenizer.pad_token_id)
        return make_bert(
            vocabulary_size=len(self._tokenizer),
            max_tokens=self._tokenizer.model_max_length,
            pad_token_id=self._tokenizer.pad_token_id,
            labels=labels,
        )

    def transform(self, batch: Batch) -> dict[str, torch.Tensor]:
        text, label = self.columns
        encoded = self._tokenizer(
            ["" if one is None else one for one in batch[text]],
            truncation=True,
            padding="longest",
            return_tensors="pt",
        )
        return {**encoded, "label": self._labels.numbers(batch[label])}

    def vary(self, part: Batch) -> Batch:
        return part

    def logits(self, model: nn.Module, part: Mapping[str, torch.Tensor]) -> torch.Tensor:
        inputs = {name: tensor for name, tensor in part.items() if name != "label"}
        logits: torch.Tensor = model(**inputs).logits
        return logits

    def save(self, model: Any, folder: Path) -> None:
        model.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)
        classes = {"label_column": self.columns[1], "classes": self._found.classes}
        (folder / "classes.json").write_text(json.dumps(classes, indent=1))


def _load_tokenizer(found: Preparation, storage: RunStorage) -> Any:
    facts: Mapping[str, Any] = found.facts
    if found.model != "small":
        return pretrained_tokenizer(found.model, max_tokens=facts["max_tokens"])
    with tempfile.TemporaryDirectory(prefix="evenload-tokenizer-") as folder:
        file = Path(folder) / "tokenizer.json"
        file.write_bytes(storage.read(_TOKENIZER_NAME))
        return wrap_tokenizer(file, max_tokens=facts["max_tokens"])


def _texts(manifest: DatasetManifest, column: str, connection: Connection) -> Iterator[str | None]:
    for batch in read_in_order(manifest, [column], connection):
        yield from batch[column]
