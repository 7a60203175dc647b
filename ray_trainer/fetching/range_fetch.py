"""One range of offsets on its way: what was asked for, how far it has come, what went wrong.

Read next: broker_link.py, which drives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from evenload.dataset_catalog.records.record_header import first_sample_of, parse_record_header, value_hash
from evenload.kafka_connection.record_batches import StoredRecord
from evenload.ray_trainer.fetching.read_replicas import ReadSource

# A record as it lies in a batch is larger than its value: length, offset, key, our header.
_RECORD_OVERHEAD_BYTES: Final = 64
NOT_STAMPED: Final = "0" * 16

RecordCheck: TypeAlias = Callable[[StoredRecord], str | None]


class BlockRange(NamedTuple):
    """Consecutive offsets of one partition that are fetched together.

    Attributes:
        partition: its number.
        first_offset: of the first record.
        num_records: at least 1.
        size_bytes: about how many bytes the values have; an estimate, it limits nothing.
    """

    partition: int
    first_offset: int
    num_records: int
    size_bytes: int

    @property
    def end_offset(self) -> int:
        """One past the last record's offset."""
        return self.first_offset + self.num_records


class FetchedBlock(NamedTuple):
    """A range that has arrived, whole and checked.

    Attributes:
        wanted: the range.
        values: one view a record, in the order of offsets; memory is reused when the last view is gone.
        first_samples: for each record, the number in written order that its header gives its first sample;
            None where the records of a dataset have no such headers.
    """

    wanted: BlockRange
    values: list[memoryview]
    first_samples: list[int] | None = None


OnDone: TypeAlias = Callable[[FetchedBlock | Exception], None]


@dataclass(slots=True, order=True)
class RangeFetch:
    """A range on its way. Belongs to one thread at a time; ordered by when it was asked for."""

    wanted: BlockRange = field(compare=False)
    on_done: OnDone = field(compare=False)
    order: int
    next_offset: int = field(init=False, compare=False)
    furthest_offset: int = field(init=False, compare=False)
    records: list[StoredRecord] = field(default_factory=list, compare=False)
    num_failures: int = field(default=0, compare=False)
    num_damaged: int = field(default=0, compare=False)
    failing_since_s: float | None = field(default=None, compare=False)
    retry_at_s: float = field(default=0.0, compare=False)
    last_failure: str = field(default="", compare=False)
    source: ReadSource | None = field(default=None, compare=False)  # whom it is asked of now

    def __post_init__(self) -> None:
        self.next_offset = self.furthest_offset = self.wanted.first_offset

    @property
    def max_bytes(self) -> int:
        """What to ask a broker for: it sends one batch however little that is, so at first, 1.

        That is all there is to most ranges: a packed record is a batch, and so is a block of single samples
        as the loader writes them. Asked for more, the broker would send the beginning of the next batch, too.
        Where batches are smaller, what is left is asked for at once.
        """
        num_left = self.wanted.end_offset - self.next_offset
        if num_left == 1 or self.next_offset == self.wanted.first_offset:
            return 1
        bytes_per_record = self.wanted.size_bytes // self.wanted.num_records + _RECORD_OVERHEAD_BYTES
        return min(num_left * bytes_per_record, 1 << 30)

    def note_progress(self, next_offset: int) -> None:
        """Records up to `next_offset` have been taken."""
        self.next_offset = next_offset
        self.num_damaged = 0
        if next_offset > self.furthest_offset:  # what is read once more, from another replica, is no progress
            self.furthest_offset = next_offset
            self.num_failures = 0
            self.failing_since_s = None

    def begin_anew(self) -> None:
        """Forget what has come, as another replica is asked."""
        self.records.clear()
        self.next_offset = self.wanted.first_offset
        self.num_damaged = 0

    @property
    def is_from_follower(self) -> bool:
        """Whether who is asked isn't the partition's leader, which has the last word."""
        return self.source is not None and self.source.is_follower

    def note_failure(self, reason: str, *, now_s: float, retry_at_s: float) -> None:
        """It did not work; it is tried again at `retry_at_s` (of the monotonic clock)."""
        self.num_failures += 1
        self.failing_since_s = now_s if self.failing_since_s is None else self.failing_since_s
        self.retry_at_s = retry_at_s
        self.last_failure = reason


def first_samples_of(records: list[StoredRecord]) -> list[int]:
    """The numbers in the headers of records that stamp_check has found good."""
    return [first_sample_of(record.stamp) for record in records if record.stamp is not None]


def stamp_check(load_id: str) -> RecordCheck | None:
    """What is wrong with a record of this load, by the stamp in its header.

    After an unclean leader election, other data can be at an offset that the manifest lists, with a right
    CRC; so a record says which load wrote it. Records of an adopted topic have no stamps, and their
    manifests a load id of zeros.
    """
    if load_id == NOT_STAMPED:
        return None

    def check(record: StoredRecord) -> str | None:
        stamp = parse_record_header(record.stamp)
        if stamp is None:
            return "it has no header of a load"
        if stamp.load_id != load_id:
            return f"it was written by load {stamp.load_id}, the manifest is of load {load_id}"
        if record.value is not None and value_hash(record.value) != stamp.value_hash:
            return "its value does not match the hash in its header"
        return None

    return check
