"""Where a run stands: an epoch, and how many samples of it were consumed.

Blocks, offsets and rows follow from these two numbers and the plan, so nothing has to be negotiated between
ranks and nothing is replayed. For people and for Kafka's lag tools the same can be said in Kafka's words.

Read next: plan.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from evenload.ray_trainer.errors import CursorMismatchError
from evenload.ray_trainer.planning.plan import EpochPlan


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a run stands; the same on every rank.

    Attributes:
        epoch: 0 or more; the epoch being consumed.
        samples_consumed: over all ranks, of that epoch's order; the next step starts there.
        plan_fingerprint: of the plan under which this was counted; see rule.plan_fingerprint.
    """

    epoch: int
    samples_consumed: int
    plan_fingerprint: str

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.samples_consumed < 0:
            raise ValueError(f"epoch and samples_consumed must be at least 0: {self}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Cursor:
        """The inverse of to_dict.

        Raises:
            ValueError: not the fields of a cursor.
        """
        try:
            return cls(
                epoch=int(fields["epoch"]),
                samples_consumed=int(fields["samples_consumed"]),
                plan_fingerprint=str(fields["plan_fingerprint"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{dict(fields)!r} is not a cursor") from error

    def check(
        self,
        plan_fingerprint: str,
        *,
        facts_then: Mapping[str, Any] | None = None,
        facts_now: Mapping[str, Any] | None = None,
    ) -> None:
        """Refuse a cursor of another plan.

        Args:
            plan_fingerprint: of the plan that it is given to.
            facts_then: rule.plan_facts as kept beside the cursor, where they were.
            facts_now: rule.plan_facts of the present plan.

        Raises:
            CursorMismatchError: with both fingerprints, and with the facts that differ, where known.
        """
        if self.plan_fingerprint == plan_fingerprint:
            return
        then, now = facts_then or {}, facts_now or {}
        raise CursorMismatchError(
            cursor_fingerprint=self.plan_fingerprint,
            plan_fingerprint=plan_fingerprint,
            differences={
                name: (then[name], now[name]) for name in then if name in now and then[name] != now[name]
            },
        )


class PartialBlock(NamedTuple):
    """A block of which some samples are consumed and some are not.

    Attributes:
        partition: its partition.
        offset: of its first record.
        row: how many of its rows are consumed. They are consumed in shuffled order, so it is a count and not
            a place to go on from; the cursor is that.
    """

    partition: int
    offset: int
    row: int


@dataclass(frozen=True, slots=True)
class KafkaView:
    """A cursor in Kafka's words.

    Attributes:
        records_consumed: partition -> records of which every sample is consumed. Every partition with data.
        group_offset: partition -> first offset of the dataset + records consumed; what a consumer group is
            committed to, to show progress. Never read to resume: a shuffled epoch has no contiguous prefix.
        partial_blocks: by partition and offset.
    """

    records_consumed: Mapping[int, int]
    group_offset: Mapping[int, int]
    partial_blocks: tuple[PartialBlock, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "records_consumed": {str(partition): count for partition, count in self.records_consumed.items()},
            # The name under which checkpoints have always had them.
            "open_blocks": [list(block) for block in self.partial_blocks],
        }


def kafka_view(plan: EpochPlan, cursor: Cursor) -> KafkaView:
    """What a cursor means in offsets and records.

    Args:
        plan: of the cursor's epoch.
        cursor: taken under this plan.

    Raises:
        ValueError: another epoch's plan, or more samples consumed than the epoch has.
    """
    if cursor.epoch != plan.epoch or cursor.samples_consumed > plan.num_samples:
        raise ValueError(f"{cursor} is not within epoch {plan.epoch} of {plan.num_samples} samples")
    table = plan.table
    consumed = plan.order.consumed_by_block(cursor.samples_consumed)
    samples = np.diff(table.first_sample)
    # A block has one record, or records of one sample each (blocks.py): then a consumed sample is one record.
    records = np.where(table.num_records == samples, consumed, consumed // samples)
    partitions, first = np.unique(table.partition, return_index=True)
    per_partition = np.add.reduceat(records, first) if len(first) else records
    counts = dict(zip(partitions.tolist(), per_partition.tolist(), strict=True))
    is_partial = np.flatnonzero((consumed > 0) & (consumed < samples))
    columns = (table.partition[is_partial], table.offset[is_partial], consumed[is_partial])
    return KafkaView(
        records_consumed=counts,
        group_offset={
            partition: offset + counts[partition]
            for partition, offset in zip(partitions.tolist(), table.offset[first].tolist(), strict=True)
        },
        partial_blocks=tuple(map(PartialBlock, *(column.tolist() for column in columns))),
    )
