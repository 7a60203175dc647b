"""How far a load has come, as records that travel inside the load's own transactions.

Each transaction carries one progress record, with the extents that this transaction added (a delta) and
the totals so far. It commits or aborts with the samples it speaks of, so what the committed records add
up to is exactly what is in the topic. The key is `NAME@VERSION/SEQUENCE`, so compaction keeps every
delta until the load is forgotten (a tombstone for each key).

Sequence 0 says that a load begins, and has no extents yet. A loader that goes on after another's death
keeps load id and topic and continues the sequence under its own host and process. Another sequence 0
begins anew: whatever stands before it was dropped.

Who may load may write anything here, so a record is checked field by field before anybody believes it.

Invariants, checked in tests/property/dataset_catalog/test_progress.py:
1. Folding the deltas of any division of a load into transactions gives the same state.
2. A delta that is missing, repeated or of another load is refused, never skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, JsonValue, Strict, TypeAdapter

from evenload.dataset_catalog.errors import CorruptProgressError, NewerProgressError
from evenload.dataset_catalog.extents import (
    EXTENTS_MAX,
    PARTITION_MAX,
    SAMPLES_PER_RECORD_MAX,
    Extent,
    Int64Array,
    PartitionExtents,
)
from evenload.dataset_catalog.foreign_content import NUMBER_MAX, parse_json, printable, refused_as
from evenload.dataset_catalog.record_keys import DatasetTopic, TopicId, parse_key

FORMAT_VERSION = 1
# A record of the loader lists the extents of one transaction: of single samples, one for each block.
_VALUES_MAX = 2_000_000


class ProgressKey(NamedTuple):
    """Which load, and which of its progress records."""

    name: str
    version: int
    sequence: int

    def to_bytes(self) -> bytes:
        return f"{self.name}@{self.version}/{self.sequence}".encode()

    @classmethod
    def from_bytes(cls, key: bytes) -> Self:
        """Raises:
        CorruptProgressError: Not a key of a progress record.
        """
        found = parse_key(key)
        if found is None:
            shown = printable(repr(key))
            raise CorruptProgressError(shown, f"its key is {shown}, not NAME@VERSION/SEQUENCE")
        return cls(*found)


_Count = Annotated[int, Field(strict=True, ge=0, le=NUMBER_MAX)]
_Word = Annotated[str, Field(max_length=255), AfterValidator(printable)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """One progress record: what one transaction added, and the totals after it.

    What is annotated is checked where a record is decoded, not where a loader makes one.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    version: int
    load_id: Annotated[str, Field(pattern=r"\A[0-9a-f]{16}\z")]  # 16 hex digits, in every record's header
    topic: DatasetTopic
    topic_id: TopicId
    source_fingerprint: _Word  # of source, order and encoding: going on with others would mix datasets
    sequence: _Count  # 0 for the begin of the load, then one more for each transaction
    num_samples: _Count  # written so far: the source position to go on from
    num_records: _Count  # written so far
    num_bytes: _Count  # payload written so far
    # Sum of the hashes of the samples written so far, 32 hex digits.
    checksum: Annotated[str, Field(pattern=r"\A[0-9a-f]{32}\z")]
    host: _Word
    pid: _Count
    updated_at_s: Annotated[float, Field(ge=0)]  # seconds since 1970
    process: _Word = ""  # which one that is, as process_identity.py says it; unknown in older records
    # All of the source is written; only the manifest may be missing.
    is_complete: Annotated[bool, Strict()] = False
    # By partition, added by this transaction.
    extents: Mapping[int, Sequence[Extent]] = field(default_factory=dict)
    facts: Mapping[str, JsonValue] = field(
        default_factory=dict
    )  # for people: what the fingerprint was made of

    @property
    def key(self) -> ProgressKey:
        return ProgressKey(self.name, self.version, self.sequence)

    def to_record(self) -> tuple[bytes, bytes]:
        """Key and value of the Kafka record."""
        content: dict[str, Any] = {"format": FORMAT_VERSION, **asdict(self)}
        del content["extents"]  # stored under an older name
        content["runs"] = {
            str(p): [list(each) for each in added] for p, added in sorted(self.extents.items())
        }
        return self.key.to_bytes(), json.dumps(content, allow_nan=False, separators=(",", ":")).encode()

    @classmethod
    def from_record(cls, key: bytes, value: bytes) -> Self:
        """Raises:
        CorruptProgressError: Not a progress record, of a newer format, or under another key.
        """
        parsed = ProgressKey.from_bytes(key)
        load, record = f"{parsed.name}@{parsed.version}", f"record {parsed.sequence}"
        with refused_as(lambda reason: CorruptProgressError(load, f"{record} can't be read: {reason}")):
            content = parse_json(value, max_values=_VALUES_MAX)
            version = content.pop("format")
            if version != FORMAT_VERSION:
                reason = f"its format is {printable(str(version))}, this evenload reads {FORMAT_VERSION}"
                newer = isinstance(version, int) and version > FORMAT_VERSION
                raise (NewerProgressError if newer else CorruptProgressError)(load, reason)
            extents = _EXTENTS.validate_python(content.pop("runs"))
            made: Self = _PROGRESS.validate_python(content)
        if made.key != parsed:
            raise CorruptProgressError(load, f"{record} stands under the key of another")
        return replace(made, extents={p: tuple(map(Extent._make, each)) for p, each in extents.items()})


_Extent = tuple[
    _Count,
    Annotated[int, Field(strict=True, ge=1, le=NUMBER_MAX)],
    Annotated[int, Field(strict=True, ge=1, le=SAMPLES_PER_RECORD_MAX)],
]
_EXTENTS = TypeAdapter(dict[Annotated[int, Field(ge=0, le=PARTITION_MAX)], list[_Extent]])
_PROGRESS: TypeAdapter[Any] = TypeAdapter(LoadProgress)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState:
    """What a load's committed progress adds up to."""

    last: LoadProgress  # the newest record; its totals are the load's
    started_at_s: float  # when the load began, by the clock of the loader that began it
    partitions: tuple[PartitionExtents, ...]  # all that is committed, partitions ascending

    @property
    def id(self) -> str:
        """`NAME@VERSION`."""
        return f"{self.last.name}@{self.last.version}"

    @property
    def next_sequence(self) -> int:
        return self.last.sequence + 1

    def age_s(self, now_s: float) -> float:
        """Seconds since a loader last committed; 0 when its clock is ahead of ours."""
        return max(0.0, now_s - self.last.updated_at_s)


def fold_progress(records: Iterable[LoadProgress]) -> LoadState | None:
    """What the progress records of one load add up to.

    Args:
        records: Of one name and version, in the order of the log.

    Returns:
        None without records.

    Raises:
        CorruptProgressError: The records don't follow from each other.
    """
    story: _Story | None = None
    problem: CorruptProgressError | None = None
    for record in records:
        # Compaction may have taken the begin of an older, dropped load and left its later records: whatever
        # stands before a begin doesn't count, nor does what is wrong with it.
        if story is None or record.sequence == 0:
            story, problem = _Story(record), None
        try:
            story.add(record)
        except CorruptProgressError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return story.state() if story is not None else None


class _Story:
    """The records of one load so far, from its begin on: its extents as arrays, 24 bytes each."""

    def __init__(self, begin: LoadProgress) -> None:
        self._started_at_s = begin.updated_at_s
        self._last: LoadProgress | None = None
        self._extents: dict[int, list[Int64Array]] = {}
        self._num_extents = 0

    def add(self, record: LoadProgress) -> None:
        _check_follows(self._last, record)
        self._last = record
        self._num_extents += sum(map(len, record.extents.values()))
        if self._num_extents > EXTENTS_MAX:
            reason = f"it has more than {EXTENTS_MAX} extents, which no manifest holds"
            raise CorruptProgressError(f"{record.name}@{record.version}", reason)
        for partition, added in record.extents.items():
            self._extents.setdefault(partition, []).append(np.array(added, np.int64).reshape(-1, 3).T)

    def state(self) -> LoadState:
        assert self._last is not None
        state = LoadState(last=self._last, started_at_s=self._started_at_s, partitions=self._add_up())
        totals = (sum(p.num_records for p in state.partitions), sum(p.num_samples for p in state.partitions))
        if totals != (state.last.num_records, state.last.num_samples):
            raise CorruptProgressError(
                state.id,
                f"its extents hold {totals[0]} records and {totals[1]} samples, but its totals say "
                f"{state.last.num_records} and {state.last.num_samples}",
            )
        return state

    def _add_up(self) -> tuple[PartitionExtents, ...]:
        assert self._last is not None
        try:
            # As they were told: where one touches the next, a producer batch of single samples ends.
            return tuple(
                PartitionExtents.from_columns(p, np.concatenate(self._extents[p], axis=1))
                for p in sorted(self._extents)
            )
        except ValueError as error:
            reason = f"an extent overlaps or precedes the one before: {error}"
            raise CorruptProgressError(f"{self._last.name}@{self._last.version}", reason) from error


def _check_follows(before: LoadProgress | None, record: LoadProgress) -> None:
    load = f"{record.name}@{record.version}"
    expected = 0 if before is None else before.sequence + 1
    if record.sequence != expected:
        raise CorruptProgressError(load, f"record {expected} is missing before record {record.sequence}")
    if before is None:
        return
    if before.is_complete:
        raise CorruptProgressError(load, f"record {record.sequence} comes after the load was complete")
    for name in ("name", "version", "load_id", "topic", "topic_id", "source_fingerprint"):
        if getattr(before, name) != getattr(record, name):
            raise CorruptProgressError(
                load,
                f"record {record.sequence} has {name} {getattr(record, name)!r}, the one before "
                f"{getattr(before, name)!r}",
            )
