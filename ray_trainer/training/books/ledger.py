"""Who was handed what: the books of a run, from which the audit is made.

At each checkpoint, before it counts, each rank writes one file with the steps since its last file. For every
step it lists the samples that the rank's loop was handed, each twice over: the place that was read (its
position in manifest order, which follows from the plan), and the number of what was found there (in written
order, from the header of the sample's own record). So a record that lies where another belongs shows,
whatever the plan says. Each attempt (one life of a group of workers) begins with a record of the checkpoint
that it resumed from (resume/attempts.py).

    ledger/attempt-000004/rank-000001-000000000101-000000000150.arrow    steps 101 to 150

An entry counts when the present model has seen it. Which entries do follows from the start records alone
(`lineage`): some attempt took the last valid checkpoint, after some step. That attempt's entries up to there
count; then those of the attempt that took the checkpoint it resumed from, up to that one; and so on back to
the beginning. Entries past a checkpoint that was resumed from are of steps that were done again: they stay in
the files, but don't count.

Invariants, checked in tests/unit/ray_trainer/training/books/test_ledger.py:
1. The step ranges of a lineage meet: each begins at the step at which the one before it ends.
2. What is written is read back, in the order of steps, whatever the number of ranks and files.

Read next: part_files.py (a rank's files), audit.py (what is made of them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evenload.resume.attempts import AttemptStart, books_folder
from evenload.resume.storage import RunStorage

__all__ = [
    "LedgerPart",
    "StepEntry",
    "StepRange",
    "join_parts",
    "lineage",
    "read_parts",
    "write_entries",
]

_EVER = 1 << 62
_PART = re.compile(r"rank-(\d{6,})-(\d{12,})-(\d{12,})\.arrow")

_SAMPLES = pa.large_list(pa.field("item", pa.int64(), nullable=False))
_SAMPLE_FIELDS = ("index", "number")
_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("stop", pa.int64(), nullable=False),
        pa.field("count", pa.float64(), nullable=False),
        pa.field("loss_sum", pa.float64(), nullable=False),
        *(pa.field(name, _SAMPLES, nullable=name == "number") for name in _SAMPLE_FIELDS),
    ]
)


@dataclass(frozen=True, slots=True)
class StepEntry:
    """What one rank was handed in one step.

    Attributes:
        step: Number of the step over the whole run, from 1.
        epoch: From 0.
        start, stop: The step's place in the epoch's order, over all ranks.
        count: What the sum of losses over all ranks is divided by (samples, or label tokens).
        loss_sum: This rank's part of that sum.
        index: [num_samples of this rank] int64, places: positions in manifest order.
        number: [num_samples of this rank] int64, numbers in written order of what was found there; None: the
            same numbers are written down, and of what was read, books of before numbers were kept.
    """

    step: int
    epoch: int
    start: int
    stop: int
    count: float
    loss_sum: float
    index: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64] | None = None


class LedgerPart(NamedTuple):
    """One file: the entries of one rank for consecutive steps."""

    attempt: int
    rank: int
    first_step: int
    last_step: int
    name: str

    def read(self, storage: RunStorage, *, with_index: bool = True) -> list[StepEntry]:
        """The entries, in the order of steps.

        Args:
            with_index: False leaves out the samples, which are nearly all of a file.

        Raises:
            FileNotFoundError: There is no such file (any more).
            StorageUnreadableError: The storage does not say.
            pa.ArrowException: It is truncated or damaged, or holds something else.
        """
        table = self.read_table(storage, with_index=with_index)
        columns = {name: table.column(name).to_numpy() for name in _SCHEMA.names[: -len(_SAMPLE_FIELDS)]}
        index, number = (_sample_lists(table, name) for name in _SAMPLE_FIELDS)
        return [
            StepEntry(
                step=int(columns["step"][row]),
                epoch=int(columns["epoch"][row]),
                start=int(columns["start"][row]),
                stop=int(columns["stop"][row]),
                count=float(columns["count"][row]),
                loss_sum=float(columns["loss_sum"][row]),
                index=np.empty(0, np.int64) if (places := index[row]) is None else places,
                number=number[row],
            )
            for row in range(table.num_rows)
        ]

    def read_table(self, storage: RunStorage, *, with_index: bool = True) -> pa.Table:
        """The same as it is written down."""
        fields = None if with_index else list(range(len(_SCHEMA) - len(_SAMPLE_FIELDS)))
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        table = pa.ipc.open_file(pa.py_buffer(storage.read(self.name)), options=options).read_all()
        _require_sound(table)
        return table


class StepRange(NamedTuple):
    """The steps of one attempt that count: `after_step` < step <= `until_step`."""

    attempt: int
    after_step: int
    until_step: int

    @classmethod
    def all_of(cls, attempt: int) -> Self:
        """All steps of an attempt."""
        return cls(attempt, 0, _EVER)

    def covers(self, step: int) -> bool:
        return self.after_step < step <= self.until_step


def write_entries(
    storage: RunStorage, entries: Sequence[StepEntry], *, attempt: int, rank: int, world_size: int
) -> str:
    """Write one rank's entries of consecutive steps as one file.

    Returns:
        The file's name, relative to the run.

    Raises:
        OSError: It can't be written.
    """
    columns = [
        *(
            pa.array([getattr(e, field.name) for e in entries], field.type)
            for field in _SCHEMA
            if field.name not in _SAMPLE_FIELDS
        ),
        pa.array([entry.index for entry in entries], _SAMPLES),
        pa.array([e.index if e.number is None else e.number for e in entries], _SAMPLES),
    ]
    facts = {"attempt": attempt, "rank": rank, "world_size": world_size}
    schema = _SCHEMA.with_metadata({key: str(value) for key, value in facts.items()})
    name = _part_name(attempt, rank, entries[0].step, entries[-1].step)
    _write_table(storage, name, pa.Table.from_arrays(columns, schema=schema))
    return name


def join_parts(storage: RunStorage, parts: Sequence[LedgerPart]) -> tuple[LedgerPart, int]:
    """Write one file with the entries of several of a rank, in order; they are left as they are.

    Returns:
        The file, and its bytes.

    Raises:
        OSError, StorageUnreadableError, pa.ArrowException: They can't be read, or it can't be written.
    """
    first, last = parts[0], parts[-1]
    table = pa.concat_tables([part.read_table(storage) for part in parts]).combine_chunks()
    name = _part_name(first.attempt, first.rank, first.first_step, last.last_step)
    size_bytes = _write_table(storage, name, table)
    return LedgerPart(first.attempt, first.rank, first.first_step, last.last_step, name), size_bytes


def read_parts(storage: RunStorage, steps: StepRange) -> list[LedgerPart]:
    """The files that hold entries of these steps, by rank, then by step. Reads no content."""
    folder = books_folder(steps.attempt)
    parts = []
    for name in storage.list_names(folder):
        if match := _PART.fullmatch(name):
            rank, first_step, last_step = (int(group) for group in match.groups())
            parts.append(LedgerPart(steps.attempt, rank, first_step, last_step, f"{folder}/{name}"))
    return [p for p in sorted(parts) if p.last_step > steps.after_step and p.first_step <= steps.until_step]


def lineage(starts: Mapping[int, AttemptStart], *, attempt: int, step: int) -> list[StepRange]:
    """The steps that a model has seen which `attempt` had after `step`, oldest first.

    Raises:
        ValueError: A start record is missing or impossible, so that what counts can't be known.
    """
    ranges: list[StepRange] = []
    while True:
        start = starts.get(attempt)
        if start is None:
            raise ValueError(f"attempt {attempt} has no start record, so what came before it can't be known")
        origin = start.resumed_from
        after_step = origin.step if origin else 0
        if after_step > step or (origin and origin.attempt >= attempt):
            raise ValueError(
                f"attempt {attempt} says it resumed from {origin}, and is followed from step {step}"
            )
        ranges.append(StepRange(attempt, after_step, step))
        if origin is None:
            return ranges[::-1]
        attempt, step = origin.attempt, origin.step


def _part_name(attempt: int, rank: int, first_step: int, last_step: int) -> str:
    return f"{books_folder(attempt)}/rank-{rank:06d}-{first_step:012d}-{last_step:012d}.arrow"


def _write_table(storage: RunStorage, name: str, table: pa.Table) -> int:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return storage.write_once(name, sink.getvalue().to_pybytes()).size_bytes


def _require_sound(table: pa.Table) -> None:
    """A damaged offset would have memory read that isn't the file's, and another type be taken for numbers.

    Raises:
        pa.ArrowInvalid: it is damaged, or not of our columns.
    """
    table.validate(full=True)
    for field in table.schema:
        if field.name not in _SCHEMA.names or field.type != _SCHEMA.field(field.name).type:
            raise pa.ArrowInvalid(f"its column {field.name!r} is {field.type}, which the books don't have")
    missing = set(_SCHEMA.names) - set(_SAMPLE_FIELDS) - set(table.column_names)
    if missing:
        raise pa.ArrowInvalid(f"it has no columns {', '.join(sorted(missing))}")


def _sample_lists(table: pa.Table, name: str) -> list[npt.NDArray[np.int64] | None]:
    """Of each row, the samples that a column names; None where it names none."""
    if name not in table.column_names or not table.num_rows:
        return [None] * table.num_rows
    lists = table.column(name).combine_chunks()
    values, offsets = lists.values.to_numpy(), lists.offsets.to_numpy()
    is_there = lists.is_valid().to_pylist()
    return [values[offsets[row] : offsets[row + 1]] if is_there[row] else None for row in range(len(lists))]
