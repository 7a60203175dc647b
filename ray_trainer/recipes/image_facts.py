"""What has to be known of images before a model can be built: channels, size, and what their values are like.

The first images of the dataset are looked at. A pretrained model says itself what it takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import torch
from pydantic import JsonValue

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection.connection import Connection
from evenload.ray_trainer.recipes.errors import ColumnChoiceError
from evenload.ray_trainer.recipes.image_tensors import CHANNELS, is_channels_last, moments, to_planes
from evenload.ray_trainer.recipes.labels import read_in_order

__all__ = ["ImageFacts", "look_at_images"]

_SAMPLES_AT_ONCE: Final = 16
_IMAGES_MAX: Final = 1024
_VALUES_MAX: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What images are made into, before the model sees them.

    Attributes:
        mean, deviation: Of each channel, in units of the stored values: what is subtracted, and divided by.
    """

    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def to_json(self) -> dict[str, JsonValue]:
        fields: dict[str, Any] = asdict(self)
        return {**fields, "mean": list(self.mean), "deviation": list(self.deviation)}

    @classmethod
    def from_json(cls, fields: dict[str, JsonValue]) -> Self:
        """Of what `to_json` gave, and whatever else is among it."""
        given: Any = {name: fields[name] for name in cls.__dataclass_fields__}
        return cls(**{**given, "mean": tuple(given["mean"]), "deviation": tuple(given["deviation"])})


def look_at_images(
    manifest: DatasetManifest,
    column: str,
    connection: Connection,
    *,
    image_size: int | None,
    channels: int | None = None,
) -> ImageFacts:
    """Look at the first images of a dataset.

    Args:
        image_size: Side to which images are to be resized; None: as they are.
        channels: What the model takes; None: as many as there are.

    Raises:
        ColumnChoiceError: They are no images, are no numbers, or have different sizes and none was given.
    """
    images = _first_images(manifest, column, connection)
    planes = {_plane(manifest, column, tuple(image.shape)) for image in images}
    sizes = sorted({(height, width) for _, height, width in planes})
    if image_size is None and len(sizes) > 1:
        listed = ", ".join(f"{height} x {width}" for height, width in sizes[:4])
        reason = (
            f"images of column {column!r} differ in size ({listed}); say with --image-size what to make them"
        )
        raise _error(manifest, reason)
    height, width = (image_size, image_size) if image_size is not None else sizes[0]
    channels = channels or max(count for count, _, _ in planes)
    mean, deviation = moments(torch.cat([to_planes(one[None], channels, (height, width)) for one in images]))
    if not all(map(math.isfinite, [*mean, *deviation])):
        raise _error(manifest, f"column {column!r} has NaN or infinite values")
    return ImageFacts(channels, height, width, tuple(mean), tuple(deviation))


def _first_images(manifest: DatasetManifest, column: str, connection: Connection) -> list[torch.Tensor]:
    images: list[torch.Tensor] = []
    num_values = 0
    for batch in read_in_order(manifest, [column], connection, samples_at_once=_SAMPLES_AT_ONCE):
        images.extend(batch[column])
        num_values += sum(image.numel() for image in batch[column])
        if len(images) >= _IMAGES_MAX or num_values >= _VALUES_MAX:
            break
    return images


def _plane(manifest: DatasetManifest, column: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width."""
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    channels, height, width = (shape[2], *shape[:2]) if is_channels_last(shape) else shape
    if channels not in CHANNELS:
        reason = (
            f"arrays of shape {list(shape)} in column {column!r} are not images: none of [H, W], [H, W, C] "
        )
        raise _error(manifest, reason + "and [C, H, W] with 1, 3 or 4 channels")
    return channels, height, width


def _error(manifest: DatasetManifest, reason: str) -> ColumnChoiceError:
    schema = manifest.arrow_schema
    kinds = {field.name: manifest.features.get(field.name, str(field.type)) for field in schema}
    return ColumnChoiceError(manifest.id, role="image", reason=reason, columns=kinds)
