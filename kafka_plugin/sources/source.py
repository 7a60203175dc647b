"""What can be loaded: files, image folders, `datasets` and arrays, readable from any sample on.

`open_source` looks at everything before a byte is written: that each file is there and can be read, that
all agree on their columns and types, how many samples there are. What it returns gives the samples in
written order, from any position on, so that a loader that was killed goes on where it stopped.

    source = open_source(["a.csv", "b.csv.gz"])
    for batch in source.batches(start_sample=4096, samples_per_batch=512, seed=0): ...

Invariants, checked in tests/unit/kafka_plugin/sources/test_opening.py:
1. For every start, samples per batch and seed, the batches are the same remainder of one order.
2. Batches end at multiples of `samples_per_batch`, wherever one starts: records have the same borders after a
   restart.
3. Two sources with the same content have the same fingerprint, two with different content another.

Read next: text_files.py, arrow_files.py, image_folder.py (formats), held_samples.py (random access).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from evenload.kafka_plugin.errors import (
    EmptySourceError,
    MalformedSourceError,
    MixedTypesError,
    SourceNotFoundError,
    UnsupportedSourceError,
)
from evenload.kafka_plugin.sources.arrow_files import ArrowFile, ParquetFile, saved_dataset_files
from evenload.kafka_plugin.sources.held_samples import HeldSamples, hold, hold_mapped
from evenload.kafka_plugin.sources.image_folder import image_facts, is_image_folder, list_images, read_images
from evenload.kafka_plugin.sources.sample_order import written_order
from evenload.kafka_plugin.sources.sample_schema import (
    is_image,
    plain_batch,
    plain_schema,
    readable_features,
    select_columns,
)
from evenload.kafka_plugin.sources.text_files import DelimitedFile, Dialect, JsonLinesFile, LinesFile

_GATHER_BYTES = 16 << 20
_HASH_BYTES = 8 << 20
_COMPRESSED = (".gz", ".bz2", ".lz4", ".zst")
_DELIMITED = {".csv": Dialect(",", is_quoted=True), ".tsv": Dialect("\t", is_quoted=False)}
_JSON = (".jsonl", ".json", ".ndjson")
_TEXT = (".txt", ".text")
_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".arrows", ".feather", ".ipc")
_KNOWN = (*_DELIMITED, *_JSON, *_TEXT, *_PARQUET, *_ARROW)

PathLike = str | Path


class TableFile(Protocol):
    """One file, as samples."""

    path: str
    schema: pa.Schema
    is_inferred: bool  # the types were read off the values, and may be widened
    blank: frozenset[str]  # columns without a value, so of any type
    is_mapped: bool  # its batches are views into a mapped file

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All samples in the file's order, with the columns and types of `schema`."""
        ...


@dataclass(frozen=True, eq=False)
class Source:
    """Samples to load. May be used from several threads.

    Attributes:
        schema: Plain Arrow types; what a column means is in its metadata (sample_schema.py).
        num_samples: At least 1.
        num_bytes: What the samples take in Arrow's memory layout, close to what they take in Kafka.
        fingerprint: 32 hex digits over content, order and schema; equal for equal content.
        description: Where the samples come from, for the manifest.
    """

    schema: pa.Schema
    num_samples: int
    num_bytes: int
    fingerprint: str
    description: Mapping[str, Any]
    _held: HeldSamples = field(repr=False)
    _image_folder: Path | None = field(default=None, repr=False)

    @property
    def features(self) -> dict[str, str]:
        """What each column is, in words."""
        return readable_features(self.schema)

    def batches(
        self, start_sample: int = 0, *, samples_per_batch: int, seed: int | None
    ) -> Iterator[pa.RecordBatch]:
        """The samples from `start_sample` of the written order on.

        Args:
            start_sample: From 0 to `num_samples` (then there is nothing left).
            samples_per_batch: Samples in a batch; a first batch from within one, and the last, are shorter.
            seed: Of the shuffle; None keeps the source's order.

        Raises:
            MalformedSourceError: An image that was there when the source was opened can't be read any more.
        """
        if not 0 <= start_sample <= self.num_samples:
            raise ValueError(f"start_sample is {start_sample}, must be from 0 to {self.num_samples}")
        order = _cached_order(self.num_samples, seed)
        mean_bytes = max(1, self.num_bytes // self.num_samples)
        batches_per_gather = max(1, _GATHER_BYTES // (mean_bytes * samples_per_batch))
        images = [field.name for field in self.schema if is_image(field)]
        stride = batches_per_gather * samples_per_batch
        for first in range(start_sample - start_sample % stride, self.num_samples, stride):
            start = max(first, start_sample)
            if start == self.num_samples:
                return
            gathered = self._held.take(order[start : first + stride])
            for low in range(first, min(first + stride, self.num_samples), samples_per_batch):
                high = min(low + samples_per_batch, first + stride, self.num_samples)
                if high > start:
                    low = max(low, start)
                    yield read_images(gathered.slice(low - start, high - low), images, self._image_folder)


@lru_cache(maxsize=1)
def _cached_order(num_samples: int, seed: int | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    order = written_order(num_samples, seed)
    order.setflags(write=False)
    return order


def open_source(
    source: Any,
    columns: Sequence[str] | None = None,
    *,
    is_quoted: bool | None = None,
    memory_bytes: int = 1 << 30,
    scratch_folder: Path | None = None,
) -> Source:
    """Look at what is to be loaded, and make it readable in any order.

    Args:
        source: A path or several: files (Parquet; CSV and TSV; JSON lines; text; Arrow; the text ones also
            compressed), a folder of such files, of images, or saved by `datasets`. Or a `datasets.Dataset`, a
            `pyarrow.Table`, or a mapping of names to NumPy arrays of one length (an array with more than one
            dimension becomes a fixed_shape_tensor; booleans in one, uint8).
        columns: For a CSV or TSV without a header, the names of its columns; for plain text, of its only
            one. Where there are names (a first row that has all of these is a header), the columns to take.
        is_quoted: Whether fields of CSV and TSV files may be quoted; by default CSV yes, TSV no
            (text_files.py).
        memory_bytes: How much is held in memory; more goes to a scratch file.
        scratch_folder: Where that is; the system's temporary folder if None.

    Raises:
        SourceError: With the facts in one sentence; see errors.py for what there is.
    """
    limits = (memory_bytes, scratch_folder)
    if isinstance(source, PathLike):
        return _open_paths([Path(source)], columns, is_quoted, limits)
    if isinstance(source, pa.Table):
        return _open_table(source, "table", columns, limits)
    if isinstance(source, Mapping):
        return _open_table(_arrays_table(source), "arrays", columns, limits)
    if hasattr(source, "with_format") and hasattr(source, "data"):
        return _open_dataset(source, columns, limits)
    if isinstance(source, Sequence) and source and all(isinstance(path, PathLike) for path in source):
        return _open_paths([Path(path) for path in source], columns, is_quoted, limits)
    wanted = "a path, several paths, a datasets.Dataset, a pyarrow.Table or a mapping of arrays is needed."
    raise UnsupportedSourceError(type(source).__name__, f"can't be loaded; {wanted}")


def common_schema(files: Sequence[TableFile]) -> pa.Schema:
    """The columns and types that all files have, in the order of the first.

    Numbers that one file of text writes as integers and another as decimals are decimals in both, or text
    where that would change one of them. A column that has no value in a file has the type of the others.

    Raises:
        MixedTypesError: A column is missing somewhere, or has another type.
    """
    first = files[0]
    for file in files[1:]:
        for name in file.schema.names:
            if name not in first.schema.names:
                raise MixedTypesError(
                    file.path, name, f"a {file.schema.field(name).type}", first.path, "missing"
                )
        for field_there in first.schema:
            if field_there.name not in file.schema.names:
                raise MixedTypesError(
                    file.path, field_there.name, "missing", first.path, f"a {field_there.type}"
                )
    return pa.schema([_common_field(name, files) for name in first.schema.names])


def _common_field(name: str, files: Sequence[TableFile]) -> pa.Field:
    first, *others = [file for file in files if name not in file.blank] or files[:1]
    inferred = [file for file in (first, *others) if file.is_inferred]
    widened = _widened_type(name, inferred)

    def field_of(file: TableFile) -> pa.Field:
        field = file.schema.field(name)
        return field.with_type(widened) if widened is not None and file in inferred else field

    common = field_of(first)
    for file in others:
        field = field_of(file)
        if field.type != common.type or field.metadata != common.metadata:
            here, there = (readable_features(each.schema)[name] for each in (file, first))
            raise MixedTypesError(file.path, name, here, first.path, there)
    return common


def _widened_type(name: str, files: Sequence[TableFile]) -> pa.DataType | None:
    """What all files of text that disagree about a column can read it as; None: they can't, or they agree."""
    types = {file.schema.field(name).type for file in files}
    spelled = [file for file in files if isinstance(file, DelimitedFile) and name in file.spelled]
    if spelled and len(types) > 1 and types <= {pa.int64(), pa.float64(), pa.string()}:
        are_texts_numbers = all(
            file in spelled or file.schema.field(name).type != pa.string() for file in files
        )
        are_all_delimited = all(isinstance(file, DelimitedFile) for file in files)
        return pa.string() if are_texts_numbers and are_all_delimited else None
    return pa.float64() if types == {pa.int64(), pa.float64()} else None


def _open_paths(
    paths: Sequence[Path],
    columns: Sequence[str] | None,
    is_quoted: bool | None,
    limits: tuple[int, Path | None],
) -> Source:
    for path in paths:
        if not path.exists():
            raise SourceNotFoundError(str(path))
    if (
        len(paths) == 1
        and paths[0].is_dir()
        and not _is_saved_dataset(paths[0])
        and is_image_folder(paths[0])
    ):
        return _open_images(paths[0], columns, limits)
    file_paths = list(chain.from_iterable(_files_at(path) for path in paths))
    memory_bytes, scratch_folder = limits
    files = [_open_file(path, columns, is_quoted, memory_bytes // len(file_paths)) for path in file_paths]
    schema = common_schema(files)
    batches = chain.from_iterable(file.batches(schema) for file in files)
    if all(file.is_mapped for file in files):
        held = hold_mapped(schema, list(batches), memory_bytes=memory_bytes)
    else:
        held = hold(schema, batches, memory_bytes=memory_bytes, scratch_folder=scratch_folder)
    description = {"kind": "files", "paths": [str(path) for path in paths], "num_files": len(files)}
    return _source(held, description, _content_hashes(file_paths))


def _files_at(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if _is_saved_dataset(path):
        return saved_dataset_files(path)
    found = sorted(child for child in path.rglob("*") if child.is_file() and _kind(child) in _KNOWN)
    found = [
        child for child in found if not any(part.startswith(".") for part in child.relative_to(path).parts)
    ]
    if not found:
        raise EmptySourceError(str(path), "is a folder without a file that can be read")
    return found


def _is_saved_dataset(folder: Path) -> bool:
    return (folder / "state.json").exists() or (folder / "dataset_dict.json").exists()


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        del suffixes[-1]
    return suffixes[-1] if suffixes else ""


def _open_file(
    path: Path, columns: Sequence[str] | None, is_quoted: bool | None, memory_bytes: int
) -> TableFile:
    if not path.exists():
        raise SourceNotFoundError(str(path))
    if path.stat().st_size == 0:
        raise EmptySourceError(str(path), "is empty")
    kind = _kind(path)
    if kind in _DELIMITED:
        dialect = _DELIMITED[kind]
        if is_quoted is not None:
            dialect = Dialect(dialect.delimiter, is_quoted)
        return DelimitedFile(path, dialect, columns, memory_bytes=memory_bytes)
    if kind in _JSON:
        return JsonLinesFile(path, columns, memory_bytes=memory_bytes)
    if kind in _TEXT:
        return LinesFile(path, columns)
    if kind in _PARQUET:
        return ParquetFile(path, columns)
    if kind in _ARROW:
        return ArrowFile(path, columns)
    known = ", ".join(_KNOWN)
    raise UnsupportedSourceError(
        str(path), f"is of no kind that can be read ({known}, or a folder of images)."
    )


def _open_images(folder: Path, columns: Sequence[str] | None, limits: tuple[int, Path | None]) -> Source:
    samples = list_images(folder)
    schema = select_columns(samples.schema, columns, str(folder))
    held = hold(schema, [samples.select(schema.names)], memory_bytes=limits[0])
    description = {"kind": "images", "paths": [str(folder)], "num_files": samples.num_rows}
    return _source(held, description, [], image_folder=folder)


def _open_dataset(dataset: Any, columns: Sequence[str] | None, limits: tuple[int, Path | None]) -> Source:
    """A `datasets.Dataset`; one that was shuffled or selected from is gone through in its own order."""
    if not hasattr(dataset.data, "table"):
        raise UnsupportedSourceError(type(dataset).__name__, "can't be loaded; a datasets.Dataset is needed.")
    if getattr(dataset, "_indices", None) is None:
        return _open_table(dataset.data.table, "datasets.Dataset", columns, limits, is_mapped=True)
    tables = dataset.with_format("arrow").iter(batch_size=1000)
    return _open_table(pa.concat_tables(tables), "datasets.Dataset", columns, limits)


def _open_table(
    table: pa.Table,
    kind: str,
    columns: Sequence[str] | None,
    limits: tuple[int, Path | None],
    *,
    is_mapped: bool = False,
) -> Source:
    memory_bytes, scratch_folder = limits
    schema = plain_schema(select_columns(table.schema, columns, kind), kind)
    _refuse_no_columns(schema, kind)
    is_mapped = is_mapped and all(table.schema.field(field.name).type == field.type for field in schema)
    batches = (plain_batch(batch, schema, kind) for batch in table.to_batches())
    if is_mapped:
        held = hold_mapped(schema, list(batches), memory_bytes=memory_bytes)
    else:
        held = hold(schema, batches, memory_bytes=memory_bytes, scratch_folder=scratch_folder)
    return _source(held, {"kind": kind}, _value_hashes(held))


def _images_to_read(held: HeldSamples) -> Iterator[str]:
    """Where the images are that so far only have a path."""
    for image in filter(is_image, held.schema):
        for batch in held.batches():
            contents = pc.struct_field(batch.column(image.name), "bytes")
            paths = pc.struct_field(batch.column(image.name), "path")
            if contents.null_count:
                yield from (path for path in paths.filter(contents.is_null()).to_pylist() if path is not None)


def _arrays_table(arrays: Mapping[str, Any]) -> pa.Table:
    lengths: dict[str, int] = {}
    columns = {}
    for name, values in arrays.items():
        if hasattr(values, "with_format"):
            splits = ", ".join(map(repr, arrays))
            raise UnsupportedSourceError("DatasetDict", f"holds several splits; pass one of them: {splits}.")
        columns[str(name)] = _column(str(name), values)
        lengths[str(name)] = len(columns[str(name)])
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise MalformedSourceError("arrays", f"all need the same number of samples, but {listed}.")
    return pa.table(columns)


def _column(name: str, values: Any) -> pa.Array:
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray | list | tuple):
            return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        array = np.asarray(values)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if array.ndim == 1:
            return pa.array(array)
        if array.ndim == 0 or not array.size:
            raise MalformedSourceError(
                "arrays", f"{name!r} has the shape {array.shape}, which holds no samples."
            )
        if array.dtype.kind not in "biuf":
            raise ValueError("arrays with more than one dimension have to hold numbers")
        if array.dtype == np.bool_:  # Arrow has no tensor of bits
            array = array.view(np.uint8)
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))
    except (pa.ArrowException, ValueError, TypeError) as error:
        kind = f"{type(values).__name__} {getattr(values, 'dtype', '')}".strip()
        raise MalformedSourceError("arrays", f"{name!r} ({kind}) can't be loaded: {error}") from error


def _source(
    held: HeldSamples,
    description: Mapping[str, Any],
    hashed: Iterable[str],
    *,
    image_folder: Path | None = None,
) -> Source:
    name = ", ".join(description.get("paths", [description["kind"]]))
    _refuse_no_columns(held.schema, name)
    if held.num_samples == 0:
        raise EmptySourceError(name, "has no rows")
    image_bytes, image_lines = image_facts(_images_to_read(held), image_folder)
    fingerprint = xxhash.xxh3_128(held.schema.serialize().to_pybytes())
    for part in chain(hashed, image_lines):
        fingerprint.update(f"{part}\n".encode())
    digest = fingerprint.hexdigest()
    return Source(
        schema=held.schema,
        num_samples=held.num_samples,
        num_bytes=held.num_bytes + image_bytes,
        fingerprint=digest,
        description={**description, "fingerprint": digest},
        _held=held,
        _image_folder=image_folder,
    )


def _refuse_no_columns(schema: pa.Schema, source: str) -> None:
    if not schema.names:
        raise EmptySourceError(source, "has no columns")


def _content_hashes(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        content = xxhash.xxh3_128()
        with path.open("rb") as file:
            while block := file.read(_HASH_BYTES):
                content.update(block)
        yield content.hexdigest()


def _value_hashes(held: HeldSamples) -> Iterator[str]:
    for batch in held.batches():
        rows = max(1, int(_HASH_BYTES / max(1.0, batch.nbytes / batch.num_rows)))
        for first in range(0, batch.num_rows, rows):
            yield xxhash.xxh3_128_hexdigest(batch.slice(first, rows).serialize())
