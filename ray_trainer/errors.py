"""What can go wrong while planning, fetching, reading and training: the root, and what several rooms raise.

    TrainerError                    everything of this package; itself a RunError (resume/errors.py)
    ├── TooManyWorkersError         some rank would get no sample in some step
    ├── CursorMismatchError         a cursor that belongs to another dataset, seed or plan rule
    └── ReadError                   samples of a dataset can't be had
        ├── FetchTimeoutError       nothing came for as long as is allowed (retriable)
        ├── FetchRefusedError       brokers answer, but refuse
        ├── RecordsGoneError        offsets that the manifest lists are no longer there
        └── CorruptRecordError      what is at an offset isn't what was written there

The other branches stand where they are raised: reading/errors.py, training/errors.py,
training/on_ray/errors.py, recipes/errors.py.

Facts are attributes, the message says what to do. Errors cross processes in Ray, so they pickle whatever
their constructor takes (tests/unit/ray_trainer/test_errors.py, for all of them).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from evenload.resume.errors import RunError


class TrainerError(RunError):
    """Root of this package's errors."""


class TooManyWorkersError(TrainerError):
    """Some rank would be left without a sample in some step, which has no right answer.

    Attributes:
        world_size: workers asked for.
        largest_world_size: the most that can be served.
        needed_batch_size: the global batch that so many workers need; None: no batch would help here.
    """

    def __init__(
        self,
        *,
        world_size: int,
        largest_world_size: int,
        reason: str,
        needed_batch_size: int | None = None,
    ) -> None:
        at_least = "" if needed_batch_size is None else f", of at least {needed_batch_size}"
        super().__init__(
            f"{world_size} workers are too many: {reason}, so at most {largest_world_size} can take part "
            "(a rank without samples has no right gradient). Use fewer workers or a larger global batch"
            f"{at_least}."
        )
        self.world_size = world_size
        self.largest_world_size = largest_world_size
        self.needed_batch_size = needed_batch_size


class CursorMismatchError(TrainerError):
    """A cursor was taken under another plan; going on would repeat or skip samples.

    Attributes:
        cursor_fingerprint: of the plan under which the cursor was taken.
        plan_fingerprint: of the plan it was given to.
        differences: name of each fact that differs -> (value at the cursor, value now), where known.
    """

    def __init__(
        self,
        *,
        cursor_fingerprint: str,
        plan_fingerprint: str,
        differences: Mapping[str, tuple[object, object]] | None = None,
    ) -> None:
        self.cursor_fingerprint = cursor_fingerprint
        self.plan_fingerprint = plan_fingerprint
        self.differences = dict(differences or {})
        what = "; ".join(
            f"{name} was {then!r}, is now {now!r}" for name, (then, now) in self.differences.items()
        )
        super().__init__(
            f"the cursor was taken under plan {cursor_fingerprint}, but the plan is now {plan_fingerprint}"
            + (f" ({what})" if what else "")
            + "; going on would repeat or skip samples. Use the same dataset version, seed and plan rule, "
            "or start a new run."
        )


class ReadError(TrainerError):
    """Samples of a dataset can't be had from Kafka, or can't be decoded."""


class FetchTimeoutError(ReadError):
    """A range of offsets could not be read for as long as is allowed.

    Attributes:
        topic, partition, offset: what was to be read next.
        waited_s: seconds since it last went well.
        reason: what went wrong last.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, *, topic: str, partition: int, offset: int, waited_s: float, reason: str) -> None:
        super().__init__(
            f"offset {offset} of partition {partition} of topic {topic!r} could not be read for "
            f"{waited_s:.0f} s: {reason}; check that the partition's leader runs (`evenload status`), then "
            "go on from the last checkpoint"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.waited_s = waited_s
        self.reason = reason


class FetchRefusedError(ReadError):
    """Brokers answer, but refuse, and asking again would not help.

    Attributes:
        topic: what was to be read.
        reason: what they said.
    """

    def __init__(self, *, topic: str, reason: str) -> None:
        super().__init__(f"topic {topic!r} can't be read: {reason}")
        self.topic = topic
        self.reason = reason


class RecordsGoneError(ReadError):
    """Offsets that the manifest lists are no longer there.

    Attributes:
        topic, partition, offset: the first that is missing.
        reason: how that showed.
    """

    def __init__(self, *, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"offset {offset} of partition {partition} of topic {topic!r} is gone ({reason}): retention, "
            "compaction or an unclean leader election took it. Load the dataset again, under a new version."
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason


class CorruptRecordError(ReadError):
    """What is at an offset isn't what was written there when the dataset was loaded.

    Attributes:
        topic, partition, offset: which record.
        reason: what does not fit.
    """

    def __init__(self, *, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"the record at offset {offset} of partition {partition} of topic {topic!r} is not what was "
            f"loaded there: {reason}. `evenload datasets verify` says what else is not; load it again."
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason
