"""Files of text as tables: CSV, TSV, JSON lines, and plain lines; also compressed (.gz, .bz2, .lz4, .zst).

Text has no types, so they are read off the values: over the whole file where it fits the memory budget,
from its first 32 MiB where not. Columns that turn out otherwise in another file are read again with the
common type (source.py decides it), so nothing is ever converted twice.

No number is changed silently, wherever it stands in a file of any size. In CSV and TSV, a column stays text
when whole numbers in it begin with 0 (codes), or have 16 digits or more where it would be decimals. In JSON,
where a number can't be text, whole numbers beyond 2^53 among decimals are refused
(tests/unit/kafka_plugin/sources/test_numbers.py).

CSV follows RFC 4180 (quoted fields may hold commas, quotes and newlines). TSV follows IANA's
text/tab-separated-values: there is no quoting, a quote is a character like any other. Corpora are written
so (CoLA's sentences begin and end with bare quotes); for a TSV that a spreadsheet quoted, pass
`is_quoted=True`.

Arrow's readers are fast but say little about errors, and the pandas way (padding ragged rows) hides them.
So when Arrow refuses, the file is read once more, slowly, to name the line
(tests/unit/kafka_plugin/sources/test_text.py).
"""

from __future__ import annotations

import csv
import io
import json
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.types as pat

from evenload.kafka_plugin.errors import EmptySourceError, MalformedSourceError, UnknownColumnError, sentence
from evenload.kafka_plugin.sources.number_spelling import (
    FIELD_BYTES,
    changed_integer,
    has_large_doubles,
    has_leading_zeros,
    has_long_integers,
    may_be_changed,
)
from evenload.kafka_plugin.sources.sample_schema import plain_schema, select_columns

BLOCK_BYTES = 32 << 20  # a row can't be longer: a record can't either
_LINES_PER_BATCH = 16384
_SENTINEL = "\x01end of file"
_csv_limit_lock = threading.Lock()


@dataclass(frozen=True)
class Dialect:
    """How a delimited file is written."""

    delimiter: str
    is_quoted: bool


class DelimitedFile:
    """A CSV or TSV file.

    Attributes:
        blank: Columns without a value: text, unless another file says otherwise.
        spelled: Columns with whole numbers that a double would change, or any number (leading zeros).
    """

    is_inferred = True
    is_mapped = False

    def __init__(
        self, path: Path, dialect: Dialect, columns: Sequence[str] | None, *, memory_bytes: int
    ) -> None:
        """Reads the file once to find its types (see the module).

        Raises:
            EmptySourceError: No row at all.
            MalformedSourceError: Rows of different lengths, an open quote, bytes that are not UTF-8, bad
                names. UnknownColumnError: Some, but not all of `columns` are in the header.
        """
        self.path = str(path)
        self._path = path
        self._dialect = dialect
        self._is_streamed = path.stat().st_size > memory_bytes
        first_row = self._first_row()
        self._has_header, self._names = _header(self.path, first_row, columns)
        self._kept = list(columns) if columns else self._names
        num_quotes, may_change_numbers = self._scan()
        if dialect.is_quoted and num_quotes % 2:
            self._refuse_open_quote()
        self._table: pa.Table | None = None
        self.schema = self._found_schema({})
        # Arrow calls a column null when it is empty (or NA) all the way: text that happens to be empty.
        self.blank = frozenset(field.name for field in self.schema if pat.is_null(field.type))
        zeros, long = self._spelled_columns() if may_change_numbers else (set(), set())
        self.spelled = frozenset(zeros | long)
        doubles = {field.name for field in self.schema if pat.is_floating(field.type)}
        if texts := self.blank | zeros | (long & doubles):
            types = {field.name: pa.string() if field.name in texts else field.type for field in self.schema}
            self.schema = self._found_schema(types)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows, with these types; `schema` has the file's columns, in any order."""
        table = self._table
        if table is not None and all(table.schema.field(field.name).type == field.type for field in schema):
            yield from table.select(schema.names).cast(schema).to_batches()
            return
        for batch in self._read(dict(zip(schema.names, schema.types, strict=True))):
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)

    def _found_schema(self, types: dict[str, pa.DataType]) -> pa.Schema:
        batches = self._read(types)
        if self._is_streamed:
            schema = _first(batches, self.path).schema
        else:
            self._table = pa.Table.from_batches(batches)
            schema = self._table.schema
        for field in schema:
            if pat.is_binary(field.type):  # what Arrow makes of text that is not UTF-8
                raise _not_utf8(self._path)
        return schema

    def _spelled_columns(self) -> tuple[set[str], set[str]]:
        """Columns of numbers with a whole number that begins with 0, and with one of many digits."""
        numbers = [f.name for f in self.schema if pat.is_integer(f.type) or pat.is_floating(f.type)]
        zeros: set[str] = set()
        long: set[str] = set()
        if numbers:
            for batch in self._read(dict.fromkeys(numbers, pa.string()), numbers):
                zeros |= {name for name in numbers if has_leading_zeros(batch.column(name))}
                long |= {name for name in numbers if has_long_integers(batch.column(name))}
        return zeros, long

    def _read(
        self, types: dict[str, pa.DataType], columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        options = {
            "read_options": pa.csv.ReadOptions(
                column_names=None if self._has_header else self._names, block_size=BLOCK_BYTES
            ),
            "parse_options": pa.csv.ParseOptions(
                delimiter=self._dialect.delimiter,
                quote_char='"' if self._dialect.is_quoted else False,
                double_quote=self._dialect.is_quoted,
                newlines_in_values=self._dialect.is_quoted,
                # With a single column, an empty line is a sample: the empty string.
                ignore_empty_lines=len(self._names) > 1,
            ),
            "convert_options": pa.csv.ConvertOptions(
                column_types=types, include_columns=columns or self._kept
            ),
        }
        try:
            with pa.input_stream(self.path, compression="detect") as stream:
                if self._is_streamed:
                    yield from pa.csv.open_csv(stream, **options)
                else:
                    yield from _batches_or_empty(pa.csv.read_csv(stream, **options))
        except (pa.ArrowException, OSError) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> MalformedSourceError:
        expected = len(self._names)
        with closing(self._rows()) as rows:
            for line, row in rows:
                if row and len(row) != expected and row != [_SENTINEL]:
                    has = f"this row has {_fields(len(row))}, but there are {_columns(expected)}"
                    return MalformedSourceError(self.path, f"{has} ({row_text(row)}).", line=line)
        return MalformedSourceError(self.path, sentence(error))

    def _first_row(self) -> list[str]:
        with closing(self._rows()) as rows:
            for _, row in rows:
                if row == [_SENTINEL]:
                    break
                if row:
                    return row
        raise EmptySourceError(self.path, "is empty")

    def _scan(self) -> tuple[int, bool]:
        """Over the whole file: the number of quotes, and whether there may be numbers that Arrow changes."""
        num_quotes, is_found, seam = 0, False, b""
        try:
            with pa.input_stream(self.path, compression="detect") as stream:
                for block in iter(lambda: stream.read(BLOCK_BYTES), b""):
                    num_quotes += block.count(b'"')
                    is_found = is_found or may_be_changed(block) or may_be_changed(seam + block[:FIELD_BYTES])
                    seam = (seam + block[-FIELD_BYTES:])[-FIELD_BYTES:]
        except OSError as error:
            raise MalformedSourceError(self.path, sentence(error)) from error
        return num_quotes, is_found

    def _refuse_open_quote(self) -> None:
        """Arrow takes a quote that is never closed for a very long field, and swallows all rows after it."""
        line, row = deque(self._rows(), maxlen=1)[0]
        if row != [_SENTINEL]:
            reason = f"a quoted field in the row that begins here is never closed ({row_text(row)})."
            raise MalformedSourceError(self.path, reason, line=line)

    def _rows(self) -> Generator[tuple[int, list[str]]]:
        """Each row with the line it begins in, and a sentinel row, unless an open quote swallows it."""
        with _any_field_size(), _open_text(self._path) as lines:
            reader = csv.reader(
                _with_sentinel(lines),
                delimiter=self._dialect.delimiter,
                quoting=csv.QUOTE_MINIMAL if self._dialect.is_quoted else csv.QUOTE_NONE,
            )
            line = 1
            try:
                for row in reader:
                    yield line, row
                    line = reader.line_num + 1
            except UnicodeDecodeError as error:
                raise _not_utf8(self._path) from error
            except (csv.Error, OSError, EOFError) as error:
                raise MalformedSourceError(self.path, f"{sentence(error)}", line=line) from error


class JsonLinesFile:
    """One JSON object a line.

    Attributes:
        blank: Columns without a value: text, unless another file says otherwise.
    """

    is_inferred = True
    is_mapped = False

    def __init__(self, path: Path, columns: Sequence[str] | None, *, memory_bytes: int) -> None:
        """Reads the file once to find its types.

        Raises:
            EmptySourceError: No object at all.
            MalformedSourceError: A line that is no JSON object, or a column that changes its type.
            UnknownColumnError: One of `columns` is not in it.
        """
        self.path = str(path)
        self._path = path
        self._is_streamed = path.stat().st_size > memory_bytes
        if not any(line.strip() for line in self._lines()):
            raise EmptySourceError(self.path, "is empty")
        self._table: pa.Table | None = None
        found = self._found_schema({})
        self.blank = frozenset(field.name for field in found if pat.is_null(field.type))
        plain = {field.name: _without_dates(field.type) for field in found}
        if dates := {name: kind for name, kind in plain.items() if kind != found.field(name).type}:
            found = self._found_schema(dates)
        self.schema = plain_schema(select_columns(found, columns, self.path), self.path)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows, with these types; `schema` has the file's columns, in any order."""
        is_sure = False
        for batch in self._typed_batches(schema):
            if not is_sure and any(map(has_large_doubles, batch.columns)):
                self._refuse_changed_integers(schema)
                is_sure = True
            yield batch

    def _typed_batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._table is not None and self.schema.equals(schema):
            yield from self._table.select(schema.names).cast(schema).to_batches()
            return
        for batch in self._read(dict(zip(schema.names, schema.types, strict=True))):
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)

    def _refuse_changed_integers(self, schema: pa.Schema) -> None:
        for line, value in self._values():
            for field in schema:
                number = changed_integer(value.get(field.name), field.type)
                if number is not None:
                    reason = (
                        f"column {field.name!r} has decimals, and {number} may not be exact as one; "
                        "write such numbers as strings."
                    )
                    raise MalformedSourceError(self.path, reason, line=line)

    def _found_schema(self, types: dict[str, pa.DataType]) -> pa.Schema:
        batches = self._read(types)
        if self._is_streamed:
            return _first(batches, self.path).schema
        self._table = pa.Table.from_batches(batches)
        return self._table.schema

    def _read(self, types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        read_options = pa.json.ReadOptions(block_size=BLOCK_BYTES)
        parse_options = pa.json.ParseOptions(explicit_schema=pa.schema(types) if types else None)
        try:
            with pa.input_stream(self.path, compression="detect") as stream:
                read = pa.json.open_json if self._is_streamed else pa.json.read_json
                found = read(stream, read_options=read_options, parse_options=parse_options)
                for batch in found if self._is_streamed else _batches_or_empty(found):
                    batch.validate(full=True)  # Arrow's JSON reader lets text through that is not UTF-8
                    yield batch
        except (pa.ArrowException, OSError) as error:
            raise self._explained(error) from error

    def _lines(self) -> Iterator[str]:
        with _open_text(self._path) as lines:
            try:
                yield from lines
            except UnicodeDecodeError as error:
                raise _not_utf8(self._path) from error
            except (OSError, EOFError) as error:
                raise MalformedSourceError(self.path, sentence(error)) from error

    def _values(self) -> Iterator[tuple[int, Any]]:
        """What each line holds, with the line's number."""
        for number, line in enumerate(self._lines(), start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError as fault:
                raise MalformedSourceError(self.path, f"not JSON: {fault.msg}.", line=number) from fault
            yield number, value

    def _explained(self, error: Exception) -> MalformedSourceError:
        seen: dict[str, tuple[str, int]] = {}
        for number, value in self._values():
            if not isinstance(value, dict):
                reason = f"a JSON {_json_kind(value)}, but one object a line is needed ({{...}})."
                return MalformedSourceError(self.path, reason, line=number)
            for column, item in value.items():
                kind = _json_kind(item)
                if kind == "null":
                    continue
                before, line_before = seen.setdefault(column, (kind, number))
                if kind != before:
                    reason = f"column {column!r} is a {kind}, but in line {line_before} it is a {before}."
                    return MalformedSourceError(self.path, reason, line=number)
        return MalformedSourceError(self.path, sentence(error))


class LinesFile:
    """One sample a line: a column of text."""

    is_inferred = False
    is_mapped = False
    blank: frozenset[str] = frozenset()

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        """Reads nothing yet.

        Raises:
            MalformedSourceError: Several names for the one column.
        """
        self.path = str(path)
        self._path = path
        if columns and len(columns) != 1:
            raise MalformedSourceError(
                self.path, f"plain text has one column, but {len(columns)} names were given."
            )
        self.schema = pa.schema([pa.field(columns[0] if columns else "text", pa.string())])

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All lines, without their ends."""
        waiting: list[str] = []
        with _open_text(self._path) as lines:
            try:
                for line in lines:
                    waiting.append(line.removesuffix("\n").removesuffix("\r"))
                    if len(waiting) >= _LINES_PER_BATCH:
                        yield pa.RecordBatch.from_arrays([pa.array(waiting, pa.string())], schema=schema)
                        waiting = []
            except UnicodeDecodeError as error:
                raise _not_utf8(self._path) from error
            except (OSError, EOFError) as error:
                raise MalformedSourceError(self.path, sentence(error)) from error
        if waiting:
            yield pa.RecordBatch.from_arrays([pa.array(waiting, pa.string())], schema=schema)


def row_text(row: Sequence[str]) -> str:
    """The beginning of a row, to recognise it by."""
    text = ", ".join(row)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _header(path: str, first_row: Sequence[str], columns: Sequence[str] | None) -> tuple[bool, list[str]]:
    """Whether the first row is a header, and the names of all columns.

    Names that the user gave decide: a first row with all of them is a header, one with none of them is data.
    """
    if columns:
        missing = [column for column in columns if column not in first_row]
        if len(missing) == len(columns):
            if len(columns) != len(first_row):
                reason = (
                    f"the first row has {_fields(len(first_row))}, but {len(columns)} column names were "
                    f"given ({row_text(first_row)})."
                )
                raise MalformedSourceError(path, reason, line=1)
            return False, list(columns)
        if missing:
            raise UnknownColumnError(path, missing[0], list(first_row))
    kept = columns or first_row
    for number, name in enumerate(first_row, start=1):
        if not name and not columns:
            hint = f"column {number} has no name; if the first row is data ({row_text(first_row)})"
            raise MalformedSourceError(path, f"{hint}, name the columns with --column.", line=1)
        if name in kept and first_row.count(name) > 1:
            hint = f"the name {name!r} stands {first_row.count(name)} times in the first row; if that is data"
            raise MalformedSourceError(path, f"{hint}, name the columns with --column.", line=1)
    return True, list(first_row)


def _first(batches: Iterator[pa.RecordBatch], path: str) -> pa.RecordBatch:
    batch = next(batches, None)
    if batch is None:
        raise EmptySourceError(path, "has no rows")
    return batch


def _batches_or_empty(table: pa.Table) -> list[pa.RecordBatch]:
    return table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]


def _open_text(path: Path) -> io.TextIOWrapper:
    """The file's text, decompressed; only \\n ends a line, and a byte order mark is dropped."""
    stream = pa.input_stream(str(path), compression="detect")
    return io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8-sig", newline="\n")


def _with_sentinel(lines: Iterable[str]) -> Iterator[str]:
    line = "\n"
    for line in lines:
        yield line
    if not line.endswith("\n"):
        yield "\n"
    yield _SENTINEL + "\n"


@contextmanager
def _any_field_size() -> Iterator[None]:
    """Python's csv module refuses fields over 128 KiB unless told, for the whole process."""
    with _csv_limit_lock:
        before = csv.field_size_limit(sys.maxsize)
        try:
            yield
        finally:
            csv.field_size_limit(before)


def _not_utf8(path: Path) -> MalformedSourceError:
    """Names the line of the first byte that is no UTF-8; text is decoded in blocks, so it is sought again."""
    with pa.input_stream(str(path), compression="detect") as stream:
        for number, line in enumerate(io.BufferedReader(stream), start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as fault:
                reason = f"byte {line[fault.start]:#04x} at column {fault.start + 1} is not UTF-8."
                return MalformedSourceError(str(path), reason, line=number)
    return MalformedSourceError(str(path), "it is not UTF-8.")


def _without_dates(kind: pa.DataType) -> pa.DataType:
    """Arrow takes strings that look like dates for dates, however deep; in JSON they are strings."""
    if pat.is_timestamp(kind):
        return pa.string()
    if pat.is_list(kind):
        return pa.list_(_without_dates(kind.value_type))
    if pat.is_struct(kind):
        return pa.struct([field.with_type(_without_dates(field.type)) for field in kind])
    return kind


def _json_kind(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"
