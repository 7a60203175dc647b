"""How far a load has come, as records that travel inside the load's own transactions.

Each transaction carries one progress record, with the runs that this transaction added (a delta) and
the totals so far. It commits or aborts with the samples it speaks of, so what the committed records add
up to is exactly what is in the topic. The key is `NAME@VERSION/SEQUENCE`, so compaction keeps every
delta until the load is forgotten (a tombstone for each key).

Sequence 0 says that a load begins, and has no runs yet. A loader that goes on after another's death
keeps load id and topic and continues the sequence under its own host and process. Another sequence 0
begins anew: whatever stands before it was dropped.

Invariants, checked in tests/property/test_catalog_progress.py:
1. Folding the deltas of any division of a load into transactions gives the same state.
2. A delta that is missing, repeated or of another load is refused, never skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from pydantic import JsonValue

from dataset_catalog.errors import CorruptProgressError
from dataset_catalog.runs import PartitionRuns, Run, merge_runs

FORMAT_VERSION = 1
_KEY = re.compile(r"(.+)@(\d+)/(\d+)")


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
        found = _KEY.fullmatch(key.decode("utf-8", errors="replace"))
        if not found:
            raise CorruptProgressError(repr(key), "its key is not NAME@VERSION/SEQUENCE")
        return cls(found[1], int(found[2]), int(found[3]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """One progress record: what one transaction added, and the totals after it."""

    name: str
    version: int
    load_id: str  # 16 hex digits, in every record's header
    topic: str
    topic_id: str
    source_fingerprint: str  # of source, order and encoding: going on with others would mix datasets
    sequence: int  # 0 for the begin of the load, then one more for each transaction
    num_samples: int  # written so far: the source position to go on from
    num_records: int  # written so far
    num_bytes: int  # payload written so far
    checksum: str  # sum of the hashes of the samples written so far, 32 hex digits
    host: str
    pid: int
    updated_at_s: float  # seconds since 1970
    process: str = ""  # which one that is, as process_identity.py says it; unknown in older records
    is_complete: bool = False  # all of the source is written; only the manifest may be missing
    runs: Mapping[int, Sequence[Run]] = field(default_factory=dict)  # by partition, added by this transaction
    facts: Mapping[str, JsonValue] = field(
        default_factory=dict
    )  # for people: what the fingerprint was made of

    @property
    def key(self) -> ProgressKey:
        return ProgressKey(self.name, self.version, self.sequence)

    def to_record(self) -> tuple[bytes, bytes]:
        """Key and value of the Kafka record."""
        content: dict[str, Any] = {"format": FORMAT_VERSION, **asdict(self)}
        content["runs"] = {str(p): [list(run) for run in runs] for p, runs in sorted(self.runs.items())}
        return self.key.to_bytes(), json.dumps(content, allow_nan=False, separators=(",", ":")).encode()

    @classmethod
    def from_record(cls, key: bytes, value: bytes) -> Self:
        """Raises:
        CorruptProgressError: Not a progress record, of a newer format, or under another key.
        """
        parsed = ProgressKey.from_bytes(key)
        load = f"{parsed.name}@{parsed.version}"
        try:
            content = json.loads(value)
            version = content.pop("format")
            if version != FORMAT_VERSION:
                raise CorruptProgressError(
                    load, f"its format is {version}, this evenload reads {FORMAT_VERSION}"
                )
            runs = {int(p): tuple(Run(*run) for run in runs) for p, runs in content.pop("runs").items()}
            made = cls(**content, runs=runs)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptProgressError(load, f"record {parsed.sequence} can't be read: {error}") from error
        if made.key != parsed:
            raise CorruptProgressError(load, f"record {parsed.sequence} stands under the key of another")
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState:
    """What a load's committed progress adds up to."""

    last: LoadProgress  # the newest record; its totals are the load's
    started_at_s: float  # when the load began, by the clock of the loader that began it
    partitions: tuple[PartitionRuns, ...]  # all that is committed, partitions ascending

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
    told = list(records)
    if not told:
        return None
    # Compaction may have taken the begin of an older, dropped load and left its later records.
    begin = max((at for at, record in enumerate(told) if record.sequence == 0), default=0)
    story = told[begin:]
    for before, record in zip([None, *story], story, strict=False):
        _check_follows(before, record)
    state = LoadState(last=story[-1], started_at_s=story[0].updated_at_s, partitions=_add_up(story))
    totals = (sum(p.num_records for p in state.partitions), sum(p.num_samples for p in state.partitions))
    if totals != (state.last.num_records, state.last.num_samples):
        raise CorruptProgressError(
            state.id,
            f"its runs hold {totals[0]} records and {totals[1]} samples, but its totals say "
            f"{state.last.num_records} and {state.last.num_samples}",
        )
    return state


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


def _add_up(story: Sequence[LoadProgress]) -> tuple[PartitionRuns, ...]:
    runs: dict[int, list[Run]] = {}
    for record in story:
        for partition, added in record.runs.items():
            runs.setdefault(partition, []).extend(added)
    try:
        return tuple(PartitionRuns(p, merge_runs(runs[p])) for p in sorted(runs))
    except ValueError as error:
        raise CorruptProgressError(f"{story[-1].name}@{story[-1].version}", str(error)) from error
