"""A folder of images: one folder for each class, its name is the label.

    flowers/daisy/1.jpg, flowers/daisy/2.png, flowers/tulip/1.jpg      -> image, label (daisy = 0, tulip = 1)
    photos/1.jpg, photos/2.jpg                                         -> image

Only names and sizes are held; the images are read as they are written to Kafka (`read_images`). Classes are
numbered, and images ordered, by name, so that every machine sees the same order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from evenload.kafka_plugin.errors import EmptySourceError, MalformedSourceError, UnsupportedSourceError
from evenload.kafka_plugin.sources.sample_schema import class_label_field, image_field

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_NO_BYTES = "is an image of no bytes"
_METADATA_FILES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def is_image_folder(folder: Path) -> bool:
    """Whether there is an image in the folder or in one of its folders."""
    return any(_is_image(path) for path in folder.iterdir()) or any(
        _is_image(path) for child in _class_folders(folder) for path in child.rglob("*")
    )


def list_images(folder: Path) -> pa.RecordBatch:
    """The samples, their images without bytes so far.

    Raises:
        EmptySourceError: A class folder has no image in it.
        UnsupportedSourceError: Images beside class folders, or a metadata file (which would be ignored).
    """
    for name in _METADATA_FILES:
        if (folder / name).exists():
            raise UnsupportedSourceError(
                str(folder / name), "would be ignored: labels come from folder names here."
            )
    flat = sorted(path for path in folder.iterdir() if _is_image(path))
    classes = _class_folders(folder)
    if flat and classes:
        reason = (
            f"has images ({flat[0].name}) beside folders ({classes[0].name}); give each image a class folder."
        )
        raise UnsupportedSourceError(str(folder), reason)
    if flat:
        return _listed(folder, flat, pa.schema([image_field("image")]), None)
    paths: list[Path] = []
    labels: list[int] = []
    for label, class_folder in enumerate(classes):
        found = sorted(path for path in class_folder.rglob("*") if _is_image(path))
        if not found:
            raise EmptySourceError(str(class_folder), "has no image in it")
        paths += found
        labels += [label] * len(found)
    label_field = class_label_field("label", [child.name for child in classes])
    return _listed(folder, paths, pa.schema([image_field("image"), label_field]), labels)


def read_images(batch: pa.RecordBatch, columns: Sequence[str], folder: Path | None) -> pa.RecordBatch:
    """The batch with the bytes of images that so far only have a path.

    Args:
        batch: Samples.
        columns: Its image columns.
        folder: What relative paths start from; the current folder if None.

    Raises:
        MalformedSourceError: An image can't be read.
    """
    for column in columns:
        images = batch.column(column)
        contents = pc.struct_field(images, "bytes")  # null where the image is
        if not contents.null_count:
            continue
        paths = pc.struct_field(images, "path").to_pylist()
        read = [
            content if content is not None or path is None else _content(path, folder)
            for content, path in zip(contents.to_pylist(), paths, strict=True)
        ]
        # A path on this machine says nothing elsewhere, so only what lies under the folder is kept.
        kept = [path if path is None or folder is not None else os.path.basename(path) for path in paths]
        filled = pa.StructArray.from_arrays(
            [pa.array(read, pa.binary()), pa.array(kept, pa.string())],
            fields=list(images.type),
            mask=images.is_null() if images.null_count else None,
        )
        number = batch.schema.get_field_index(column)
        batch = batch.set_column(number, batch.schema.field(number), filled)
    return batch


def image_facts(paths: Iterator[str], folder: Path | None) -> tuple[int, tuple[str, ...]]:
    """Bytes of these files together, and a line about each: its path, size and time of change.

    Raises:
        MalformedSourceError: A file is not there.
        EmptySourceError: A file has no bytes.
    """
    facts = []
    num_bytes = 0
    for path in paths:
        try:
            found = os.stat(folder / path if folder else path)
        except OSError as error:
            raise MalformedSourceError(path, f"the image can't be read: {error.strerror}.") from error
        if not found.st_size:
            raise EmptySourceError(path, _NO_BYTES)
        num_bytes += found.st_size
        facts.append(f"{path} {found.st_size} {found.st_mtime_ns}")
    return num_bytes, tuple(facts)


def _listed(
    folder: Path, paths: Sequence[Path], schema: pa.Schema, labels: Sequence[int] | None
) -> pa.RecordBatch:
    relative = [path.relative_to(folder).as_posix() for path in paths]
    images = pa.StructArray.from_arrays(
        [pa.nulls(len(relative), pa.binary()), pa.array(relative, pa.string())],
        fields=list(schema.field(0).type),
    )
    columns = [images] if labels is None else [images, pa.array(labels, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _content(path: str, folder: Path | None) -> bytes:
    try:
        content = (folder / path if folder else Path(path)).read_bytes()
    except OSError as error:
        raise MalformedSourceError(path, f"the image can't be read: {error.strerror}.") from error
    if not content:
        raise EmptySourceError(path, _NO_BYTES)
    return content


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()


def _class_folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
