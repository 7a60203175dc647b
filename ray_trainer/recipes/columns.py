"""Which column is what: guessed where that is safe, else the error lists the columns and the option.

Read next: labels.py (what the classes are).
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.ray_trainer.recipes.errors import ColumnChoiceError

__all__ = ["choose_image_column", "choose_label_column", "choose_text_column", "image_shape"]

Fits = Callable[[pa.Field], bool]


def choose_label_column(manifest: DatasetManifest, named: str | None) -> str:
    """The column with the class: the one named, or `label`, or the only one with named classes.

    Raises:
        ColumnChoiceError: It is not there, is neither integers nor strings, or can't be guessed.
    """
    if named is not None:
        return _named(manifest, named, "label", _is_label, "neither integers nor strings")
    schema = manifest.arrow_schema
    if "label" in schema.names:
        return _named(manifest, "label", "label", _is_label, "neither integers nor strings")
    classed = [name for name in schema.names if manifest.features.get(name, "").startswith("class label")]
    if len(classed) == 1:
        return str(classed[0])
    raise _unguessable(manifest, "label", "no column is named 'label'")


def choose_text_column(manifest: DatasetManifest, named: str | None, label: str) -> str:
    """The column with the text: the one named, or `text`, or the only other one that holds strings.

    Raises:
        ColumnChoiceError: It is not there, holds no strings, or can't be guessed.
    """
    if named is not None:
        return _named(manifest, named, "text", _is_text, "not strings")
    texts = [field.name for field in manifest.arrow_schema if _is_text(field) and field.name != label]
    if "text" in texts:
        return "text"
    if len(texts) == 1:
        return str(texts[0])
    several = (
        f"columns {', '.join(map(repr, texts))} all hold strings" if texts else "no column holds strings"
    )
    raise _unguessable(manifest, "text", several)


def choose_image_column(manifest: DatasetManifest, named: str | None, label: str) -> str:
    """The column with the image: the one named, or the only one with images or arrays of 2 or 3 dimensions.

    Raises:
        ColumnChoiceError: It is not there, holds no images, or can't be guessed.
    """

    def is_image(field: pa.Field) -> bool:
        return manifest.features.get(field.name) == "image" or image_shape(field.type) is not None

    if named is not None:
        return _named(manifest, named, "image", is_image, "neither images nor arrays of 2 or 3 dimensions")
    images = [field.name for field in manifest.arrow_schema if is_image(field) and field.name != label]
    if len(images) == 1:
        return str(images[0])
    several = (
        f"columns {', '.join(map(repr, images))} all hold images" if images else "no column holds images"
    )
    raise _unguessable(manifest, "image", several)


def image_shape(kind: pa.DataType) -> tuple[int, ...] | None:
    """The shape of a column of arrays that may be images: [H, W], [H, W, C] or [C, H, W]; else None."""
    shape: list[int] = []
    if isinstance(kind, pa.FixedShapeTensorType):
        shape, kind = list(kind.shape), kind.value_type
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return tuple(shape) if is_number and len(shape) in (2, 3) else None


def _named(manifest: DatasetManifest, name: str, role: str, fits: Fits, otherwise: str) -> str:
    schema = manifest.arrow_schema
    if name not in schema.names:
        raise _error(manifest, role, f"there is no column {name!r}")
    field = schema.field(name)
    if not fits(field):
        kind = manifest.features.get(name, str(field.type))
        raise _error(manifest, role, f"column {name!r} holds {otherwise} (its type is {kind})")
    return name


def _is_label(field: pa.Field) -> bool:
    return bool(pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)) or _is_text(field)


def _is_text(field: pa.Field) -> bool:
    return bool(pa.types.is_string(field.type) or pa.types.is_large_string(field.type))


def _unguessable(manifest: DatasetManifest, role: str, reason: str) -> ColumnChoiceError:
    return _error(manifest, role, f"which column is the {role} can't be guessed: {reason}")


def _error(manifest: DatasetManifest, role: str, reason: str) -> ColumnChoiceError:
    schema = manifest.arrow_schema
    kinds = {field.name: manifest.features.get(field.name, str(field.type)) for field in schema}
    return ColumnChoiceError(manifest.id, role=role, reason=reason, columns=kinds)
