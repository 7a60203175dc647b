"""Files that know their types: Parquet, Arrow (file and stream), and folders that `datasets` saved.

Arrow files are mapped, not read: their batches cost memory only where they are touched. Row groups and
batches are handed on in the file's order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from evenload.kafka_plugin.errors import MalformedSourceError, UnsupportedSourceError, sentence
from evenload.kafka_plugin.sources.sample_schema import plain_batch, plain_schema, select_columns

_READ_BYTES = 8 << 20
_MAX_ROWS = 65536


class ParquetFile:
    """A Parquet file."""

    is_inferred = False
    blank: frozenset[str] = frozenset()
    is_mapped = False

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        """Reads the footer.

        Raises:
            MalformedSourceError: Not a Parquet file.
            UnknownColumnError: One of `columns` is not in it.
        """
        self.path = str(path)
        try:
            with pq.ParquetFile(self.path, memory_map=True) as file:
                self.schema = _selected(file.schema_arrow, columns, self.path)
                groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
                num_bytes = sum(group.total_byte_size for group in groups)
                mean_bytes = num_bytes / max(1, file.metadata.num_rows)
        except (pa.ArrowException, OSError) as error:
            raise MalformedSourceError(
                self.path, f"it can't be read as Parquet: {sentence(error)}"
            ) from error
        self._rows_per_batch = max(1, min(_MAX_ROWS, int(_READ_BYTES / max(1.0, mean_bytes))))

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows, with these types."""
        try:
            with pq.ParquetFile(self.path, memory_map=True) as file:
                for batch in file.iter_batches(batch_size=self._rows_per_batch, columns=schema.names):
                    yield plain_batch(batch, schema, self.path)
        except (pa.ArrowException, OSError) as error:
            raise MalformedSourceError(
                self.path, f"it can't be read as Parquet: {sentence(error)}"
            ) from error


class ArrowFile:
    """An Arrow IPC file or stream, mapped."""

    is_inferred = False
    blank: frozenset[str] = frozenset()

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        """Maps the file and reads where its batches are.

        Raises:
            MalformedSourceError: Neither an Arrow file nor a stream.
            UnknownColumnError: One of `columns` is not in it.
        """
        self.path = str(path)
        try:
            mapped = pa.memory_map(self.path).read_buffer()
            with _opened(mapped) as reader:
                found = reader.schema
                self._batches = list(_all_batches(reader))
        except (pa.ArrowException, OSError) as error:
            raise MalformedSourceError(self.path, f"it can't be read as Arrow: {sentence(error)}") from error
        self.schema = _selected(found, columns, self.path)
        is_plain = all(found.field(field.name).type == field.type for field in self.schema)
        self.is_mapped = is_plain and all(_lies_in(batch, mapped) for batch in self._batches)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows, with these types; views into the mapped file where it is plain and not compressed."""
        return (plain_batch(batch, schema, self.path) for batch in self._batches)


def saved_dataset_files(folder: Path) -> list[Path]:
    """The Arrow files of a folder that `Dataset.save_to_disk` wrote, in their order.

    Raises:
        MalformedSourceError: `state.json` is not what `datasets` writes.
        UnsupportedSourceError: It is a `DatasetDict` of several splits.
    """
    if (folder / "dataset_dict.json").exists():
        splits = sorted(child.name for child in folder.iterdir() if (child / "state.json").exists())
        listed = ", ".join(str(folder / split) for split in splits)
        raise UnsupportedSourceError(str(folder), f"holds several splits; load them one by one: {listed}.")
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return [folder / file["filename"] for file in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"state.json is not as `datasets` writes it: {sentence(error)}"
        raise MalformedSourceError(str(folder), reason) from error


def _selected(schema: pa.Schema, columns: Sequence[str] | None, path: str) -> pa.Schema:
    return plain_schema(select_columns(schema, columns, path), path)


def _opened(mapped: pa.Buffer) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    try:
        return pa.ipc.open_file(mapped)
    except pa.ArrowInvalid:
        return pa.ipc.open_stream(mapped)


def _all_batches(
    reader: pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader,
) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        return (reader.get_batch(number) for number in range(reader.num_record_batches))
    return iter(reader)


def _lies_in(batch: pa.RecordBatch, mapped: pa.Buffer) -> bool:
    """Whether a batch is a view into the mapped file; a compressed one was unpacked into memory."""
    end = mapped.address + mapped.size
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    return all(buffer.size == 0 or mapped.address <= buffer.address < end for buffer in buffers)
