"""What is trained: rows as they lie in Kafka, and a model of transformers that takes them.

Models are made from their sizes, untrained; what they learn is of no interest here, only how long it takes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- as everybody calls it

from evenload.ray_trainer.reading.batch import Batch
from evenload.ray_trainer.recipes.image_tensors import to_planes
from evenload.ray_trainer.recipes.pretrained import make_bert, make_resnet
from evenload.ray_trainer.recipes.wordpiece import make_tokenizer

NUM_TOKENS: Final = 48
_VOCABULARY: Final = 8192
_COCO_SIZE: Final = (640, 480)
_SMALLER_SIDE: Final = 96  # of what the network sees of an enlarged image


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training.

    Attributes:
        name: As in tables.
        make_rows: Samples, given the folder of real data and how many are wanted.
        num_samples: Of an epoch.
        batch_size: Samples of a step, over both ranks.
        make_model: Untrained; the same on every rank.
        loss: Of a model's answers to a batch.
    """

    name: str
    make_rows: Callable[[Path, int], pa.Table]
    num_samples: int
    batch_size: int
    make_model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Batch], torch.Tensor]


def _tokens(data: Path, num_samples: int) -> pa.Table:
    lines = (data / "cola" / "train.tsv").read_text(encoding="utf-8").splitlines()[:num_samples]
    rows = [line.split("\t") for line in lines]
    texts = [row[3] for row in rows]
    tokenizer = make_tokenizer(texts, _VOCABULARY)
    tokenizer.enable_padding(length=NUM_TOKENS)
    tokenizer.enable_truncation(NUM_TOKENS)
    ids = np.array([encoded.ids for encoded in tokenizer.encode_batch(texts)], dtype=np.int32)
    return pa.table(
        {
            "input_ids": pa.FixedSizeListArray.from_arrays(ids.ravel(), NUM_TOKENS),
            "label": pa.array([int(row[1]) for row in rows]),
        }
    )


def _images(data: Path, num_samples: int) -> pa.Table:
    table = parquet.read_table(data / "cifar10" / "train.parquet", columns=["image", "label"])
    return table.slice(0, num_samples)


def _enlarged(data: Path, num_samples: int) -> pa.Table:
    small = _images(data, num_samples)
    return pa.table(
        {
            "image": pa.array(
                [{"bytes": _enlarge(each["bytes"]), "path": None} for each in small["image"].to_pylist()],
                small.schema.field("image").type,
            ),
            "label": small["label"],
        }
    )


def _enlarge(encoded: bytes) -> bytes:
    image = Image.open(io.BytesIO(encoded)).convert("RGB").resize(_COCO_SIZE, Image.Resampling.BICUBIC)
    # What a photograph has and an enlarged one lacks: noise, without which JPEG makes a tenth of the bytes.
    noise = np.random.default_rng(len(encoded)).normal(0, 8, (*reversed(_COCO_SIZE), 3))
    noisy = np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(noisy).save(out, "JPEG", quality=75)
    return out.getvalue()


def _bert() -> nn.Module:
    return make_bert(
        vocabulary_size=_VOCABULARY, max_tokens=NUM_TOKENS, pad_token_id=0, labels={"num_labels": 2}
    )


def _resnet() -> nn.Module:
    return make_resnet("resnet-18", channels=3, labels={"num_labels": 10})


def _text_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    ids = batch["input_ids"].long()
    return _cross_entropy(model(input_ids=ids, attention_mask=(ids != 0).long()), batch)


def _image_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return _cross_entropy(model(pixel_values=to_planes(batch["image"], 3, (32, 32)).float() / 255), batch)


def _enlarged_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    planes = to_planes(batch["image"], 3, (_SMALLER_SIDE, _SMALLER_SIDE * 4 // 3))
    return _cross_entropy(model(pixel_values=planes.float() / 255), batch)


def _cross_entropy(answer: Any, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(answer.logits, batch["label"])


WORKLOADS: Final[Mapping[str, Workload]] = {
    workload.name: workload
    for workload in (
        Workload(
            name="CoLA, BERT",
            make_rows=_tokens,
            num_samples=4250,
            batch_size=64,
            make_model=_bert,
            loss=_text_loss,
        ),
        Workload(
            name="CIFAR-10, ResNet-18",
            make_rows=_images,
            num_samples=1600,
            batch_size=64,
            make_model=_resnet,
            loss=_image_loss,
        ),
        Workload(
            name="CIFAR-10 as 640 x 480, ResNet-18",
            make_rows=_enlarged,
            num_samples=240,
            batch_size=16,
            make_model=_resnet,
            loss=_enlarged_loss,
        ),
    )
}
