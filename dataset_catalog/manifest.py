"""What a dataset in Kafka is: its topic, where its samples lie, what they look like, how many.

A dataset exists when its manifest does. The manifest lists every record by offset (as extents), so a
reader asks for exactly these and never interprets gaps; and it holds the count and the checksum
over samples that were taken from the source while loading, so that `verify` can compare the topic
with something that did not pass through Kafka.

Invariants, checked in tests/property/dataset_catalog/test_manifest_parts.py:
1. Parts to manifest and back is the identity, in any order of the parts.
2. Totals agree with the extents; a manifest that contradicts itself can't be made.

Read next: extents.py (where samples lie), encoding.py (what is in a record), catalog.py (where
manifests are kept).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from typing import Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from evenload.dataset_catalog.errors import CorruptManifestError, UnsupportedTypeError
from evenload.dataset_catalog.extents import (
    SAMPLES_PER_RECORD_MAX,
    Extent,
    ExtentArrays,
    PartitionExtents,
    concatenate_extents,
    extents_of_records,
    merge_extents,
)
from evenload.dataset_catalog.foreign_content import NUMBER_MAX, parse_json, refused_as
from evenload.dataset_catalog.parts import join_parts, split_document
from evenload.dataset_catalog.record_keys import VERSION_MAX, DatasetTopic, TopicId
from evenload.dataset_catalog.stored_schema import decode_schema, encode_schema

__all__ = [
    "PART_BYTES",
    "DatasetId",
    "DatasetManifest",
    "Encoding",
    "Extent",
    "ExtentArrays",
    "PartitionExtents",
    "ValueFormat",
    "check_dataset_name",
    "encode_schema",
    "extents_of_records",
    "merge_extents",
    "parse_dataset_id",
]

Encoding = Literal["packed", "record"]
ValueFormat = Literal["arrow", "raw", "json"]

PART_BYTES = 512 * 1024  # half of Kafka's default limit for a record
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
# Everything but extents. What takes most are the numbers of partitions, of which a cluster has at most about
# 200,000, and the names of columns and classes.
_HEADER_BYTES_MAX = 16 << 20
_HEADER_VALUES_MAX = 1_000_000


class DatasetId(NamedTuple):
    """A dataset as a user names it; without a version, the newest is meant."""

    name: str
    version: int | None


class DatasetManifest(BaseModel):
    """One version of one dataset. Immutable, picklable, compared by value.

    Raises:
        ValueError: Totals disagree with the extents, partitions don't ascend, or a field is malformed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(description="Letters, digits, '.', '_' and '-'; begins with a letter or digit.")
    version: int = Field(ge=1, le=VERSION_MAX, description="A new version has a topic of its own.")
    topic: DatasetTopic = Field(description="The topic that holds the samples.")
    topic_id: TopicId = Field(description="Kafka's id of that topic; another id is another topic.")
    encoding: Encoding = Field(description="Many samples a record, or one.")
    value_format: ValueFormat = Field(description="How a record's value is written.")
    schema_ipc: str = Field(description="The Arrow schema of a record's samples, IPC, base64.")
    features: dict[str, str] = Field(description="Column to readable type; 'image' for encoded images.")
    samples_per_record: int = Field(
        ge=1, le=SAMPLES_PER_RECORD_MAX, description="What was aimed at; the extents say what is there."
    )
    partitions: tuple[PartitionExtents, ...] = Field(
        description="Where the samples lie, partitions ascending."
    )
    num_samples: int = Field(ge=0, le=NUMBER_MAX)
    num_records: int = Field(ge=0, le=NUMBER_MAX)
    num_bytes: int = Field(ge=0, le=NUMBER_MAX, description="Payload: bytes of all the records' values.")
    checksum: str = Field(pattern=r"\A[0-9a-f]{32}\z", description="Sum of sample hashes modulo 2^128, hex.")
    shuffle_seed: int | None = Field(description="Seed of the order of writing; None: as in the source.")
    load_id: str = Field(pattern=r"\A[0-9a-f]{16}\z", description="Stands in every record's header.")
    source: dict[str, JsonValue] = Field(description="Where it came from: paths, fingerprint.")
    created_at_s: float = Field(ge=0, description="Seconds since 1970.")

    @field_validator("name")
    @classmethod
    def _name_is_usable(cls, name: str) -> str:
        return check_dataset_name(name)

    @model_validator(mode="after")
    def _totals_agree_with_extents(self) -> Self:
        numbers = [p.partition for p in self.partitions]
        if numbers != sorted(set(numbers)):
            raise ValueError(f"partitions must ascend, each once, but are {numbers[:20]}")
        listed = (sum(p.num_records for p in self.partitions), sum(p.num_samples for p in self.partitions))
        if listed != (self.num_records, self.num_samples):
            raise ValueError(
                f"extents list {listed[0]} records and {listed[1]} samples, but the totals say "
                f"{self.num_records} and {self.num_samples}"
            )
        return self

    @property
    def id(self) -> str:
        """`NAME@VERSION`."""
        return f"{self.name}@{self.version}"

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of what a record's value holds; made anew each time.

        Raises:
            CorruptManifestError: No loader writes such a schema.
        """
        with refused_as(lambda reason: CorruptManifestError(f"its schema is impossible: {reason}", self.id)):
            try:
                return decode_schema(self.schema_ipc)
            except UnsupportedTypeError as error:
                raise ValueError(str(error)) from error

    @property
    def fingerprint(self) -> str:
        """32 hex digits over what decides which sample is at which place of which topic.

        Equal fingerprints mean equal samples in equal manifest order; name, version and time of
        creation are no part of it.
        """
        header, columns = self._split()
        deciding = ("topic_id", "encoding", "value_format", "schema_ipc", "checksum", "load_id", "partitions")
        content = json.dumps({key: header[key] for key in deciding}, sort_keys=True, separators=(",", ":"))
        return str(xxhash.xxh3_128_hexdigest(content.encode() + columns))

    def extent_arrays(self) -> ExtentArrays:
        """All extents as read-only arrays in manifest order; milliseconds for a million extents."""
        return concatenate_extents(self.partitions)

    def to_json(self) -> str:
        """The manifest as a JSON object, extents as `[first_offset, num_records, samples_per_record]`."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises:
        ValueError: Not a manifest.
        """
        return cls.model_validate_json(text)

    def to_parts(self, max_bytes: int = PART_BYTES) -> list[bytes]:
        """The manifest as values of Kafka records of at most `max_bytes` each, compressed and checksummed."""
        header, columns = self._split()
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        return split_document(struct.pack(">I", len(text)) + text + columns, max_bytes)

    @classmethod
    def from_parts(cls, parts: Iterable[bytes]) -> Self:
        """The manifest from all its parts, in any order.

        Raises:
            CorruptManifestError: A part is missing, damaged, foreign or of a newer format.
        """
        with refused_as(lambda reason: CorruptManifestError(f"its content is impossible: {reason}")):
            made = cls._from_document(join_parts(parts))
            made.arrow_schema  # noqa: B018 - a manifest whose schema can't be read is as damaged as any
            return made

    @classmethod
    def _from_document(cls, document: bytes | bytearray) -> Self:
        (length,) = struct.unpack_from(">I", document)
        if length > min(_HEADER_BYTES_MAX, len(document) - 4):
            raise ValueError(f"{length} bytes of header are too many, at most {_HEADER_BYTES_MAX}")
        header = parse_json(bytes(document[4 : 4 + length]), max_values=_HEADER_VALUES_MAX)
        header["partitions"] = _unpack_extents(header["partitions"], memoryview(document)[4 + length :])
        return cls(**header)

    def _split(self) -> tuple[dict[str, JsonValue], bytes]:
        header: dict[str, JsonValue] = self.model_dump(mode="json", exclude={"partitions"})
        header["partitions"] = [[p.partition, p.num_extents] for p in self.partitions]
        return header, _pack_extents(self.partitions)


def check_dataset_name(name: str) -> str:
    """The name, when a dataset may have it.

    Raises:
        ValueError: It has other characters than a topic may have, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} can't name a dataset: 1 to 200 letters, digits, '.', '_' or '-', beginning with a "
            "letter or digit"
        )
    return name


def parse_dataset_id(text: str) -> DatasetId:
    """Reads `NAME` or `NAME@VERSION`.

    Raises:
        ValueError: The name can't be one, or the version is no whole number from 1 on.
    """
    name, at, version = text.partition("@")
    if at and not re.fullmatch(r"0*[1-9][0-9]{0,17}", version):
        raise ValueError(f"{text!r}: the version after '@' must be a whole number from 1 on")
    return DatasetId(check_dataset_name(name), int(version) if at else None)


def _pack_extents(partitions: Iterable[PartitionExtents]) -> bytes:
    """Gap to the extent before, records, samples per record: each a column, bytes of equal weight together.

    Gaps and counts repeat, and their high bytes are zero: so laid out, zlib makes almost nothing of
    them (a million extents with regular gaps: a few KB instead of 24 MB).
    """
    packed = []
    for part in partitions:
        first, records, samples = part.first_offset, part.num_records_by_extent, part.samples_per_record
        ends = np.concatenate([np.zeros(1, np.int64), (first + records)[:-1]])[: first.size]
        columns = np.stack([first - ends, records, samples]).astype("<i8")
        packed.append(
            np.ascontiguousarray(columns.view(np.uint8).reshape(3, -1, 8).transpose(0, 2, 1)).tobytes()
        )
    return b"".join(packed)


def _unpack_extents(counts: list[list[int]], data: memoryview) -> tuple[PartitionExtents, ...]:
    if any(type(number) is not int or number < 0 for pair in counts for number in pair):
        raise ValueError("a partition, or its number of extents, is no whole number from 0 on")
    num_extents = sum(count for _, count in counts)
    if num_extents * 24 != len(data):
        raise ValueError(f"{len(data)} bytes of extents do not go with {num_extents} extents")
    partitions, at = [], 0
    for partition, count in counts:
        planes = np.frombuffer(data, np.uint8, count * 24, at).reshape(3, 8, count)
        columns = np.ascontiguousarray(planes.transpose(0, 2, 1)).view("<i8").reshape(3, count)
        # In place: gaps become first offsets.
        columns[0] += columns[1]
        np.cumsum(columns[0], out=columns[0])
        columns[0] -= columns[1]
        partitions.append(PartitionExtents.from_columns(partition, columns.astype(np.int64, copy=False)))
        at += count * 24
    return tuple(partitions)
